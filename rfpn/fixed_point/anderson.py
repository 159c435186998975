"""Anderson acceleration of a fixed-point iteration (Walker & Ni, 2011), the forward solver of deep equilibrium models."""

import torch
from torch import Tensor

from rfpn.fixed_point.iteration import FixedPoint, Update, as_rows, relative_residual


@torch.no_grad()
def anderson(
    update: Update,
    x: Tensor,
    h: Tensor,
    max_steps: int,
    tolerance: float,
    window: int = 5,
    damping: float = 1.0,
    ridge: float | None = None,
) -> FixedPoint:
    """Search h* = F(x, h*) for every sample on its own, without a graph. Type II, least squares over ``window`` steps.

    With the gaps g_i = F(h_i) − h_i and the differences ΔH, ΔG of the last m iterates,
    γ = argmin ‖g_t − ΔG γ‖² + ridge ‖γ ⊙ ‖ΔG‖‖²;  h_{t+1} = h_t + β g_t − (ΔH + β ΔG) γ.

    A sample is done once its residual ‖F(h) − h‖ / ‖F(h)‖ is at most ``tolerance``; it then keeps its iterate and
    stays in the batch, so that updates with batch statistics see all samples. Each sample returns its iterate of
    least residual: a diverging search gives back the best point it met, not converged.

    Args:
        update: F, maps x (R, ...) and h (R, ...) to the next state.
        x: (R, ...) drive. h: (R, ...) first state; not changed.
        max_steps: T, evaluations of F, at least 1.
        tolerance: relative, at least 0.
        window: m ≥ 1. damping: β in (0, 1]. ridge: relative to squared gap differences; None for 100 machine epsilons.

    Returns:
        FixedPoint whose state is F(x, previous), in float32 or wider.
    """
    wide = torch.promote_types(h.dtype, torch.float32)
    ridge = 100 * torch.finfo(wide).eps if ridge is None else ridge
    point = as_rows(h.to(wide))
    point_steps = point.new_zeros((len(point), window, point.shape[1]))
    gap_steps = torch.zeros_like(point_steps)
    best, best_previous = point, point
    residual = point.new_full((len(point),), float("inf"))
    steps = torch.zeros_like(residual, dtype=torch.int64)
    moving = torch.ones_like(residual, dtype=torch.bool)
    for t in range(max_steps):
        value = as_rows(update(x, point.view_as(h).to(h.dtype)).to(wide))
        gap = value - point
        change = relative_residual(value, point)
        # the first evaluation counts even if it is NaN, so that NaN is never hidden behind the start value
        better = moving & ((change < residual) | (t == 0))
        best = torch.where(better[:, None], value, best)
        best_previous = torch.where(better[:, None], point, best_previous)
        residual = torch.where(better, change, residual)
        steps += moving
        moving = moving & ~(change <= tolerance)
        if t + 1 == max_steps or not moving.any():
            break
        if t > 0:
            slot = (t - 1) % window
            point_steps[:, slot] = point - last_point
            gap_steps[:, slot] = gap - last_gap
        last_point, last_gap = point, gap
        proposal = point + damping * gap - _correction(point_steps[:, :t], gap_steps[:, :t], gap, damping, ridge)
        point = torch.where(moving[:, None], proposal, point)
    return FixedPoint(best.view_as(h), best_previous.view_as(h), steps, residual, residual <= tolerance)


def _correction(point_steps: Tensor, gap_steps: Tensor, gap: Tensor, damping: float, ridge: float) -> Tensor:
    """(ΔH + β ΔG) γ, (R, D), of differences (R, m, D) and gap (R, D); 0, a plain step, where γ is not finite."""
    norms = torch.linalg.vector_norm(gap_steps, dim=2)
    scale = norms.clamp(min=torch.finfo(norms.dtype).tiny)
    unit = gap_steps / scale[:, :, None]
    # only the cell may run in half precision
    with torch.autocast(gap.device.type, enabled=False):
        gram = unit @ unit.mT + ridge * torch.eye(unit.shape[1], dtype=unit.dtype, device=unit.device)
        # the variant without checks: one sample's NaN must not raise for all
        weights, _ = torch.linalg.solve_ex(gram, unit @ gap[:, :, None])
        weights = weights / scale[:, :, None]
        weights = torch.where(weights.isfinite().all(dim=1, keepdim=True), weights, 0.0)
        return ((point_steps + damping * gap_steps).mT @ weights)[:, :, 0]
