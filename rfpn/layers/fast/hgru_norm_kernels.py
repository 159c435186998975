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
    r, gain = channel(rstd, CHANNELS, C), channel(scale, CHANNELS, C)
    scaled = channel(sums + C, CHANNELS, C)
    mean, slope = gain * (channel(sums, CHANNELS, C) / count), gain * (scaled / count)
    if TANGENT:
        dtc, along = channel(sums + 2 * C, CHANNELS, C) / count, channel(sums + 3 * C, CHANNELS, C) / count
        tm, ts = channel(tmean, CHANNELS, C), channel(tslope, CHANNELS, C)
        through = r * (channel(sums + 4 * C, CHANNELS, C) / count - tm * dtc - ts * along)
        first, second = r * ts * gain, r * gain * along
        mean -= first * dtc + second * tm
        slope += gain * through - first * along - second * ts
        _store_row(out, 2, -r * first, CHANNELS, C)
        _store_row(out, 4, -r * second, CHANNELS, C)
        _store_row(out, 5, -r * gain * dtc, CHANNELS, C)
        _store_row(out, 6, r * gain, CHANNELS, C)
        _store_row(out, 7, -r * gain * along, CHANNELS, C)
        _store_row(out, 8, scaled + count * through, CHANNELS, C)
    _store_row(out, 0, -r * mean, CHANNELS, C)
    _store_row(out, 1, r * gain, CHANNELS, C)
    _store_row(out, 3, -r * slope, CHANNELS, C)


@triton.jit
def _store_row(out, row, column, CHANNELS: tl.constexpr, C: tl.constexpr):
    """Write a column (CHANNELS, 1) to a row of out (·, C)."""
    c = tl.arange(0, CHANNELS)[:, None]
    tl.store(out + row * C + c, column, mask=c < C)


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
