"""Triton kernels of :mod:`rfpn.layers.fast.gala_adjoint_triton`.

Names are those of the torch form. A tangent lies ``stack`` elements behind its value.
"""

import triton
import triton.language as tl

from rfpn.layers.fast.gala_kernels import (
    TAPS,
    dot,
    group_mean,
    load,
    neighbours,
    normalise,
    roi,
    row,
    softplus,
)


@triton.jit
def _column(pointer, p, rows):
    return tl.load(pointer + p, mask=p < rows, other=0.0)[:, None]


@triton.jit(do_not_specialize=["rows"])
def gate_dual_kernel(
    channel, channel_bias, kernel, wheres, bias, h, y, rows,
    C: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):
    """h⊙g1 and its tangent, (2·pixels, C), from the channel path's first layer and the spatial path's output."""
    p = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = (p < rows)[:, None]
    stack = rows.to(tl.int64)
    first = tl.program_id(1) * CHUNK
    c, r = first + tl.arange(0, CHUNK), tl.arange(0, R)
    small, flat = p.to(tl.int64)[:, None] * R + r[None, :], p.to(tl.int64)[:, None] * C + c[None, :]
    weights = tl.load(kernel + c[None, :] * R + r[:, None])
    a = load(channel, small, mask) + row(channel_bias, R)
    what = dot(softplus(a), weights)
    twhat = dot(tl.sigmoid(a) * load(channel + stack * R, small, mask), weights)
    where, twhere = _column(wheres, p, rows), _column(wheres + stack, p, rows)
    g = tl.sigmoid(what * where + row(bias + first, CHUNK))
    state, direction = load(h, flat, mask), load(h + stack * C, flat, mask)
    tl.store(y + flat, state * g, mask=mask)
    tangent = direction * g + state * g * (1 - g) * (twhat * where + what * twhere)
    tl.store(y + stack * C + flat, tangent, mask=mask)


@triton.jit
def _dual_norm(tz, n, rstd, HW: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr):
    """Tangent of a group norm and the mean of n⊙ż; n, tz zero outside the RoI."""
    tmean, tslope = group_mean(tz, HW, CHUNK, GROUP), group_mean(n * tz, HW, CHUNK, GROUP)
    return rstd[None, :] * (tz - tmean[None, :] - n * tslope[None, :]), tslope[None, :]


@triton.jit
def _norm_gradient(dc, n, rstd, scale, HW: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr):
    dn = dc * scale
    mean, slope = group_mean(dn, HW, CHUNK, GROUP), group_mean(dn * n, HW, CHUNK, GROUP)
    return rstd[None, :] * (dn - mean[None, :] - n * slope[None, :])


@triton.jit
def _dual_norm_gradient(
    dc, dtc, n, tz, tn, tslope, rstd, scale, HW: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr
):
    """Cotangents of z and ż from those of c and ċ (gala_adjoint_stages); all zero outside the RoI."""
    dtn = dtc * scale
    along = group_mean(n * dtn, HW, CHUNK, GROUP)[None, :]
    dtz = rstd[None, :] * (dtn - group_mean(dtn, HW, CHUNK, GROUP)[None, :] - n * along)
    dn = dc * scale - rstd[None, :] * (tslope * dtn + along * tz)
    slope = group_mean(n * dn, HW, CHUNK, GROUP) + group_mean(dtn * tn, HW, CHUNK, GROUP)
    return rstd[None, :] * (dn - group_mean(dn, HW, CHUNK, GROUP)[None, :] - n * slope[None, :]), dtz


@triton.jit(do_not_specialize=["rois"])
def inhibit_dual_kernel(
    z1, x, h, s, scale, shift, alpha, mu, epsilon, rois,
    HW: tl.constexpr, PIXELS: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
):
    """s = ζ(x − c1⊙(α h + μ)) and its tangent, (2R, H, W, C)."""
    flat, mask, c = roi(HW, PIXELS, C, CHUNK)
    stack = rois.to(tl.int64) * (HW * C)
    n, rstd = normalise(load(z1, flat, mask), mask, epsilon, HW, CHUNK, GROUP)
    gain, slope = tl.load(scale + c)[None, :], tl.load(alpha + c)[None, :]
    tn, tslope = _dual_norm(load(z1 + stack, flat, mask), n, rstd, HW, CHUNK, GROUP)
    value = n * gain + tl.load(shift + c)[None, :]
    t = slope * load(h, flat, mask) + tl.load(mu + c)[None, :]
    q = load(x, flat, mask) - value * t
    tl.store(s + flat, softplus(q), mask=mask)
    tangent = -tl.sigmoid(q) * (tn * gain * t + value * slope * load(h + stack, flat, mask))
    tl.store(s + stack + flat, tangent, mask=mask)


