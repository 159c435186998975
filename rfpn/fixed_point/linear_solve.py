"""GMRES (Saad & Schultz, 1986) on the linear system that recurrent back-propagation poses (P-Eq 4)."""

import math
from typing import Callable, NamedTuple

import torch
from torch import Tensor

from rfpn.fixed_point.iteration import as_rows, sample_norm

# largest ‖u‖ / ‖g‖ for a growth limit of 1
_BOUND = 50.0


class LinearSolution(NamedTuple):
    """u with (I − Jᵀ) u ≈ g and how it was found.

    total: (R, ...) u, float32 or wider.
    length: (R,) int64, vector-Jacobian products that went into u, at most K.
    truncated: (R,) bool, the next iterate was too large or not finite and the search was cut there.
    residual: (R,) ‖g − (I − Jᵀ) u‖ / ‖g‖, as the small system gives it; 1 where no step was made, 0 where g = 0.
    """

    total: Tensor
    length: Tensor
    truncated: Tensor
    residual: Tensor


def linear_solve(
    transpose: Callable[[Tensor], Tensor],
    cotangent: Tensor,
    terms: int,
    growth_limit: float = 2.0,
    tolerance: float = 0.0,
    joint: bool = False,
) -> LinearSolution:
    """Solve (I − Jᵀ) u = g for every sample on its own, or for all of them as one, with at most K products Jᵀv.

    u minimises ‖g − (I − Jᵀ) u‖ over span{g, Jᵀg, …, (Jᵀ)^{K−1} g}, so it also serves where the Neumann series
    diverges. ‖u‖ ≤ 50·growth_limit·‖g‖ whatever J is (100‖g‖, as a contraction by 0.99 may need, with the default): a
    sample whose next iterate would exceed it, or is not finite, keeps the one before (g itself if there is none).
    All is relative to ‖g‖ of the same sample. Memory: K + 1 states.

    Args:
        transpose: v (R, ...) -> Jᵀv (R, ...).
        cotangent: g = ∂L/∂h_T, (R, ...).
        terms: K ≥ 0. growth_limit: see above.
        tolerance: end a sample's search once its residual is at most this; 0 goes on to K or to working precision.
        joint: for steps in which samples act on each other; length, truncated and residual are then alike for all.
    """
    if joint:
        one = linear_solve(lambda v: transpose(v[0])[None], cotangent[None], terms, growth_limit, tolerance)
        return LinearSolution(one.total[0], *(value.expand(len(cotangent)) for value in one[1:]))
    # the products' graph has its types already; the algebra here must keep its own
    with torch.autocast(cotangent.device.type, enabled=False):
        return _gmres(transpose, cotangent, terms, _BOUND * growth_limit, tolerance)


def _gmres(
    transpose: Callable[[Tensor], Tensor], cotangent: Tensor, terms: int, limit: float, tolerance: float
) -> LinearSolution:
    dtype = torch.promote_types(cotangent.dtype, torch.float32)
    g = as_rows(cotangent.to(dtype))
    # squares of small numbers vanish, of large ones overflow
    scale = torch.linalg.vector_norm(g, math.inf, dim=1, keepdim=True) if g.shape[1] else g.new_ones(len(g), 1)
    scale = torch.where(scale.isfinite() & (scale > 0), scale, 1.0)
    g = g / scale
    norm = sample_norm(g)
    floor = 10 * torch.finfo(dtype).eps
    basis = g.new_zeros((len(g), terms + 1, g.shape[1]))
    basis[:, 0] = g / norm.clamp(min=torch.finfo(dtype).tiny)[:, None]
    hessenberg = g.new_zeros((len(g), terms + 1, terms))
    weights = g.new_zeros((len(g), terms))
    residual = (norm != 0).to(dtype)
    length = torch.zeros_like(norm, dtype=torch.int64)
    solving = norm != 0
    truncated = torch.zeros_like(solving)
    for k in range(terms):
        vector = basis[:, k].view_as(cotangent)
        image = as_rows(vector - transpose(vector.to(cotangent.dtype)).to(dtype))
        size = sample_norm(image)
        image = torch.where((solving & size.isfinite())[:, None], image, 0.0)
        height = _arnoldi_step(basis, hessenberg, image, k)
        y, rest = _least_squares(hessenberg[:, : k + 2, : k + 1])
        accepted = solving & size.isfinite() & (torch.linalg.vector_norm(y, dim=1) <= limit)
        truncated |= solving & ~accepted
        weights[:, : k + 1] = torch.where(accepted[:, None], y, weights[:, : k + 1])
        residual = torch.where(accepted, rest, residual)
        length += accepted
        # a next direction lost in rounding means that the space is exhausted: u is exact, or the best there is
        solving = accepted & (rest > max(tolerance, floor)) & (height > floor * size)
        if tolerance > 0 and not solving.any():
            break
    total = norm[:, None] * torch.einsum("rk,rkd->rd", weights, basis[:, :terms])
    total = torch.where((length > 0)[:, None], total, g)
    return LinearSolution((scale * total).view_as(cotangent), length, truncated, residual)


def _arnoldi_step(basis: Tensor, hessenberg: Tensor, image: Tensor, k: int) -> Tensor:
    """Write column k of the Hessenberg matrix and basis vector k + 1; return that vector's norm before scaling, (R,)."""
    known = basis[:, : k + 1]
    for _ in range(2):  # the second Gram-Schmidt pass restores orthogonality to working precision
        overlap = torch.einsum("rkd,rd->rk", known, image)
        image = image - torch.einsum("rk,rkd->rd", overlap, known)
        hessenberg[:, : k + 1, k] += overlap
    height = torch.linalg.vector_norm(image, dim=1)
    hessenberg[:, k + 1, k] = height
    basis[:, k + 1] = image / height.clamp(min=torch.finfo(height.dtype).tiny)[:, None]
    return height


def _least_squares(hessenberg: Tensor) -> tuple[Tensor, Tensor]:
    """argmin ‖e_1 − H y‖ and the minimum: H (R, k + 1, k) -> y (R, k), (R,); not finite where H is singular."""
    q, r = torch.linalg.qr(hessenberg)
    y = torch.linalg.solve_triangular(r, q[:, :1].mT, upper=True)
    rest = -(hessenberg @ y)[:, :, 0]
    rest[:, 0] += 1
    return y[:, :, 0], torch.linalg.vector_norm(rest, dim=1)
