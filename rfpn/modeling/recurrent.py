"""Builds RecurrentLayer arguments from the one config node that all recurrent models share."""

from detectron2.config import CfgNode

from rfpn.fixed_point.lipschitz import PROBES, REDUCTIONS
from rfpn.layers import ADJOINTS, GRADIENTS, SOLVERS
from rfpn.layers.fast import FAST
from rfpn.layers.gates import GATE_BIAS_STARTS
from rfpn.layers.hgru import FORMS


def recurrent_options(cfg: CfgNode) -> dict:
    """Keyword arguments of :class:`rfpn.layers.RecurrentLayer` from ``MODEL.RECURRENT``.

    Raises:
        ValueError: naming the key whose value cannot work.
    """
    node = cfg.MODEL.RECURRENT
    _check(node.STEPS >= 1, "STEPS", node.STEPS, "at least 1")
    _check(node.TEST_STEPS >= 0, "TEST_STEPS", node.TEST_STEPS, "0 (as STEPS) or more")
    _check(node.WINDOW >= 1, "WINDOW", node.WINDOW, "at least 1")
    _check(node.NEUMANN_TERMS >= 0, "NEUMANN_TERMS", node.NEUMANN_TERMS, "at least 0")
    _check(node.TEST_TOLERANCE >= 0, "TEST_TOLERANCE", node.TEST_TOLERANCE, "at least 0")
    _check(node.NEUMANN_TOLERANCE >= 0, "NEUMANN_TOLERANCE", node.NEUMANN_TOLERANCE, "at least 0")
    _check(node.SOLVER_TOLERANCE > 0, "SOLVER_TOLERANCE", node.SOLVER_TOLERANCE, "above 0")
    if node.GRADIENT != "rbp":
        _check(node.SOLVER == "steps", "SOLVER", node.SOLVER, f"'steps' under GRADIENT {node.GRADIENT}")
        _check(node.ADJOINT == "neumann", "ADJOINT", node.ADJOINT, f"'neumann' under GRADIENT {node.GRADIENT}")
    _check(node.GROWTH_LIMIT >= 1, "GROWTH_LIMIT", node.GROWTH_LIMIT, "at least 1")
    _check(node.GATE_STEPS >= 0, "GATE_STEPS", node.GATE_STEPS, "0 (the default) or more")
    _check(node.LIPSCHITZ.WEIGHT >= 0, "LIPSCHITZ.WEIGHT", node.LIPSCHITZ.WEIGHT, "at least 0")
    _check(0 <= node.LIPSCHITZ.COEFFICIENT < 1, "LIPSCHITZ.COEFFICIENT", node.LIPSCHITZ.COEFFICIENT, "in [0, 1)")
    for key, value, allowed in (
        ("GRADIENT", node.GRADIENT, GRADIENTS),
        ("SOLVER", node.SOLVER, SOLVERS),
        ("ADJOINT", node.ADJOINT, tuple(ADJOINTS)),
        ("FORM", node.FORM, FORMS),
        ("GATE_BIAS", node.GATE_BIAS, GATE_BIAS_STARTS),
        ("LIPSCHITZ.REDUCTION", node.LIPSCHITZ.REDUCTION, REDUCTIONS),
        ("LIPSCHITZ.PROBE", node.LIPSCHITZ.PROBE, PROBES),
        ("FAST", node.FAST, FAST),
    ):
        _check(value in allowed, key, repr(value), "one of " + ", ".join(allowed))
    return {
        "steps": node.STEPS,
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
        "fast": node.FAST,
    }


def _check(valid: bool, key: str, value, wanted: str) -> None:
    if not valid:
        raise ValueError(f"MODEL.RECURRENT.{key} must be {wanted}, got {value}")
