"""The stages of :mod:`rfpn.layers.fast.hgru_stages` as Triton kernels: same names, same arguments, float32."""

import torch
from torch import Tensor

from rfpn.layers.fast import hgru_kernels as kernels
from rfpn.layers.fast.canvas_triton import (
    BLOCK,
    REDUCTION_BLOCK,
    join_sums,
    launch,
    slots_of,
)
from rfpn.layers.fast.hgru_stages import Factors, Moments, Weights
from rfpn.layers.fast.series_triton import add_term as add_term
from rfpn.layers.fast.spectral_triton import words


def gate(h: Tensor, canvas: Tensor, w: Weights) -> None:
    """h⊙σ(U1∗h + b1) into ``canvas``; h (N, C, H, W). See :func:`rfpn.layers.fast.hgru_stages.gate`."""
    launch(kernels.gate_kernel, h, canvas, h, words(canvas), w.gate1, w.bias1, len(h))


def moments(canvas: Tensor, like: Tensor, epsilon: float) -> Moments:
    """Statistics (C,) over the samples of ``canvas``. See :func:`rfpn.layers.fast.hgru_stages.moments`."""
    n, c, h, w = like.shape
    slots = slots_of(like, REDUCTION_BLOCK)
    partial, out = like.new_empty((2, c, slots)), like.new_empty((2, c))
    launch(kernels.moments_kernel, like, canvas, words(canvas), partial, n, slots, block=REDUCTION_BLOCK)
    with torch.cuda.device_of(like):
        kernels.join_moments_kernel[(c,)](
            partial, out, n, slots, n * h * w, epsilon, BLOCK=REDUCTION_BLOCK, CHUNK=1024, G=(h * w,) * 4 + (c,)
        )
    return Moments(*out)


def inhibit(z1: Tensor, m1: Moments, x: Tensor, h: Tensor, canvas: Tensor, w: Weights) -> None:
    """s = ζ(x − ζ(c1⊙(α h + μ))) into ``canvas``. See :func:`rfpn.layers.fast.hgru_stages.inhibit`."""
    launch(
        kernels.inhibit_kernel, h, canvas, words(z1), *m1, x, h, words(canvas), w.scale1, w.shift1, w.alpha, w.mu, len(h)
    )


def update(z2: Tensor, m2: Moments, s_canvas: Tensor, h: Tensor, w: Weights, canvas: Tensor | None) -> Tensor:
    """The next state, (N, C, H, W); with ``canvas`` also its gate. See :func:`rfpn.layers.fast.hgru_stages.update`."""
    out = torch.empty_like(h)
    launch(
        kernels.update_kernel, h, s_canvas, words(z2), *m2, words(s_canvas), h, out,
        out if canvas is None else words(canvas), w.scale2, w.shift2, w.gate2, w.bias2, w.kappa, w.gamma, w.omega,
        w.gate1, w.bias1, len(h), OUTER=w.outer, GATE=canvas is not None,
    )
    return out


def linearize(
    z1: Tensor, m1: Moments, z2: Tensor, m2: Moments, s_canvas: Tensor, x: Tensor, h: Tensor, w: Weights, dtype: torch.dtype
) -> tuple[Tensor, Factors]:
    """The next state and J's factors, (N, C, H, W) each. See :func:`rfpn.layers.fast.hgru_stages.linearize`."""
    out, factors = torch.empty_like(h), h.new_empty((len(Factors._fields), *h.shape), dtype=dtype)
    launch(
        kernels.linearize_kernel, h, s_canvas, words(z1), *m1, words(z2), *m2, words(s_canvas), x, h, out, *factors,
        *w[:13], len(h), OUTER=w.outer, block=16, warps=4,
    )
    return out, Factors(*factors)


def product_sums(v: Tensor, factor: Tensor, z: Tensor) -> Tensor:
    """Σ factor⊙v and Σ factor⊙v⊙z, (2, C). See :func:`rfpn.layers.fast.hgru_stages.product_sums`."""
    slots = slots_of(v, REDUCTION_BLOCK)
    partial = v.new_empty((2, v.shape[1], slots))
    launch(kernels.product_sums_kernel, v, v, v, factor, z, partial, len(v), slots, block=REDUCTION_BLOCK)
    return join_sums(partial)


def norm_adjoint(v: Tensor, factor: Tensor, z: Tensor, sums: Tensor, gain: Tensor, canvas: Tensor) -> None:
    """A batch norm's adjoint into ``canvas``. See :func:`rfpn.layers.fast.hgru_stages.norm_adjoint`."""
    count = v.numel() // v.shape[1]
    launch(kernels.norm_adjoint_kernel, v, canvas, v, factor, z, sums, gain, words(canvas), len(v), count)


def through_excitation(y2: Tensor, v: Tensor, factors: Factors, w: Weights) -> tuple[Tensor, Tensor]:
    """ds, (N, C, H, W), and its sums, (2, C). See :func:`rfpn.layers.fast.hgru_stages.through_excitation`."""
    slots = slots_of(v, BLOCK)
    partial, ds = v.new_empty((2, v.shape[1], slots)), torch.empty_like(v)
    launch(
        kernels.through_excitation_kernel, v, y2, words(y2), v, factors.direct, factors.gate2, factors.inhibit, factors.z1, ds,
        w.gate2, partial, len(v), slots,
    )
    return ds, join_sums(partial)


def through_inhibition(y1: Tensor, v: Tensor, ds: Tensor, factors: Factors, w: Weights) -> Tensor:
    """Jᵀv, (N, C, H, W). See :func:`rfpn.layers.fast.hgru_stages.through_inhibition`."""
    out = torch.empty_like(v)
    launch(
        kernels.through_inhibition_kernel, v, y1, words(y1), v, ds, factors.lose, factors.scale, factors.gate1,
        factors.slope1, out, w.gate1, len(v),
    )
    return out
