"""Per-pixel losses of the Pathfinder models."""

import torch
from torch import Tensor
from torch.nn import functional as F


def focal_loss(logits: Tensor, target: Tensor, gamma: float = 2.0) -> Tensor:
    """Mean over pixels of (1 − p)^γ · (−log p), p the softmax probability of the true class (Lin et al., 2017).

    Cross entropy for γ = 0. Computed in float32 or wider, also under autocast.

    Args:
        logits: (N, classes, H, W). target: (N, H, W) class indices, any integer type.
        gamma: γ, 0 or at least 1 (between them the gradient is infinite at p = 1).

    Raises:
        ValueError: for another γ.
    """
    check_gamma("focal loss γ", gamma)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    with torch.autocast(logits.device.type, enabled=False):
        entropy = F.cross_entropy(logits, target.long(), reduction="none")
        if gamma:
            entropy = (-torch.expm1(-entropy)) ** gamma * entropy
        return entropy.sum() / max(entropy.numel(), 1)


def check_gamma(name: str, gamma: float) -> None:
    """Raise ValueError, by this name, for a γ that :func:`focal_loss` cannot take."""
    if gamma != 0 and not gamma >= 1:
        raise ValueError(f"{name} must be 0 or at least 1, got {gamma}")
