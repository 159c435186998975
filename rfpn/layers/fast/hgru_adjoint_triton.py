"""The stages of :mod:`rfpn.layers.fast.hgru_adjoint_stages` as Triton kernels: same names, same arguments, float32."""

import torch
import triton
from torch import Tensor

from rfpn.layers.fast import hgru_adjoint_kernels as kernels
from rfpn.layers.fast import hgru_norm_kernels as norm_kernels
from rfpn.layers.fast.canvas_triton import (
    REDUCTION_BLOCK,
    join_sums,
    launch,
    slots_of,
)
from rfpn.layers.fast.hgru_adjoint_stages import InhibitGradients, NormCoefficients, TangentMoments, UpdateGradients
from rfpn.layers.fast.hgru_stages import Moments, Weights
from rfpn.layers.fast.spectral_triton import words

# pixels of a program and its warps: whole lines of memory; with tangents, as many as registers hold
WIDE, NARROW = {"block": 32, "warps": 8}, {"block": 16, "warps": 4}
OUTER_BLOCK, OUTER_CHUNK = 64, 1024  # pixels of one product, and of a program that adds products


def gate_tangent(h: Tensor, direction: Tensor, canvas: Tensor, w: Weights) -> None:
    """The tangent of h⊙g1 into ``canvas``. See :func:`rfpn.layers.fast.hgru_adjoint_stages.gate_tangent`."""
    launch(kernels.gate_tangent_kernel, h, canvas, h, direction, words(canvas), w.gate1, w.bias1, len(h))


