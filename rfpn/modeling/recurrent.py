"""Builds RecurrentLayer arguments from the one config node that all recurrent models share."""

import sys

from detectron2.config import CfgNode
from torch import nn

from rfpn.layers import RecurrentLayer
from rfpn.layers.checks import Range, check_setting
from rfpn.layers.gates import GATE_BIAS_STARTS
from rfpn.layers.hgru import FORMS
from rfpn.layers.options import MOST_STEPS, check_options

# argument of RecurrentLayer -> key, where it is not the argument's name in capitals
_KEYS = {name: f"LIPSCHITZ.{name.upper()}" for name in ("coefficient", "reduction", "probe")}
# keys that are not RecurrentLayer's; the values of KERNEL_SIZE, NORM_GROUPS and CELL are the models' own matter
_RULES = {
    "TEST_STEPS": Range(0, MOST_STEPS, whole=True),
    "FORM": FORMS,
    "GATE_BIAS": GATE_BIAS_STARTS,
    "GATE_STEPS": Range(0, MOST_STEPS, whole=True),
    "NORM_START": Range(0, 100),
}


def recurrent_options(cfg: CfgNode) -> dict:
    """Keyword arguments of :class:`rfpn.layers.RecurrentLayer` from ``MODEL.RECURRENT``.

    Raises:
        ValueError: naming the key whose value cannot work.
    """
    node = cfg.MODEL.RECURRENT
    for key, rule in _RULES.items():
        check_setting(_spell(key), node[key], rule)
    check_setting(_spell("LIPSCHITZ.WEIGHT"), node.LIPSCHITZ.WEIGHT, Range(0, sys.float_info.max))
    options = {
        "steps": node.STEPS,
        "extra_steps": node.EXTRA_STEPS,
        "test_steps": node.TEST_STEPS or node.STEPS,
        "test_tolerance": node.TEST_TOLERANCE,
        "gradient": node.GRADIENT,
        "solver": node.SOLVER,
        "solver_tolerance": node.SOLVER_TOLERANCE,
        "adjoint": node.ADJOINT,
        "window": node.WINDOW,
        "neumann_terms": node.NEUMANN_TERMS,
        "neumann_tolerance": node.NEUMANN_TOLERANCE,
        "growth_limit": node.GROWTH_LIMIT,
        "lipschitz": node.LIPSCHITZ.WEIGHT > 0,
        "coefficient": node.LIPSCHITZ.COEFFICIENT,
        "reduction": node.LIPSCHITZ.REDUCTION,
        "probe": node.LIPSCHITZ.PROBE,
        "two_sided": node.LIPSCHITZ.TWO_SIDED,
        "fast": node.FAST,
    }
    check_options(options, lambda name: _spell(_KEYS.get(name, name.upper())))
    return options


def check_penalised(model: str, weight: float, layer: nn.Module) -> None:
    """Raise ValueError where a model weighs a penalty that its layer does not compute. model: its name, for the error."""
    if weight > 0 and not (isinstance(layer, RecurrentLayer) and layer.lipschitz):
        raise ValueError(f"{model} lipschitz_weight needs a recurrent layer with lipschitz=True")


def _spell(key: str) -> str:
    return f"MODEL.RECURRENT.{key}"
