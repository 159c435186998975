"""Running a recurrent update towards its fixed point h* = F(x, h*)  (P-Eq 1, 2)."""

from typing import Callable, NamedTuple

import torch
from torch import Tensor

Update = Callable[[Tensor, Tensor], Tensor]
"""F: drive x (R, ...), state h (R, ...) -> next state (R, ...)."""


class FixedPoint(NamedTuple):
    """A last iterate and how it was reached.

    state: (R, ...) last iterate.
    steps: (R,) int64, steps of processing each sample used.
    residual: (R,) ‖h_t − h_{t−1}‖ / ‖h_t‖ at each sample's last step; NaN where the state is not finite.
    converged: (R,) bool, residual at or below the tolerance.
    """

    state: Tensor
    steps: Tensor
    residual: Tensor
    converged: Tensor


def sample_norm(tensor: Tensor) -> Tensor:
    """Euclidean norm of every sample: (R, ...) -> (R,), in float32 or wider."""
    wide = tensor if tensor.dtype == torch.float64 else tensor.float()
    return torch.linalg.vector_norm(wide.flatten(1), dim=1)


def relative_residual(new: Tensor, old: Tensor) -> Tensor:
    """‖new − old‖ / ‖new‖ of every sample, (R, ...) -> (R,); 0 where both are zero."""
    difference = sample_norm(new.detach() - old.detach())
    tiny = torch.finfo(difference.dtype).tiny
    return difference / sample_norm(new.detach()).clamp(min=tiny)


def iterate(update: Update, x: Tensor, h: Tensor, steps: int) -> Tensor:
    """Apply ``h ← F(x, h)`` ``steps`` times and return the last state."""
    for _ in range(steps):
        h = update(x, h)
    return h


def iterate_until(update: Update, x: Tensor, h: Tensor, max_steps: int, tolerance: float) -> FixedPoint:
    """Iterate every sample until its own residual is at most ``tolerance``, ``max_steps`` at most.

    A settled sample leaves the batch, so that it costs nothing more and its result does not depend on its
    neighbours (as long as the update treats samples independently: batch statistics do not).
    A sample whose state is not finite runs on to ``max_steps`` and is reported as not converged.

    Args:
        update: F, maps x (R, ...) and h (R, ...) to the next state.
        x: (R, ...) drive.
        h: (R, ...) first state; not changed.
        max_steps: T, at least 0.
        tolerance: relative, > 0.
    """
    count = len(h)
    state = h.clone()
    steps = torch.zeros(count, dtype=torch.int64, device=h.device)
    residual = torch.full((count,), float("inf"), dtype=torch.float32, device=h.device)
    active = torch.arange(count, device=h.device)
    for t in range(1, max_steps + 1):
        if not len(active):
            break
        new = update(x, h)
        change = relative_residual(new, h).to(residual.dtype)
        state[active] = new.to(state.dtype)
        steps[active] = t
        residual[active] = change
        moving = ~(change <= tolerance)
        active, x, h = active[moving], x[moving], new[moving]
    return FixedPoint(state, steps, residual, residual <= tolerance)
