"""Optimizers by configuration."""

from typing import Sequence

import torch
from detectron2.config import CfgNode
from detectron2.solver.build import get_default_optimizer_params, maybe_add_gradient_clipping
from torch import nn

from rfpn.engine.parts import find_part

_CLASSES = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}
OPTIMIZERS = tuple(_CLASSES)


def build_optimizer(cfg: CfgNode, model: nn.Module) -> torch.optim.Optimizer:
    """``SOLVER.OPTIMIZER`` with Detectron2's parameter groups and gradient clipping, and with ``SOLVER.LR_FACTORS``.

    Raises:
        ValueError: a factor of a module that the model does not have.
    """
    solver = cfg.SOLVER
    groups = get_default_optimizer_params(
        model,
        base_lr=solver.BASE_LR,
        weight_decay_norm=solver.WEIGHT_DECAY_NORM,
        bias_lr_factor=solver.BIAS_LR_FACTOR,
        weight_decay_bias=solver.WEIGHT_DECAY_BIAS,
    )
    groups = _with_factors(groups, model, solver.LR_FACTORS)
    optimizer = maybe_add_gradient_clipping(cfg, _CLASSES[solver.OPTIMIZER])
    if solver.OPTIMIZER == "SGD":
        options = {"momentum": solver.MOMENTUM, "nesterov": solver.NESTEROV}
    else:
        # one kernel for all parameters: a tenth of a small model's step on a CPU otherwise
        options = {"fused": True}
        # newer versions of PyTorch add this themselves; with 2.6 it tells checkpoints of Adam and AdamW apart
        groups = [{**group, "decoupled_weight_decay": solver.OPTIMIZER == "AdamW"} for group in groups]
    return optimizer(groups, lr=solver.BASE_LR, weight_decay=solver.WEIGHT_DECAY, **options)


def _with_factors(groups: list[dict], model: nn.Module, factors: Sequence[tuple[str, float]]) -> list[dict]:
    """Split groups by the factors of their parameters' rates; of two for one parameter the later counts."""
    factor_of = {p: factor for name, factor in factors for p in find_part(model, "SOLVER.LR_FACTORS", name).parameters()}
    split = []
    for group in groups:
        parts = {}
        for parameter in group["params"]:
            parts.setdefault(factor_of.get(parameter, 1.0), []).append(parameter)
        split += [{**group, "params": part, "lr": group["lr"] * factor} for factor, part in parts.items()]
    return split
