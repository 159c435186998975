"""Running a recurrent update towards its fixed point h* = F(x, h*)  (P-Eq 1, 2)."""

from typing import Callable, NamedTuple

import torch
from torch import Tensor

Update = Callable[[Tensor, Tensor], Tensor]
"""F: drive x (R, ...), state h (R, ...) -> next state (R, ...)."""

# residual up to which a sample counts as converged where no tolerance is in force
SETTLED = 0.01


def stopping_tolerance(solver: str, solver_tolerance: float, test_tolerance: float) -> float:
    """Residual at which a sample may stop; 0 for never.

    Args:
        solver: ``steps`` or ``anderson``, which alone stops at ``solver_tolerance``.
        test_tolerance: goes before the solver's; 0 in training, and for none.
    """
    return test_tolerance or (solver_tolerance if solver == "anderson" else 0.0)


class FixedPoint(NamedTuple):
    """A state h = F(x, previous) and how it was reached.

    state: (R, ...) the state. previous: (R, ...) the state that F was applied to.
    steps: (R,) int64, steps of processing each sample used.
    residual: (R,) ‖state − previous‖ / ‖state‖; NaN where the state, or its norm, is not finite.
    converged: (R,) bool, residual at or below the tolerance.
    """

    state: Tensor
    previous: Tensor
    steps: Tensor
    residual: Tensor
    converged: Tensor


def sample_norm(tensor: Tensor) -> Tensor:
    """Euclidean norm of every sample: (R, ...) -> (R,), in float32 or wider."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    if tensor.dim() == 1:
        return tensor.abs().to(wide)
    # no flattening: that would copy states whose channels come last in memory
    return torch.linalg.vector_norm(tensor, dim=tuple(range(1, tensor.dim())), dtype=wide)


def as_rows(tensor: Tensor) -> Tensor:
    """A row for every sample: (R, ...) -> (R, D), and (R,) -> (R, 1)."""
    return tensor[:, None] if tensor.dim() == 1 else tensor.flatten(1)


def relative_residual(new: Tensor, old: Tensor) -> Tensor:
    """‖new − old‖ / ‖new‖ of every sample, (R, ...) -> (R,); 0 where both are zero, NaN where ‖new‖ is not finite.

    In float32 for norms from 1e-15 to 1e18, whose squares have a value: smaller motions count as none.
    """
    difference, norm = sample_norm(new.detach() - old.detach()), sample_norm(new.detach())
    tiny = torch.finfo(norm.dtype).tiny
    # a state of 1e20 has an infinite norm in float32: over it, any difference would look settled
    return (difference / norm.clamp(min=tiny)).masked_fill(~norm.isfinite(), float("nan"))


def unconverged(residual: Tensor, tolerance: float) -> Tensor:
    """Which residuals (R,) are above the tolerance, or above 0.01 where it is 0, or NaN: (R,) bool."""
    return ~(residual <= (tolerance or SETTLED))


def iterate(update: Update, x: Tensor, h: Tensor, steps: int) -> Tensor:
    """Apply ``h ← F(x, h)`` ``steps`` times and return the last state."""
    for _ in range(steps):
        h = update(x, h)
    return h


def iterate_until(
    update: Update, x: Tensor, h: Tensor, max_steps: int, tolerance: float, independent: bool = True
) -> FixedPoint:
    """Iterate every sample until its own residual is at most ``tolerance``, ``max_steps`` at most.

    A settled sample keeps its state, so its result does not depend on its neighbours; it also leaves the batch, and is
    computed no more. A sample whose state is not finite runs on to ``max_steps`` and is not converged.

    Args:
        update: F, maps x (R, ...) and h (R, ...) to the next state.
        x: (R, ...) drive.
        h: (R, ...) first state; not changed.
        max_steps: T, at least 0.
        tolerance: relative, > 0.
        independent: False for an update that uses statistics of the batch: settled samples then stay in the batch.
    """
    state = previous = h
    steps = torch.zeros(len(h), dtype=torch.int64, device=h.device)
    residual = torch.full((len(h),), float("inf"), dtype=torch.promote_types(h.dtype, torch.float32), device=h.device)
    active = torch.arange(len(h), device=h.device)
    for t in range(1, max_steps + 1):
        old = state[active]
        new = update(x[active], old) if independent else update(x, state)[active]
        new = new.to(h.dtype)
        change = relative_residual(new, old)
        # copies, not writes in place: autograd may be recording
        previous = previous.index_copy(0, active, old)
        state = state.index_copy(0, active, new)
        steps[active] = t
        residual[active] = change
        active = active[~(change <= tolerance)]
        # at the end: no samples at all still take a step, whose parameters then get a gradient
        if not len(active):
            break
    return FixedPoint(state, previous, steps, residual, residual <= tolerance)
