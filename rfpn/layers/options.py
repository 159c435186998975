"""What each argument of :class:`rfpn.layers.RecurrentLayer` may be."""

import math
from typing import Callable

from rfpn.fixed_point.lipschitz import PROBES, REDUCTIONS
from rfpn.layers.checks import Range, check_setting
from rfpn.layers.fast import FAST

GRADIENTS = ("bptt", "tbptt", "rbp")
SOLVERS = ("steps", "anderson")
ADJOINTS = ("neumann", "solve")
# of PROBES each is a vector to multiply J with; this one stands for the quotient of the last two motions
SECANT = "secant"
# more steps or terms than this are a slip of the keyboard
MOST_STEPS = 1_000_000
RULES = {
    "steps": Range(1, MOST_STEPS, whole=True),
    "extra_steps": Range(0, MOST_STEPS, whole=True),
    "test_steps": Range(1, MOST_STEPS, whole=True),
    "test_tolerance": Range(0, math.inf),
    "solver": SOLVERS,
    "solver_tolerance": Range(0, math.inf),
    "gradient": GRADIENTS,
    "window": Range(1, MOST_STEPS, whole=True),
    "adjoint": ADJOINTS,
    "neumann_terms": Range(0, MOST_STEPS, whole=True),
    "neumann_tolerance": Range(0, math.inf),
    # bounded, because its product with a norm must stay finite
    "growth_limit": Range(1, 1e6),
    "lipschitz": (False, True),
    "coefficient": Range(0, 1, below=True),
    "reduction": REDUCTIONS,
    "probe": (*PROBES, SECANT),
    "two_sided": (False, True),
    "fast": FAST,
}


def _argument(name: str) -> str:
    return f"RecurrentLayer {name}"


def check_options(options: dict, spell: Callable[[str], str] = _argument) -> None:
    """Check all arguments of RecurrentLayer that have a rule.

    Args:
        options: by argument. spell: how an argument is called in errors.

    Raises:
        ValueError: naming the setting that is out of range, or two that exclude each other.
    """
    for name, rule in RULES.items():
        check_setting(spell(name), options[name], rule)
    for name, usual in (("solver", "steps"), ("adjoint", "neumann")):
        if options["gradient"] != "rbp" and options[name] != usual:
            raise ValueError(f"{spell(name)} {options[name]!r} needs {spell('gradient')} 'rbp', got {options['gradient']!r}")
    if options["extra_steps"] and options["solver"] != "steps":
        extra = f"{spell('extra_steps')} {options['extra_steps']}"
        raise ValueError(f"{extra} needs {spell('solver')} 'steps', got {options['solver']!r}")