@triton.jit(do_not_specialize=["rois"])
def update_gradient_kernel(
    z2, mixed, h, direction, cotangent, vector, scale_, shift_, bias, to_z2, to_mixed, to_h, sums, epsilon, rois,
    TANGENT: tl.constexpr,
    HW: tl.constexpr, PIXELS: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
):
    """Cotangents of z2, U∗s and h by the update; sums (3, R, C): gradients of scale2, shift2 and b2 of each RoI."""
    flat, mask, c = roi(HW, PIXELS, C, CHUNK)
    stack = rois.to(tl.int64) * (HW * C)
    n, rstd = normalise(load(z2, flat, mask), mask, epsilon, HW, CHUNK, GROUP)
    scale = tl.load(scale_ + c)[None, :]
    value = n * scale + tl.load(shift_ + c)[None, :]
    g, slope = tl.sigmoid(load(mixed, flat, mask) + tl.load(bias + c)[None, :]), tl.sigmoid(value)
    state, u = load(h, flat, mask), load(cotangent, flat, mask)
    gate_slope, gap = g * (1 - g), softplus(value) - state
    dc, dm, dh = u * g * slope, u * gate_slope * gap, (1 - g) * u
    if TANGENT:
        p, tv, tm = load(vector, flat, mask), load(direction, flat, mask), load(mixed + stack, flat, mask)
        tz = load(z2 + stack, flat, mask)
        tn, tslope = _dual_norm(tz, n, rstd, HW, CHUNK, GROUP)
        tc = tn * scale
        dtc = p * g * slope
        tl.store(to_mixed + stack + flat, p * gate_slope * gap, mask=mask)
        dc += p * slope * (g * (1 - slope) * tc + gate_slope * tm)
        dm += p * gate_slope * (slope * tc - tv + (1 - 2 * g) * tm * gap)
        dh -= p * gate_slope * tm
        dz, dtz = _dual_norm_gradient(dc, dtc, n, tz, tn, tslope, rstd, scale, HW, CHUNK, GROUP)
        tl.store(to_z2 + stack + flat, dtz, mask=mask)
        along = tl.sum(dc * n + dtc * tn, 0)
    else:
        dz = _norm_gradient(dc, n, rstd, scale, HW, CHUNK, GROUP)
        along = tl.sum(dc * n, 0)
    tl.store(to_z2 + flat, dz, mask=mask)
    tl.store(to_mixed + flat, dm, mask=mask)
    tl.store(to_h + flat, dh, mask=mask)
    place = sums + tl.program_id(0) * C + c
    tl.store(place, along)
    tl.store(place + rois * C, tl.sum(dc, 0))
    tl.store(place + 2 * rois * C, tl.sum(dm, 0))


@triton.jit(do_not_specialize=["rois"])
def inhibit_gradient_kernel(
    z1, x, h, direction, y2, mixed, dh, scale_, shift_, alpha_, mu, to_z1, to_x, to_h, sums, epsilon, rois,
    TANGENT: tl.constexpr,
    HW: tl.constexpr, PIXELS: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
):
    """Cotangents of z1, x and h by the inhibition; sums (4, R, C): gradients of scale1, shift1, α, μ of each RoI."""
    flat, mask, c = roi(HW, PIXELS, C, CHUNK)
    stack = rois.to(tl.int64) * (HW * C)
    n, rstd = normalise(load(z1, flat, mask), mask, epsilon, HW, CHUNK, GROUP)
    scale, alpha = tl.load(scale_ + c)[None, :], tl.load(alpha_ + c)[None, :]
    value = n * scale + tl.load(shift_ + c)[None, :]
    state = load(h, flat, mask)
    t = alpha * state + tl.load(mu + c)[None, :]
    slope = tl.sigmoid(load(x, flat, mask) - value * t)
    dq = slope * (load(y2, flat, mask) + load(mixed, flat, mask))
    if TANGENT:
        tz, tv = load(z1 + stack, flat, mask), load(direction, flat, mask)
        tn, tslope = _dual_norm(tz, n, rstd, HW, CHUNK, GROUP)
        tc, tt = tn * scale, alpha * tv
        dtq = slope * (load(y2 + stack, flat, mask) + load(mixed + stack, flat, mask))
        dq -= (1 - slope) * (tc * t + value * tt) * dtq
        dtc = -dtq * t
        dc, dt = -dq * t - dtq * tt, -dq * value - dtq * tc
        dz, dtz = _dual_norm_gradient(dc, dtc, n, tz, tn, tslope, rstd, scale, HW, CHUNK, GROUP)
        tl.store(to_z1 + stack + flat, dtz, mask=mask)
        along, dalpha = tl.sum(dc * n + dtc * tn, 0), tl.sum(dt * state - dtq * value * tv, 0)
    else:
        dc, dt = -dq * t, -dq * value
        dz = _norm_gradient(dc, n, rstd, scale, HW, CHUNK, GROUP)
        along, dalpha = tl.sum(dc * n, 0), tl.sum(dt * state, 0)
    tl.store(to_z1 + flat, dz, mask=mask)
    tl.store(to_x + flat, dq, mask=mask)
    tl.store(to_h + flat, load(dh, flat, mask) + dt * alpha, mask=mask)
    place = sums + tl.program_id(0) * C + c
    tl.store(place, along)
    tl.store(place + rois * C, tl.sum(dc, 0))
    tl.store(place + 2 * rois * C, dalpha)
    tl.store(place + 3 * rois * C, tl.sum(dt, 0))


