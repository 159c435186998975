"""Triton kernels of :mod:`rfpn.layers.fast.hgru_adjoint_triton`.

Names are those of the torch form. Everything is linear in the incoming cotangents, which are zero where no pixel or
sample exists, so sums need no mask.
"""

import triton
import triton.language as tl

from rfpn.layers.fast.canvas_triton import (
    channel, load_words, matrix, mix, place_pair, softplus, store_sums, store_words,
)


@triton.jit
def gate_tangent_kernel(
    h, direction, canvas, gate1, bias1, samples, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr
):
    """The tangent of h⊙g1 along ``direction``, (N, C, H, W), into ``canvas``."""
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    weight, bias = matrix(gate1, CHANNELS, G[4], False), channel(bias1, CHANNELS, G[4])
    for k in tl.static_range(2):
        exists = mask if k == 0 else other
        at = flat + k * G[4] * G[0]
        v = tl.load(h + at, mask=exists, other=0.0)
        tv = tl.load(direction + at, mask=exists, other=0.0)
        g = tl.sigmoid(mix(weight, v) + bias)
        value = tv * g + v * g * (1 - g) * mix(weight, tv)
        if k == 0:
            first = value
    store_words(canvas, place, mask, other, first, value)


@triton.jit
def inhibit_tangent_kernel(
    z1, tz1, mean, rstd, tmean, tslope, x, h, direction, canvas, scale, shift, alpha, mu, samples,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    """The tangent of s along ``direction``, (N, C, H, W), into ``canvas``."""
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    r, gain, a = channel(rstd, CHANNELS, G[4]), channel(scale, CHANNELS, G[4]), channel(alpha, CHANNELS, G[4])
    z, other_z = load_words(z1, place, mask)
    tz, other_tz = load_words(tz1, place, mask)
    for k in tl.static_range(2):
        exists = mask if k == 0 else other
        at = flat + k * G[4] * G[0]
        n = ((z if k == 0 else other_z) - channel(mean, CHANNELS, G[4])) * r
        c = n * gain + channel(shift, CHANNELS, G[4])
        tangent = tz if k == 0 else other_tz
        tc = gain * r * (tangent - channel(tmean, CHANNELS, G[4]) - n * channel(tslope, CHANNELS, G[4]))
        t = a * tl.load(h + at, mask=exists, other=0.0) + channel(mu, CHANNELS, G[4])
        inner = c * t
        slope = -tl.sigmoid(tl.load(x + at, mask=exists, other=0.0) - softplus(inner)) * tl.sigmoid(inner)
        value = slope * (tc * t + c * a * tl.load(direction + at, mask=exists, other=0.0))
        if k == 0:
            first = value
    store_words(canvas, place, mask, other, first, value)


@triton.jit
def _dual_update(dm, dtm, outer, g, gap, slope, te, tg_in, tv, OUTER: tl.constexpr):
    """dte, de, dtg_in, dg_in and dh of the update with a tangent."""
    gate_slope = g * (1 - g)
    tk, tg = slope * te, gate_slope * tg_in
    if OUTER:
        dtm *= outer
        dm += (1 - outer) * ((1 - g) * tv + g * tk + tg * gap) * dtm
    dte = slope * g * dtm
    de = slope * (g * dm + tg * dtm) + (1 - slope) * te * dte
    dg_in = gate_slope * (gap * dm + (tk - tv) * dtm + (1 - 2 * g) * tg_in * gap * dtm)
    return dte, de, gate_slope * gap * dtm, dg_in, (1 - g) * dm - tg * dtm


@triton.jit
def update_gradient_kernel(
    z2, tz2, mean, rstd, tmean, tslope, s_canvas, ts_canvas, h, direction, cotangent, vector,
    gate2, bias2, kappa_, gamma_, omega_, scale, shift, to_c, to_tc, to_s, to_ts, to_gate, to_tgate, to_h, partial,
    samples, slots,
    OUTER: tl.constexpr, TANGENT: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    """Cotangents by the update (UpdateGradients), (N, C, H, W); partial: 2 (TANGENT: 5) rows of sums, 4 of scales."""
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    weight, transposed = matrix(gate2, CHANNELS, G[4], False), matrix(gate2, CHANNELS, G[4], True)
    kappa, gamma, omega = channel(kappa_, CHANNELS, G[4]), channel(gamma_, CHANNELS, G[4]), channel(omega_, CHANNELS, G[4])
    r, gain = channel(rstd, CHANNELS, G[4]), channel(scale, CHANNELS, G[4])
    z, other_z = load_words(z2, place, mask)
    inner, other_inner = load_words(s_canvas, place, mask)
    tz, other_tz = load_words(tz2, place, mask)
    tinner, other_tinner = load_words(ts_canvas, place, mask)
    for k in tl.static_range(2):
        exists = mask if k == 0 else other
        at = flat + k * G[4] * G[0]
        state = tl.load(h + at, mask=exists, other=0.0)
        dm = tl.load(cotangent + at, mask=exists, other=0.0)
        s = inner if k == 0 else other_inner
        n = ((z if k == 0 else other_z) - channel(mean, CHANNELS, G[4])) * r
        c = n * gain + channel(shift, CHANNELS, G[4])
        g = tl.sigmoid(mix(weight, s) + channel(bias2, CHANNELS, G[4]))
        excite = gamma + omega * s
        e = kappa * s + excite * c
        gap, slope = softplus(e) - state, tl.sigmoid(e)
        outer = tl.sigmoid(state + g * gap) if OUTER else 1.0
        dm *= outer
        if TANGENT:
            tv, dtm = tl.load(direction + at, mask=exists, other=0.0), tl.load(vector + at, mask=exists, other=0.0)
            tangent, ts = tz if k == 0 else other_tz, tinner if k == 0 else other_tinner
            tc = gain * r * (tangent - channel(tmean, CHANNELS, G[4]) - n * channel(tslope, CHANNELS, G[4]))
            te = kappa * ts + gamma * tc + omega * (ts * c + s * tc)
            dte, de, dtg_in, dg_in, dh = _dual_update(dm, dtm, outer, g, gap, slope, te, mix(weight, ts), tv, OUTER)
            dc, dtc = de * excite + dte * omega * ts, dte * excite
            direct = kappa + omega * c
            tl.store(to_tc + at, dtc, mask=exists)
            tl.store(to_ts + at, dte * direct + mix(transposed, dtg_in), mask=exists)
            tl.store(to_tgate + at, dtg_in, mask=exists)
            tl.store(to_s + at, de * direct + dte * omega * tc + mix(transposed, dg_in), mask=exists)
            tl.store(to_h + at, dh, mask=exists)
            tangent = tl.where(exists, tangent, 0.0)
            sums = (
                tl.sum(dc, 1), tl.sum(dc * n, 1), tl.sum(dtc, 1), tl.sum(dtc * n, 1), tl.sum(dtc * tangent, 1),
                tl.sum(de * s + dte * ts, 1), tl.sum(de * c + dte * tc, 1),
                tl.sum(de * s * c + dte * (ts * c + s * tc), 1), tl.sum(dg_in, 1),
            )
        else:
            de, dg_in = slope * g * dm, g * (1 - g) * gap * dm
            dc = de * excite
            tl.store(to_s + at, de * (kappa + omega * c) + mix(transposed, dg_in), mask=exists)
            tl.store(to_h + at, (1 - g) * dm, mask=exists)
            ds = de * s
            sums = (tl.sum(dc, 1), tl.sum(dc * n, 1), tl.sum(ds, 1), tl.sum(de * c, 1), tl.sum(ds * c, 1), tl.sum(dg_in, 1))
        tl.store(to_c + at, dc, mask=exists)
        tl.store(to_gate + at, dg_in, mask=exists)
        if k == 0:
            first = sums
    _store_all(partial, slot, slots, first, sums, 9 if TANGENT else 6, CHANNELS, G[4])


@triton.jit
def _store_all(partial, slot, slots, first, second, COUNT: tl.constexpr, CHANNELS: tl.constexpr, C: tl.constexpr):
    """Write first[i] + second[i], (CHANNELS,) each, to row i of partial (COUNT, C, slots)."""
    c = tl.arange(0, CHANNELS)
    for i in tl.static_range(COUNT):
        tl.store(partial + (i * C + c) * slots + slot, first[i] + second[i], mask=c < C)


@triton.jit
def inhibit_gradient_kernel(
    z1, tz1, mean, rstd, tmean, tslope, x, h, direction, y2, ty2, update_s, update_ts, update_h,
    scale, shift, alpha, mu, to_c, to_tc, to_x, to_h, partial, samples, slots,
    TANGENT: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    """Cotangents by the inhibition (InhibitGradients), (N, C, H, W); partial: 2 (TANGENT: 5) rows of sums, 2 of scales."""
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    r, gain, a = channel(rstd, CHANNELS, G[4]), channel(scale, CHANNELS, G[4]), channel(alpha, CHANNELS, G[4])
    z, other_z = load_words(z1, place, mask)
    tz, other_tz = load_words(tz1, place, mask)
    y, other_y = load_words(y2, place, mask)
    ty, other_ty = load_words(ty2, place, mask)
    for k in tl.static_range(2):
        exists = mask if k == 0 else other
        at = flat + k * G[4] * G[0]
        state = tl.load(h + at, mask=exists, other=0.0)
        n = ((z if k == 0 else other_z) - channel(mean, CHANNELS, G[4])) * r
        c = n * gain + channel(shift, CHANNELS, G[4])
        t = a * state + channel(mu, CHANNELS, G[4])
        product = c * t
        inner = tl.sigmoid(product)
        q = tl.sigmoid(tl.load(x + at, mask=exists, other=0.0) - softplus(product))
        ds = tl.where(exists, y if k == 0 else other_y, 0.0) + tl.load(update_s + at, mask=exists, other=0.0)
        dq = q * ds
        if TANGENT:
            tv = tl.load(direction + at, mask=exists, other=0.0)
            tangent = tl.where(exists, tz if k == 0 else other_tz, 0.0)
            tc = gain * r * (tangent - channel(tmean, CHANNELS, G[4]) - n * channel(tslope, CHANNELS, G[4]))
            dts = tl.where(exists, ty if k == 0 else other_ty, 0.0) + tl.load(update_ts + at, mask=exists, other=0.0)
            tr = tc * t + c * a * tv
            dtq = q * dts
            dq -= (1 - q) * inner * tr * dtq
            dtr = -inner * dtq
            dr = -inner * dq + (1 - inner) * tr * dtr
            dtc = dtr * t
            dc, dt = dr * t + dtr * a * tv, dr * c + dtr * tc
            tl.store(to_tc + at, dtc, mask=exists)
            sums = (
                tl.sum(dc, 1), tl.sum(dc * n, 1), tl.sum(dtc, 1), tl.sum(dtc * n, 1), tl.sum(dtc * tangent, 1),
                tl.sum(dt * state + dtr * c * tv, 1), tl.sum(dt, 1),
            )
        else:
            dr = -inner * dq
            dc, dt = dr * t, dr * c
            sums = (tl.sum(dc, 1), tl.sum(dc * n, 1), tl.sum(dt * state, 1), tl.sum(dt, 1))
        tl.store(to_c + at, dc, mask=exists)
        tl.store(to_x + at, dq, mask=exists)
        tl.store(to_h + at, tl.load(update_h + at, mask=exists, other=0.0) + dt * a, mask=exists)
        if k == 0:
            first = sums
    _store_all(partial, slot, slots, first, sums, 7 if TANGENT else 4, CHANNELS, G[4])


@triton.jit
def gate_gradient_kernel(
    h, direction, y1, ty1, dh, gate1, bias1, to_a, to_ta, to_h, partial, samples, slots,
    TANGENT: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    """Cotangents of U1∗h + b1, of its tangent and of h, (N, C, H, W); partial (1, C, slots): sums of the first."""
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    weight, bias = matrix(gate1, CHANNELS, G[4], False), channel(bias1, CHANNELS, G[4])
    transposed = matrix(gate1, CHANNELS, G[4], True)
    y, other_y = load_words(y1, place, mask)
    ty, other_ty = load_words(ty1, place, mask)
    for k in tl.static_range(2):
        exists = mask if k == 0 else other
        at = flat + k * G[4] * G[0]
        state = tl.load(h + at, mask=exists, other=0.0)
        g = tl.sigmoid(mix(weight, state) + bias)
        slope = g * (1 - g)
        dy = tl.where(exists, y if k == 0 else other_y, 0.0)
        da, total = state * slope * dy, tl.load(dh + at, mask=exists, other=0.0) + g * dy
        if TANGENT:
            tv = tl.load(direction + at, mask=exists, other=0.0)
            ta = mix(weight, tv)
            dty = tl.where(exists, ty if k == 0 else other_ty, 0.0)
            tl.store(to_ta + at, state * slope * dty, mask=exists)
            da += slope * (tv + state * (1 - 2 * g) * ta) * dty
            total += slope * ta * dty
        tl.store(to_a + at, da, mask=exists)
        tl.store(to_h + at, total + mix(transposed, da), mask=exists)
        if k == 0:
            first = da
    store_sums(partial, 0, slot, slots, first + da, CHANNELS, G[4])


@triton.jit
def outer_kernel(
    a, b, ta, tb, partial, pixels, channels,
    TANGENT: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):
    """Σ a⊗b, with TANGENT + ta⊗tb, over CHUNK pixels of a sample, into partial (programs, C, C)."""
    chunks = tl.cdiv(pixels, CHUNK)
    n, start = tl.program_id(0) // chunks, tl.program_id(0) % chunks * CHUNK
    c, p = tl.arange(0, CHANNELS)[:, None], start + tl.arange(0, BLOCK)[None, :]
    flat = (n * channels + c).to(tl.int64) * pixels + p
    total = tl.zeros((CHANNELS, CHANNELS), tl.float32)
    for offset in range(0, CHUNK, BLOCK):
        mask = (c < channels) & (p + offset < pixels)
        total += _outer_product(a, b, flat + offset, mask)
        if TANGENT:
            total += _outer_product(ta, tb, flat + offset, mask)
    row, column = tl.arange(0, CHANNELS)[:, None], tl.arange(0, CHANNELS)[None, :]
    place = (tl.program_id(0).to(tl.int64) * channels + row) * channels + column
    tl.store(partial + place, total, mask=(row < channels) & (column < channels))


@triton.jit
def _outer_product(a, b, at, mask):
    """Σ over a tile's pixels of a⊗b."""
    left, right = tl.load(a + at, mask=mask, other=0.0), tl.load(b + at, mask=mask, other=0.0)
    return tl.dot(left, tl.trans(right), input_precision="ieee")