def tangent_moments(z: Tensor, tz: Tensor, m: Moments, like: Tensor) -> TangentMoments:
    """Means of ż and z⊙ż, (C,). See :func:`rfpn.layers.fast.hgru_adjoint_stages.tangent_moments`."""
    slots = slots_of(like, REDUCTION_BLOCK)
    partial = like.new_empty((2, like.shape[1], slots))
    launch(
        norm_kernels.tangent_moments_kernel, like, z, words(z), words(tz), *m, partial, len(like), slots,
        block=REDUCTION_BLOCK,
    )
    return TangentMoments(*join_sums(partial) / (like.numel() // like.shape[1]))


def inhibit_tangent(
    z1: Tensor,
    tz1: Tensor,
    m1: Moments,
    t1: TangentMoments,
    x: Tensor,
    h: Tensor,
    direction: Tensor,
    canvas: Tensor,
    w: Weights,
) -> None:
    """The tangent of s into ``canvas``. See :func:`rfpn.layers.fast.hgru_adjoint_stages.inhibit_tangent`."""
    launch(
        kernels.inhibit_tangent_kernel, h, canvas, words(z1), words(tz1), *m1, *t1, x, h, direction, words(canvas),
        w.scale1, w.shift1, w.alpha, w.mu, len(h),
    )


def norm_coefficients(
    sums: Tensor, m: Moments, t: TangentMoments | None, scale: Tensor, count: int
) -> tuple[NormCoefficients, Tensor, Tensor]:
    """A batch norm's adjoint as factors. See :func:`rfpn.layers.fast.hgru_adjoint_stages.norm_coefficients`."""
    c, tangent = len(scale), t is not None
    out = sums.new_empty((9, c))
    with torch.cuda.device_of(sums):
        norm_kernels.norm_coefficients_kernel[(1,)](
            sums, m.rstd, *(t if tangent else m), scale, out, count, TANGENT=tangent, CHANNELS=triton.next_power_of_2(c), C=c
        )
    return NormCoefficients(out[:5], out[5:8]), out[8] if tangent else sums[1], sums[0]


def norm_gradient(
    dc: Tensor, dtc: Tensor | None, z: Tensor, tz: Tensor | None, m: Moments, k: NormCoefficients, canvas: Tensor
) -> None:
    """dz and dtz into ``canvas``. See :func:`rfpn.layers.fast.hgru_adjoint_stages.norm_gradient`."""
    entries, tangent = (len(dc) + 1) // 2, dtc is not None
    launch(
        norm_kernels.norm_gradient_kernel, dc, canvas, dc, dtc if tangent else dc, words(z), words(tz if tangent else z),
        *m, *k, words(canvas[:entries]), words(canvas[-entries:]), len(dc), TANGENT=tangent,
    )


def update_gradient(
    z2: Tensor, tz2: Tensor | None, m2: Moments, t2: TangentMoments | None, s: Tensor, ts: Tensor | None, h: Tensor,
    direction: Tensor | None, cotangent: Tensor, vector: Tensor | None, w: Weights,
) -> UpdateGradients:
    """Gradients by the update stage. See :func:`rfpn.layers.fast.hgru_adjoint_stages.update_gradient`."""
    tangent = direction is not None
    form = NARROW if tangent else WIDE
    dc, ds, dgate, dh = (torch.empty_like(h) for _ in range(4))
    dtc, dts, dtgate = (torch.empty_like(h) for _ in range(3)) if tangent else (None, None, None)
    count, slots = 9 if tangent else 6, slots_of(h, form["block"])
    partial = h.new_empty((count, h.shape[1], slots))
    # what does not exist is never read: anything of the right type may stand in its place
    t2, tz2, ts, others = (t2, tz2, ts, (direction, cotangent, vector)) if tangent else (m2, z2, s, (h, cotangent, h))
    launch(
        kernels.update_gradient_kernel, h, s, words(z2), words(tz2), *m2, *t2, words(s), words(ts), h, *others,
        w.gate2, w.bias2, w.kappa, w.gamma, w.omega, w.scale2, w.shift2, dc, dtc if tangent else dc, ds,
        dts if tangent else ds, dgate, dtgate if tangent else dgate, dh, partial, len(h), slots,
        **form, OUTER=w.outer, TANGENT=tangent,
    )
    sums = join_sums(partial)
    return UpdateGradients(dc, dtc, ds, dts, dgate, dtgate, dh, sums[:-4], sums[-4:])


def inhibit_gradient(
    z1: Tensor, tz1: Tensor | None, m1: Moments, t1: TangentMoments | None, x: Tensor, h: Tensor, direction: Tensor | None,
    y2: Tensor, ty2: Tensor | None, update: UpdateGradients, w: Weights,
) -> InhibitGradients:
    """Gradients by the inhibition stage. See :func:`rfpn.layers.fast.hgru_adjoint_stages.inhibit_gradient`."""
    tangent = direction is not None
    form = NARROW if tangent else WIDE
    dc, dx, dh = (torch.empty_like(h) for _ in range(3))
    dtc = torch.empty_like(h) if tangent else None
    count, slots = 7 if tangent else 4, slots_of(h, form["block"])
    partial = h.new_empty((count, h.shape[1], slots))
    launch(
        kernels.inhibit_gradient_kernel, h, z1, words(z1), words(tz1 if tangent else z1), *m1, *(t1 if tangent else m1), x, h,
        direction if tangent else h, words(y2), words(ty2 if tangent else y2), update.s,
        update.ts if tangent else update.s, update.h, w.scale1, w.shift1, w.alpha, w.mu, dc, dtc if tangent else dc, dx, dh,
        partial, len(h), slots, **form, TANGENT=tangent,
    )
    sums = join_sums(partial)
    return InhibitGradients(dc, dtc, dx, dh, sums[:-2], sums[-2:])


def gate_gradient(
    h: Tensor, direction: Tensor | None, y1: Tensor, ty1: Tensor | None, dh: Tensor, w: Weights
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Gradients by the gate stage. See :func:`rfpn.layers.fast.hgru_adjoint_stages.gate_gradient`."""
    tangent = direction is not None
    form = NARROW if tangent else WIDE
    da, out = torch.empty_like(h), torch.empty_like(h)
    dta = torch.empty_like(h) if tangent else None
    slots = slots_of(h, form["block"])
    partial = h.new_empty((1, h.shape[1], slots))
    launch(
        kernels.gate_gradient_kernel, h, y1, h, direction if tangent else h, words(y1), words(ty1 if tangent else y1), dh,
        w.gate1, w.bias1, da, dta if tangent else da, out, partial, len(h), slots, **form, TANGENT=tangent,
    )
    return da, dta, out, join_sums(partial)[0]


def outer(a: Tensor, b: Tensor, ta: Tensor | None, tb: Tensor | None) -> Tensor:
    """Σ a⊗b + ta⊗tb over samples and pixels, (C, C). See :func:`rfpn.layers.fast.hgru_adjoint_stages.outer`."""
    n, c, height, width = a.shape
    chunks, channels = triton.cdiv(height * width, OUTER_CHUNK), max(16, triton.next_power_of_2(c))
    partial = a.new_empty((n * chunks, c, c))
    with torch.cuda.device_of(a):
        kernels.outer_kernel[(n * chunks,)](
            a, b, a if ta is None else ta, b if tb is None else tb, partial, height * width, c,
            TANGENT=ta is not None, CHANNELS=channels, BLOCK=OUTER_BLOCK, CHUNK=OUTER_CHUNK, num_warps=4,
        )
    return partial.sum(0)