@triton.jit(do_not_specialize=["rows"])
def gate_gradient_kernel(
    channel, channel_bias, kernel, wheres, bias, h, direction, dy, dh,
    to_channel, to_what, activity, to_where, to_h, bias_sums, rows,
    TANGENT: tl.constexpr, C: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):
    """Cotangents of the channel path, of the spatial path's output and of h; bias_sums (programs, C): of b1."""
    p = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = (p < rows)[:, None]
    stack = rows.to(tl.int64)
    r = tl.arange(0, R)
    small = p.to(tl.int64)[:, None] * R + r[None, :]
    a = load(channel, small, mask) + row(channel_bias, R)
    slope, path = tl.sigmoid(a), softplus(a).to(kernel.dtype.element_ty)
    where = _column(wheres, p, rows)
    tl.store(activity + small, path, mask=mask)
    product, along = tl.zeros((ROWS, R), tl.float32), tl.zeros((ROWS,), tl.float32)
    if TANGENT:
        ta = load(channel + stack * R, small, mask)
        tpath = (slope * ta).to(kernel.dtype.element_ty)
        twhere = _column(wheres + stack, p, rows)
        tl.store(activity + stack * R + small, tpath, mask=mask)
        tproduct, talong = tl.zeros((ROWS, R), tl.float32), tl.zeros((ROWS,), tl.float32)
    for first in range(0, C, CHUNK):
        c = first + tl.arange(0, CHUNK)
        flat = p.to(tl.int64)[:, None] * C + c[None, :]
        weights, transposed = tl.load(kernel + c[None, :] * R + r[:, None]), tl.load(kernel + c[:, None] * R + r[None, :])
        what = dot(path, weights)
        g = tl.sigmoid(what * where + row(bias + first, CHUNK))
        gate_slope = g * (1 - g)
        state, d = load(h, flat, mask), load(dy, flat, mask)
        da, total = d * state * gate_slope, load(dh, flat, mask) + d * g
        if TANGENT:
            twhat, td = dot(tpath, weights), load(dy + stack * C, flat, mask)
            inner = twhat * where + what * twhere
            dta = td * state * gate_slope
            da += td * gate_slope * (load(direction, flat, mask) + state * (1 - 2 * g) * inner)
            total += td * gate_slope * inner
            dwhat, dtwhat = da * where + dta * twhere, dta * where
            along += tl.sum(da * what + dta * twhat, 1)
            talong += tl.sum(dta * what, 1)
            tproduct += dot(dtwhat, transposed)
            tl.store(to_what + stack * C + flat, dtwhat, mask=mask)
        else:
            dwhat = da * where
            along += tl.sum(da * what, 1)
        product += dot(dwhat, transposed)
        tl.store(to_what + flat, dwhat, mask=mask)
        tl.store(to_h + flat, total, mask=mask)
        tl.store(bias_sums + tl.program_id(0) * C + c, tl.sum(da, 0))
    tl.store(to_where + p, along, mask=p < rows)
    if TANGENT:
        tl.store(to_where + stack + p, talong, mask=p < rows)
        tl.store(to_channel + small, slope * product + slope * (1 - slope) * ta * tproduct, mask=mask)
        tl.store(to_channel + stack * R + small, slope * tproduct, mask=mask)
    else:
        tl.store(to_channel + small, slope * product, mask=mask)


@triton.jit(do_not_specialize=["rows"])
def taps_gradient_kernel(
    dwhere, kernel, spatial, bias, to_taps, out, rows,
    TANGENT: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr,
):
    """Cotangents of the taps, (pixels, 9), and of the spatial path's first layer, (pixels, C), from its output's."""
    p = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = (p < rows)[:, None]
    stack = rows.to(tl.int64)
    c, k = tl.arange(0, C), tl.arange(0, TAPS)
    neighbour, exists = neighbours(p, rows, -1, H, W)
    weights = tl.load(kernel + c[None, :] * 9 + k[:, None], mask=(k < 9)[:, None], other=0.0)
    flat, place = p.to(tl.int64)[:, None] * C + c[None, :], p.to(tl.int64)[:, None] * 9 + k[None, :]
    slope = tl.sigmoid(load(spatial, flat, mask) + row(bias, C))
    taps = tl.load(dwhere + neighbour, mask=exists, other=0.0)
    tl.store(to_taps + place, taps, mask=mask & (k < 9)[None, :])
    product = slope * dot(taps, weights)
    if TANGENT:
        taps = tl.load(dwhere + stack + neighbour, mask=exists, other=0.0)
        tl.store(to_taps + stack * 9 + place, taps, mask=mask & (k < 9)[None, :])
        tproduct = slope * dot(taps, weights)
        product += (1 - slope) * load(spatial + stack * C, flat, mask) * tproduct
        tl.store(out + stack * C + flat, tproduct, mask=mask)
    tl.store(out + flat, product, mask=mask)
