"""Lipschitz Coefficient Penalty (P-Eq 6, P-SI§1.2)."""

import torch
from torch import Tensor

from rfpn.fixed_point.iteration import SETTLED, sample_norm

REDUCTIONS = ("mean_square", "sum_square", "norm")
PROBES = ("ones", "sample_signs", "rademacher")


def column_sums(h: Tensor, h_previous: Tensor, probe: str = "ones") -> Tensor:
    """1ᵀJ with J = ∂h/∂h_previous, by one vector-Jacobian product that can be differentiated again.

    Other probes replace the vector of ones (:func:`probe_vector`).

    Args:
        h: (R, ...) state after a step. h_previous: (R, ...) the state before it.

    Returns:
        (R, ...) like ``h_previous``, in float32 or wider.
    """
    (sums,) = torch.autograd.grad(h, h_previous, probe_vector(h, probe), create_graph=True, materialize_grads=True)
    return sums if sums.dtype == torch.float64 else sums.float()


def probe_vector(h: Tensor, probe: str = "ones") -> Tensor:
    """The vector that :func:`column_sums` multiplies J with from the left, like ``h``.

    ``ones``: the paper's. ``sample_signs``: a random sign for each sample. Where a norm has the statistics of the batch,
    the sum of its output over the batch is constant, so ones see nothing of what passes through it. ``rademacher``: a
    random sign for each element, so that entries of opposite sign do not cancel systematically. ValueError for another.
    """
    if probe not in PROBES:
        raise ValueError(f"Lipschitz probe must be one of {', '.join(PROBES)}, got {probe!r}")
    if probe == "ones":
        return torch.ones_like(h)
    if probe == "sample_signs":
        return torch.ones_like(h) * _signs(h.new_empty((len(h),) + (1,) * (h.dim() - 1)))
    # contiguous: the same signs whatever order h has in memory
    return _signs(h)


def _signs(like: Tensor) -> Tensor:
    return torch.randint_like(like, 2, memory_format=torch.contiguous_format) * 2 - 1


def secant_quotients(ahead: Tensor, h: Tensor, h_previous: Tensor) -> Tensor:
    """‖F(h) − F(h_previous)‖ / ‖h − h_previous‖ of each sample: how much a step shrinks the last motion of the state.

    Column sums are diluted by all units at rest and cancel; this sees any motion that does not die out, whatever
    rotates or alternates in it. Motions below 0.01 of the state count as that long, or rounding would expand: at a fixed
    point that a solver found, whether it attracts or not, quotients are near 0.

    Args:
        ahead: (R, ...) F(h). h: (R, ...) F(h_previous). h_previous: (R, ...). Pass F of detached states for both, and let F
            be deterministic: two draws of dropout differ by no motion.

    Returns:
        (R,) in float32 or wider, NaN where ‖h‖ is not finite, with gradient through ``ahead`` and ``h`` as values of F; the
        denominator has none.
    """
    motion, size = sample_norm((h - h_previous).detach()), sample_norm(h.detach())
    # an infinite norm, of a state of 1e20 in float32, would make any motion look small
    least = (SETTLED * size).clamp(min=torch.finfo(size.dtype).tiny).masked_fill(size.isinf(), float("nan"))
    return sample_norm(ahead - h) / torch.maximum(motion, least)


def lipschitz_penalty(
    h: Tensor,
    h_previous: Tensor,
    coefficient: float = 0.9,
    reduction: str = "mean_square",
    probe: str = "ones",
    two_sided: bool = False,
) -> Tensor:
    """Penalise column sums of the Jacobian above λ: (1ᵀJ − λ)⁺ reduced to a scalar, float32 or wider.

    ``mean_square``: mean of squares over all elements, independent of R. ``sum_square``: their sum. ``norm``: the
    2-norm over all elements, the printed form. All are 0 for R = 0.

    Blind spots: only signed column sums are seen. Opposite signs cancel (J = [[2, −2], [−2, 2]] has spectral radius 4
    and penalty 0), and negative sums are free, so that an eigenvalue may pass −1 and the states settle into a cycle of
    two. ``two_sided`` closes the second: (|1ᵀJ| − λ)⁺. Judge convergence by the residual, never by the penalty.

    Args:
        h, h_previous: (R, ...) states after and before the last step.
        coefficient: λ in [0, 1).
        reduction: one of ``REDUCTIONS``. probe: one of ``PROBES``. two_sided: sums below −λ count too.

    Raises:
        ValueError: naming the setting that is out of range.
    """
    if not 0 <= coefficient < 1:
        raise ValueError(f"Lipschitz coefficient λ must lie in [0, 1), got {coefficient}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"Lipschitz reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    return penalty_of_sums(column_sums(h, h_previous, probe), coefficient, reduction, two_sided)


def penalty_of_sums(sums: Tensor, coefficient: float, reduction: str, two_sided: bool = False) -> Tensor:
    """:func:`lipschitz_penalty` of column sums (R, ...) that are known already, with settings that were checked."""
    excess = ((sums.abs() if two_sided else sums) - coefficient).clamp(min=0)
    total = excess.square().sum()
    if reduction == "norm":
        # the gradient of a norm at zero is NaN in a double backward: leave zero alone
        zero = total == 0
        return torch.where(zero, 0.0, torch.where(zero, 1.0, total).sqrt())
    return total if reduction == "sum_square" else total / max(excess.numel(), 1)
