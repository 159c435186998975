"""Builds RecurrentLayer arguments from the one config node that all recurrent models share."""

import sys

from detectron2.config import CfgNode
from torch import nn

from rfpn.layers import RecurrentLayer
from rfpn.layers.checks import Range, check_setting
from rfpn.layers.gates import GATE_BIAS_STARTS
from rfpn.layers.hgru import FORMS
from rfpn.layers.options import MOST_STEPS, RULES, check_options

_PENALTY = ("coefficient", "reduction", "probe", "two_sided")
# keys that are not RecurrentLayer's; the values of NORM_GROUPS and CELL, and what 0 means, are the models' own matter
_RULES = {
    "TEST_STEPS": Range(0, MOST_STEPS, whole=True),
    "KERNEL_SIZE": Range(0, 255, whole=True),
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
        check_setting(_full_key(key), node[key], rule)
    check_setting(_full_key("LIPSCHITZ.WEIGHT"), node.LIPSCHITZ.WEIGHT, Range(0, sys.float_info.max))
    values = {**node, **node.LIPSCHITZ}
    options = {name: values[name.upper()] for name in RULES if name != "lipschitz"}
    options |= {"test_steps": node.TEST_STEPS or node.STEPS, "lipschitz": node.LIPSCHITZ.WEIGHT > 0}
    check_options(options, _full_key)
    # checked as the number it stands for; None follows the layer's steps, also where those are set later
    return options | {"test_steps": node.TEST_STEPS or None}


def kernel_size(node: CfgNode, usual: int) -> int:
    """E, from node ``MODEL.RECURRENT``; ``usual`` where it is 0. Raises ValueError naming the key."""
    # models without a recurrent layer ask for no other option
    check_setting(_full_key("KERNEL_SIZE"), node.KERNEL_SIZE, _RULES["KERNEL_SIZE"])
    size = node.KERNEL_SIZE or usual
    if size % 2 == 0:
        raise ValueError(f"{_full_key('KERNEL_SIZE')} must be odd, or 0 for {usual}, got {size}")
    return size


def check_penalised(model: str, weight: float, layer: nn.Module) -> None:
    """Raise ValueError where a model weighs a penalty that its layer does not compute. model: its name, for the error."""
    if weight > 0 and not (isinstance(layer, RecurrentLayer) and layer.lipschitz):
        raise ValueError(f"{model} lipschitz_weight needs a recurrent layer with lipschitz=True")


def _full_key(name: str) -> str:
    """The configuration's key of an argument of RecurrentLayer, or of a key below ``MODEL.RECURRENT``."""
    return f"MODEL.RECURRENT.{'LIPSCHITZ.' if name in _PENALTY else ''}{name.upper()}"
