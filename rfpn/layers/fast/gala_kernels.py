"""Triton kernels of :mod:`rfpn.layers.fast.gala_triton`.

Kernels over pixels take ROWS of them; kernels with a group norm take one RoI. Both take CHUNK channels at a time.
C, C/2 and C/r are powers of two; a RoI has at most 256 pixels (:func:`rfpn.layers.fast.bind` sees to both).
"""

import triton
import triton.language as tl

TAPS = tl.constexpr(16)  # 9 taps of a 3×3 kernel, padded to what tl.dot takes


@triton.jit
def softplus(v):
    """log(1 + exp(v)) without overflow; the canvases' exact tail would cost 6% of a step (docs/speed.md)."""
    return tl.maximum(v, 0.0) + tl.log(1 + tl.exp(-tl.abs(v)))


@triton.jit
def dot(a, b):
    """a @ b with the precision of float32; a is rounded to b's type."""
    return tl.dot(a.to(b.dtype), b, input_precision="tf32x3")


@triton.jit
def row(pointer, SIZE: tl.constexpr):
    """SIZE values from ``pointer`` in float32, (1, SIZE)."""
    return tl.load(pointer + tl.arange(0, SIZE)).to(tl.float32)[None, :]


@triton.jit
def neighbours(pixels, rows, SIGN: tl.constexpr, H: tl.constexpr, W: tl.constexpr):
    """Index of the pixel that tap k of a 3×3 kernel sees (SIGN 1) or serves (SIGN −1), and whether it exists."""
    k = tl.arange(0, TAPS)[None, :]
    p = pixels[:, None]
    row, column = SIGN * (k // 3 - 1), SIGN * (k % 3 - 1)
    y, x = p % (H * W) // W + row, p % W + column
    return p + row * W + column, (k < 9) & (p < rows) & (y >= 0) & (y < H) & (x >= 0) & (x < W)


@triton.jit(do_not_specialize=["rows"])
def taps_kernel(
    spatial, bias, kernel, taps, activity, slope, rows,
    ACTIVITY: tl.constexpr, SLOPE: tl.constexpr, TANGENT: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr,
):
    """ζ(spatial + bias) (rows, C) times the 3×3 kernel's columns: taps (rows, 16); TANGENT: those of its tangent behind.

    ACTIVITY keeps the ζ and its tangent, SLOPE the ζ'.
    """
    p = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = (p < rows)[:, None]
    c, k = tl.arange(0, C), tl.arange(0, TAPS)
    flat, place = p.to(tl.int64)[:, None] * C + c[None, :], p.to(tl.int64)[:, None] * TAPS + k[None, :]
    weights = tl.load(kernel + c[:, None] * 9 + k[None, :], mask=(k < 9)[None, :], other=0.0)
    a = load(spatial, flat, mask) + row(bias, C)
    value = softplus(a)
    tl.store(taps + place, dot(value, weights), mask=mask)
    if ACTIVITY:
        tl.store(activity + flat, value, mask=mask)
    if SLOPE:
        tl.store(slope + flat, tl.sigmoid(a), mask=mask)
    if TANGENT:
        stack = rows.to(tl.int64)
        value = tl.sigmoid(a) * load(spatial + stack * C, flat, mask)
        tl.store(taps + stack * TAPS + place, dot(value, weights), mask=mask)
        if ACTIVITY:
            tl.store(activity + stack * C + flat, value, mask=mask)


@triton.jit(do_not_specialize=["rows"])
def spread_kernel(taps, where, rows, H: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr):
    """Sum for each pixel the taps that its neighbours hold for it: where (rows,)."""
    p = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    neighbour, exists = neighbours(p, rows, 1, H, W)
    place = neighbour.to(tl.int64) * TAPS + tl.arange(0, TAPS)[None, :]
    tl.store(where + p, tl.sum(tl.load(taps + place, mask=exists, other=0.0), 1), mask=p < rows)


@triton.jit(do_not_specialize=["rows"])
def gate_kernel(
    channel, channel_bias, kernel, where, bias, h, y, gate1, slope1, what_out, what_slope, rows,
    RECORD: tl.constexpr, C: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):
    """y = h⊙σ(V1 ζ(channel + bias)⊙where + b) (rows, C), and the gate's factors."""
    p = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = (p < rows)[:, None]
    first = tl.program_id(1) * CHUNK
    c, r = first + tl.arange(0, CHUNK), tl.arange(0, R)
    small = p.to(tl.int64)[:, None] * R + r[None, :]
    flat = p.to(tl.int64)[:, None] * C + c[None, :]
    a = tl.load(channel + small, mask=mask, other=0.0).to(tl.float32) + row(channel_bias, R)
    what = softplus(a)
    weights = tl.load(kernel + c[None, :] * R + r[:, None])
    factor = tl.load(where + p, mask=p < rows, other=0.0)[:, None]
    g1 = tl.sigmoid(dot(what, weights) * factor + row(bias + first, CHUNK))
    state = tl.load(h + flat, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + flat, state * g1, mask=mask)
    if RECORD:
        tl.store(gate1 + flat, g1, mask=mask)
        tl.store(slope1 + flat, state * g1 * (1 - g1), mask=mask)
        if first == 0:
            tl.store(what_out + small, what, mask=mask)
            tl.store(what_slope + small, tl.sigmoid(a), mask=mask)


@triton.jit
def roi(HW: tl.constexpr, PIXELS: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr):
    """Offsets and mask of one RoI's CHUNK channels, and these channels."""
    p = tl.arange(0, PIXELS)[:, None]
    c = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    return (tl.program_id(0).to(tl.int64) * HW + p) * C + c[None, :], (p < HW) & (c >= 0)[None, :], c


@triton.jit
def group_mean(tile, HW: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr):
    """Mean over pixels and over the channels of each group, for every channel: (PIXELS, CHUNK) -> (CHUNK,)."""
    c = tl.arange(0, CHUNK)
    same = c[:, None] // GROUP == c[None, :] // GROUP
    return tl.sum(tl.where(same, tl.sum(tile, 0)[None, :], 0.0), 1) / (HW * GROUP)


@triton.jit
def normalise(z, mask, epsilon, HW: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr):
    """Group norm without weights of one RoI: (z − mean)·rstd and rstd (CHUNK,)."""
    gap = tl.where(mask, z - group_mean(z, HW, CHUNK, GROUP)[None, :], 0.0)
    rstd = 1 / tl.sqrt(group_mean(gap * gap, HW, CHUNK, GROUP) + epsilon)
    return gap * rstd[None, :], rstd


@triton.jit
def load(pointer, flat, mask):
    """Values at ``flat`` in float32, 0 outside ``mask``."""
    return tl.load(pointer + flat, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def inhibit_kernel(
    z1, x, h, s, scale, shift, alpha, mu, to_inhibit, to_scale, to_z1, to_rstd, epsilon, RECORD: tl.constexpr,
    HW: tl.constexpr, PIXELS: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
):
    """s = ζ(x − c1⊙(α h + μ)) of one RoI, and its factors."""
    flat, mask, c = roi(HW, PIXELS, C, CHUNK)
    n1, rstd = normalise(load(z1, flat, mask), mask, epsilon, HW, CHUNK, GROUP)
    slope = tl.load(alpha + c)[None, :]
    c1 = n1 * tl.load(scale + c)[None, :] + tl.load(shift + c)[None, :]
    t = slope * load(h, flat, mask) + tl.load(mu + c)[None, :]
    q = load(x, flat, mask) - c1 * t
    tl.store(s + flat, softplus(q), mask=mask)
    if RECORD:
        through = -tl.sigmoid(q)
        tl.store(to_inhibit + flat, through * t, mask=mask)
        tl.store(to_scale + flat, through * c1 * slope, mask=mask)
        tl.store(to_z1 + flat, n1, mask=mask)
        tl.store(to_rstd + tl.program_id(0) * (C // GROUP) + c // GROUP, rstd, mask=c % GROUP == 0)


@triton.jit
def update_kernel(
    z2, mixed, h, out, half, scale, shift, bias, to_excite, to_gate2, to_lose, to_z2, to_rstd, epsilon,
    RECORD: tl.constexpr,
    HW: tl.constexpr, PIXELS: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
):
    """The next state (1 − g2)⊙h + g2⊙ζ(c2) of one RoI in both types, and its factors."""
    flat, mask, c = roi(HW, PIXELS, C, CHUNK)
    n2, rstd = normalise(load(z2, flat, mask), mask, epsilon, HW, CHUNK, GROUP)
    c2 = n2 * tl.load(scale + c)[None, :] + tl.load(shift + c)[None, :]
    g2 = tl.sigmoid(load(mixed, flat, mask) + tl.load(bias + c)[None, :])
    candidate = softplus(c2)
    state = load(h, flat, mask)
    new = (1 - g2) * state + g2 * candidate
    tl.store(out + flat, new, mask=mask)
    tl.store(half + flat, new, mask=mask)
    if RECORD:
        tl.store(to_excite + flat, g2 * tl.sigmoid(c2), mask=mask)
        tl.store(to_gate2 + flat, (candidate - state) * g2 * (1 - g2), mask=mask)
        tl.store(to_lose + flat, g2, mask=mask)
        tl.store(to_z2 + flat, n2, mask=mask)
        tl.store(to_rstd + tl.program_id(0) * (C // GROUP) + c // GROUP, rstd, mask=c % GROUP == 0)


@triton.jit
def _norm_adjoint(dn, n, rstd, HW: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr):
    """Adjoint of a group norm (gala_stages); dn is zero outside the RoI."""
    c = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    gain = tl.load(rstd + tl.program_id(0) * (C // GROUP) + c // GROUP)[None, :]
    mean, slope = group_mean(dn, HW, CHUNK, GROUP), group_mean(dn * n, HW, CHUNK, GROUP)
    return gain * (dn - mean[None, :] - n * slope[None, :])


@triton.jit
def through_update_kernel(
    v, excite, gate2, z2, rstd, scale, dz2, dmixed,
    HW: tl.constexpr, PIXELS: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
):
    """Cotangents of z2 and of U∗s from that of the next state."""
    flat, mask, c = roi(HW, PIXELS, C, CHUNK)
    cotangent = load(v, flat, mask)
    tl.store(dmixed + flat, load(gate2, flat, mask) * cotangent, mask=mask)
    dn = load(excite, flat, mask) * cotangent * tl.load(scale + c)[None, :]
    tl.store(dz2 + flat, _norm_adjoint(dn, load(z2, flat, mask), rstd, HW, C, CHUNK, GROUP), mask=mask)


@triton.jit
def through_inhibit_kernel(
    y2, mixed, inhibit, z1, rstd, scale, ds, dz1,
    HW: tl.constexpr, PIXELS: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
):
    """Cotangents of s (the sum of both arguments) and of z1."""
    flat, mask, c = roi(HW, PIXELS, C, CHUNK)
    total = load(y2, flat, mask) + load(mixed, flat, mask)
    tl.store(ds + flat, total, mask=mask)
    dn = load(inhibit, flat, mask) * total * tl.load(scale + c)[None, :]
    tl.store(dz1 + flat, _norm_adjoint(dn, load(z1, flat, mask), rstd, HW, C, CHUNK, GROUP), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def through_gate_kernel(
    dy, slope1, what, what_slope, where, kernel, dchannel, dwhere, rows,
    C: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):
    """Cotangents of the channel path's first layer and of where from that of y."""
    p = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = (p < rows)[:, None]
    r = tl.arange(0, R)
    small = p.to(tl.int64)[:, None] * R + r[None, :]
    path = tl.load(what + small, mask=mask, other=0.0)
    factor = tl.load(where + p, mask=p < rows, other=0.0)[:, None]
    along = tl.zeros((ROWS,), tl.float32)
    product = tl.zeros((ROWS, R), tl.float32)
    for first in range(0, C, CHUNK):
        c = first + tl.arange(0, CHUNK)
        flat = p.to(tl.int64)[:, None] * C + c[None, :]
        da = load(slope1, flat, mask) * load(dy, flat, mask)
        along += tl.sum(da * dot(path, tl.load(kernel + c[None, :] * R + r[:, None])), 1)
        product += dot(da * factor, tl.load(kernel + c[:, None] * R + r[None, :]))
    tl.store(dwhere + p, along, mask=p < rows)
    tl.store(dchannel + small, product * load(what_slope, small, mask), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def taps_adjoint_kernel(
    dwhere, kernel, slope, out, rows, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr
):
    """Cotangent of the spatial path's first layer from that of where."""
    p = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c, k = tl.arange(0, C), tl.arange(0, TAPS)
    neighbour, exists = neighbours(p, rows, -1, H, W)
    taps = tl.load(dwhere + neighbour, mask=exists, other=0.0)
    weights = tl.load(kernel + c[None, :] * 9 + k[:, None], mask=(k < 9)[:, None], other=0.0)
    flat = p.to(tl.int64)[:, None] * C + c[None, :]
    mask = (p < rows)[:, None]
    tl.store(out + flat, dot(taps, weights) * load(slope, flat, mask), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def collect_kernel(
    v, ds, dy, dchannel, spatial, lose, scale, gate1, kernel, out, rows,
    C: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):
    """Jᵀv: all paths to h added up."""
    p = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = (p < rows)[:, None]
    c, r = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK), tl.arange(0, R)
    flat = p.to(tl.int64)[:, None] * C + c[None, :]
    small = tl.load(dchannel + p.to(tl.int64)[:, None] * R + r[None, :], mask=mask, other=0.0)
    total = dot(small, tl.load(kernel + r[:, None] * C + c[None, :])) + load(spatial, flat, mask)
    cotangent = load(v, flat, mask)
    total += cotangent - load(lose, flat, mask) * cotangent + load(scale, flat, mask) * load(ds, flat, mask)
    tl.store(out + flat, total + load(gate1, flat, mask) * load(dy, flat, mask), mask=mask)
