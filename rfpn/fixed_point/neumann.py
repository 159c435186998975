"""The Neumann series that inverts (I − Jᵀ) in recurrent back-propagation (P-Eq 4, P-SI§2)."""

from typing import Callable, NamedTuple

import torch
from torch import Tensor

from rfpn.fixed_point.iteration import sample_norm


class NeumannSum(NamedTuple):
    """u = Σ_k (Jᵀ)^k g and how the sum went.

    total: (R, ...) the sum, float32 or wider.
    length: (R,) int64, number of terms after g that were added, at most K.
    truncated: (R,) bool, a term outgrew its cotangent and the series was cut there.
    """

    total: Tensor
    length: Tensor
    truncated: Tensor


def add_term(total: Tensor, term: Tensor, limit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Add to each sample of ``total`` its term where that is finite and small enough.

    Args:
        total, term: (R, ...). limit: (R,), the largest norm of a term that is added.

    Returns:
        The new total (R, ...); the term, with zeros where it was not added; norms of the term as it came (R,).
    """
    norm = sample_norm(term)
    column = (-1,) + (1,) * (term.dim() - 1)
    # where, not a product: a term that overflowed must not reach the sum as NaN
    term = torch.where((norm <= limit).view(column), term, 0.0)
    # in this order: the sum takes its first operand's layout in memory, which terms have and later products want
    return term + total, term, norm


def neumann_series(
    transpose: Callable[[Tensor], Tensor],
    cotangent: Tensor,
    terms: int,
    growth_limit: float = 2.0,
    tolerance: float = 0.0,
    add: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = add_term,
) -> NeumannSum:
    """Sum u = Σ_{k=0..K} (Jᵀ)^k g ≈ (I − Jᵀ)⁻¹ g for every sample on its own.

    A sample's series ends for good with the first term whose norm exceeds ``growth_limit``·‖g‖, or is not finite;
    that term is left out, so ‖u‖ ≤ (1 + growth_limit·K)‖g‖ whatever J is. The limit is above 1 because terms of a
    non-normal contraction may grow before they shrink. Everything is relative to ‖g‖ of the same sample, so the
    result is linear in g and independent of the batch (the released code stops on absolute norms of the batch). In float32
    this holds for norms from 1e-18 to 1e18, whose squares have a value.

    Args:
        transpose: v (R, ...) -> Jᵀv (R, ...).
        cotangent: g = ∂L/∂h_T, (R, ...).
        terms: K ≥ 0.
        growth_limit: largest allowed ‖(Jᵀ)^k g‖ / ‖g‖, finite.
        tolerance: end a sample's series once ‖(Jᵀ)^k g‖ ≤ tolerance·‖g‖ (that term is still added); 0 sums all K
            terms without asking the device for anything.
        add: what does the work of :func:`add_term`.
    """
    dtype = torch.promote_types(cotangent.dtype, torch.float32)
    total = cotangent.to(dtype)
    term = total
    scale = sample_norm(cotangent)
    # an infinite term must not meet an infinite limit
    limit = (growth_limit * scale).clamp(max=torch.finfo(scale.dtype).max)
    summing = torch.ones_like(scale, dtype=torch.bool)
    settled = torch.zeros_like(summing)
    length = torch.zeros_like(summing, dtype=torch.int64)
    for _ in range(terms):
        total, term, norm = add(total, transpose(term.to(cotangent.dtype)).to(dtype), limit)
        # what ended before stays ended: no norm is below its limit of -1
        summing = norm <= limit
        length += summing
        if tolerance > 0:
            small = norm <= tolerance * scale
            settled |= summing & small
            summing &= ~small
            if not summing.any():
                break
        # nothing more for the others, though they may act on these
        limit = torch.where(summing, limit, -1.0)
    return NeumannSum(total, length, ~(summing | settled))
