"""Triton kernels of a batch norm's tangent and of the adjoint of both, for :mod:`rfpn.layers.fast.hgru_adjoint_triton`."""

import triton
import triton.language as tl

from rfpn.layers.fast.canvas_triton import channel, load_words, place_pair, store_sums, store_words


@triton.jit
def tangent_moments_kernel(
    z, tz, mean, rstd, partial, samples, slots, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr
):
    """Σ ż and Σ n⊙ż, n the normalised z, over a program's pixels, into partial (2, C, slots)."""
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    z1, z2 = load_words(z, place, mask)
    t1, t2 = load_words(tz, place, mask)
    t2 = tl.where(other, t2, 0.0)
    m, r = channel(mean, CHANNELS, G[4]), channel(rstd, CHANNELS, G[4])
    store_sums(partial, 0, slot, slots, t1 + t2, CHANNELS, G[4])
    store_sums(partial, 1, slot, slots, r * ((z1 - m) * t1 + (z2 - m) * t2), CHANNELS, G[4])


@triton.jit
def norm_coefficients_kernel(
    sums, rstd, tmean, tslope, scale, out, count, TANGENT: tl.constexpr, CHANNELS: tl.constexpr, C: tl.constexpr
):
    """NormCoefficients, five rows and three, and the gradient of the scale into out (9, C); without TANGENT rows 0, 1, 3."""
    c = tl.arange(0, CHANNELS)
    mask = c < C
    r, gain = tl.load(rstd + c, mask=mask, other=0.0), tl.load(scale + c, mask=mask, other=0.0)
    mean, slope = tl.load(sums + c, mask=mask, other=0.0) / count, tl.load(sums + C + c, mask=mask, other=0.0) / count
    mean, slope = gain * mean, gain * slope
    if TANGENT:
        dtc = tl.load(sums + 2 * C + c, mask=mask, other=0.0) / count
        along = tl.load(sums + 3 * C + c, mask=mask, other=0.0) / count
        tm, ts = tl.load(tmean + c, mask=mask, other=0.0), tl.load(tslope + c, mask=mask, other=0.0)
        through = r * (tl.load(sums + 4 * C + c, mask=mask, other=0.0) / count - tm * dtc - ts * along)
        first, second = r * ts * gain, r * gain * along
        mean -= first * dtc + second * tm
        slope += gain * through - first * along - second * ts
        tl.store(out + 2 * C + c, -r * first, mask=mask)
        tl.store(out + 4 * C + c, -r * second, mask=mask)
        tl.store(out + 5 * C + c, -r * gain * dtc, mask=mask)
        tl.store(out + 6 * C + c, r * gain, mask=mask)
        tl.store(out + 7 * C + c, -r * gain * along, mask=mask)
        tl.store(out + 8 * C + c, tl.load(sums + C + c, mask=mask, other=0.0) + count * through, mask=mask)
    tl.store(out + c, -r * mean, mask=mask)
    tl.store(out + C + c, r * gain, mask=mask)
    tl.store(out + 3 * C + c, -r * slope, mask=mask)


@triton.jit
def norm_gradient_kernel(
    dc, dtc, z, tz, mean, rstd, a, b, canvas, tcanvas, samples,
    TANGENT: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    """dz and, with TANGENT, dtz into canvases; a (5, C) and b (3, C) are NormCoefficients."""
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    z1, z2 = load_words(z, place, mask)
    m, r = channel(mean, CHANNELS, G[4]), channel(rstd, CHANNELS, G[4])
    a0, a1, a3 = channel(a, CHANNELS, G[4]), channel(a + G[4], CHANNELS, G[4]), channel(a + 3 * G[4], CHANNELS, G[4])
    n1, n2 = (z1 - m) * r, (z2 - m) * r
    step = G[4] * G[0]
    value1 = a0 + a1 * tl.load(dc + flat, mask=mask, other=0.0) + a3 * n1
    value2 = a0 + a1 * tl.load(dc + flat + step, mask=other, other=0.0) + a3 * n2
    if TANGENT:
        t1, t2 = load_words(tz, place, mask)
        d1, d2 = tl.load(dtc + flat, mask=mask, other=0.0), tl.load(dtc + flat + step, mask=other, other=0.0)
        a2, a4 = channel(a + 2 * G[4], CHANNELS, G[4]), channel(a + 4 * G[4], CHANNELS, G[4])
        value1 += a2 * d1 + a4 * t1
        value2 += a2 * d2 + a4 * t2
        b0, b1, b2 = channel(b, CHANNELS, G[4]), channel(b + G[4], CHANNELS, G[4]), channel(b + 2 * G[4], CHANNELS, G[4])
        store_words(tcanvas, place, mask, other, b0 + b1 * d1 + b2 * n1, b0 + b1 * d2 + b2 * n2)
    store_words(canvas, place, mask, other, value1, value2)
