"""Optimizers by configuration."""

import torch
from detectron2.config import CfgNode
from detectron2.solver import build_optimizer as build_sgd
from detectron2.solver.build import get_default_optimizer_params, maybe_add_gradient_clipping
from torch import nn

_ADAPTIVE = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}
OPTIMIZERS = ("SGD", *_ADAPTIVE)


def build_optimizer(cfg: CfgNode, model: nn.Module) -> torch.optim.Optimizer:
    """``SOLVER.OPTIMIZER``: Detectron2's SGD, or Adam/AdamW with the same parameter groups and gradient clipping."""
    name = cfg.SOLVER.OPTIMIZER
    if name == "SGD":
        return build_sgd(cfg, model)
    if name not in _ADAPTIVE:
        raise ValueError(f"SOLVER.OPTIMIZER must be one of {', '.join(OPTIMIZERS)}, got {name!r}")
    groups = get_default_optimizer_params(
        model,
        base_lr=cfg.SOLVER.BASE_LR,
        weight_decay_norm=cfg.SOLVER.WEIGHT_DECAY_NORM,
        bias_lr_factor=cfg.SOLVER.BIAS_LR_FACTOR,
        weight_decay_bias=cfg.SOLVER.WEIGHT_DECAY_BIAS,
    )
    optimizer = maybe_add_gradient_clipping(cfg, _ADAPTIVE[name])
    # one kernel for all parameters: a tenth of a small model's step on a CPU otherwise
    return optimizer(groups, lr=cfg.SOLVER.BASE_LR, weight_decay=cfg.SOLVER.WEIGHT_DECAY, fused=True)
