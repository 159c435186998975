"""The stages of :mod:`rfpn.layers.fast.hgru_stages` as Triton kernels: same names, same arguments, float32.

A program works on all channels (a power of two, CHANNELS ≥ C) of BLOCK pixels of one sample. Sums over the batch are
written per program and added by a second kernel, in an order that is always the same.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfpn.layers.fast.hgru_stages import Factors, Moments, Weights

BLOCK = 64  # pixels of a program with many live values
REDUCTION_BLOCK = 256  # pixels of a program that only sums
WARPS = 8


@triton.jit
def _softplus(v):
    e = tl.exp(-tl.abs(v))
    u = 1 + e
    # log(1 + e) without losing e < 2^-24 (Kahan)
    return tl.maximum(v, 0.0) + tl.where(u == 1, e, tl.log(u) * (e / tl.where(u == 1, 1.0, u - 1)))


@triton.jit
def _mix(matrix, x):
    return tl.dot(matrix, x, input_precision="tf32x3")


@triton.jit
def _place(samples, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr):
    """Sample, block, and per element: offset in (N, C, H, W), in the canvas (float words), whether it exists.

    The two samples of a canvas entry go to neighbouring programs, so that their halves of a line meet in the cache.
    """
    blocks: tl.constexpr = (G[0] + BLOCK - 1) // BLOCK
    pid = tl.program_id(0)
    n = 2 * (pid // (2 * blocks)) + pid % 2
    block = (pid // 2) % blocks
    c = tl.arange(0, CHANNELS)[:, None]
    p = block * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (c < G[4]) & (p < G[0]) & (n < samples)
    flat = (n * G[4] + c).to(tl.int64) * G[0] + p
    canvas = (n // 2 * G[4] + c).to(tl.int64) * (2 * G[3]) + 2 * (p // G[1] * G[2] + p % G[1]) + n % 2
    return n * blocks + block, flat, canvas, mask


@triton.jit
def _channel(pointer, CHANNELS: tl.constexpr, C: tl.constexpr):
    c = tl.arange(0, CHANNELS)
    return tl.load(pointer + c, mask=c < C, other=0.0)[:, None]


@triton.jit
def _matrix(pointer, CHANNELS: tl.constexpr, C: tl.constexpr, TRANSPOSED: tl.constexpr):
    row, column = tl.arange(0, CHANNELS)[:, None], tl.arange(0, CHANNELS)[None, :]
    offset = column * C + row if TRANSPOSED else row * C + column
    return tl.load(pointer + offset, mask=(row < C) & (column < C), other=0.0)


@triton.jit
def _store_sums(partial, slot, slots, first, second, mask, CHANNELS: tl.constexpr, C: tl.constexpr):
    c = tl.arange(0, CHANNELS)
    if slot < slots:
        tl.store(partial + c * slots + slot, tl.sum(tl.where(mask, first, 0.0), 1), mask=c < C)
        tl.store(partial + (C + c) * slots + slot, tl.sum(tl.where(mask, second, 0.0), 1), mask=c < C)


@triton.jit
def _gate_kernel(h, canvas, weight, bias, samples, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr):
    slot, flat, place, mask = _place(samples, CHANNELS, BLOCK, G)
    v = tl.load(h + flat, mask=mask, other=0.0)
    g = tl.sigmoid(_mix(_matrix(weight, CHANNELS, G[4], False), v) + _channel(bias, CHANNELS, G[4]))
    tl.store(canvas + place, v * g, mask=mask)


@triton.jit
def _moments_kernel(canvas, partial, samples, slots, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr):
    slot, flat, place, mask = _place(samples, CHANNELS, BLOCK, G)
    blocks: tl.constexpr = (G[0] + BLOCK - 1) // BLOCK
    v = tl.load(canvas + place, mask=mask, other=0.0)
    count = tl.minimum(G[0] - slot % blocks * BLOCK, BLOCK)
    mean = tl.sum(v, 1) / count
    gap = tl.where(mask, v - mean[:, None], 0.0)
    c = tl.arange(0, CHANNELS)
    if slot < slots:
        tl.store(partial + c * slots + slot, mean, mask=c < G[4])
        tl.store(partial + (G[4] + c) * slots + slot, tl.sum(gap * gap, 1), mask=c < G[4])


@triton.jit
def _join_moments_kernel(partial, out, slots, total, epsilon, BLOCK: tl.constexpr, CHUNK: tl.constexpr, G: tl.constexpr):
    """Mean and 1/√(variance + ε) of one channel from means and squared deviations of blocks (Chan et al., 1983)."""
    blocks: tl.constexpr = (G[0] + BLOCK - 1) // BLOCK
    c = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    summed = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, slots, CHUNK):
        slot = start + lane
        count = tl.minimum(G[0] - slot % blocks * BLOCK, BLOCK)
        summed += tl.load(partial + c * slots + slot, mask=slot < slots, other=0.0) * count
    mean = tl.sum(summed, 0) / total
    squares = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, slots, CHUNK):
        slot = start + lane
        count = tl.minimum(G[0] - slot % blocks * BLOCK, BLOCK)
        gap = tl.load(partial + c * slots + slot, mask=slot < slots, other=0.0) - mean
        inner = tl.load(partial + (G[4] + c) * slots + slot, mask=slot < slots, other=0.0)
        squares += tl.where(slot < slots, inner + count * gap * gap, 0.0)
    tl.store(out + c, mean)
    tl.store(out + G[4] + c, 1 / tl.sqrt(tl.sum(squares, 0) / total + epsilon))


@triton.jit
def _join_sums_kernel(partial, out, slots, CHUNK: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    summed = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, slots, CHUNK):
        slot = start + lane
        summed += tl.load(partial + row * slots + slot, mask=slot < slots, other=0.0)
    tl.store(out + row, tl.sum(summed, 0))


@triton.jit
def _inhibit_kernel(
    z1, mean, rstd, x, h, canvas, scale, shift, alpha, mu, samples,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    slot, flat, place, mask = _place(samples, CHANNELS, BLOCK, G)
    gain = _channel(rstd, CHANNELS, G[4]) * _channel(scale, CHANNELS, G[4])
    centred = tl.load(z1 + place, mask=mask, other=0.0) - _channel(mean, CHANNELS, G[4])
    c1 = centred * gain + _channel(shift, CHANNELS, G[4])
    t = _channel(alpha, CHANNELS, G[4]) * tl.load(h + flat, mask=mask, other=0.0) + _channel(mu, CHANNELS, G[4])
    tl.store(canvas + place, _softplus(tl.load(x + flat, mask=mask, other=0.0) - _softplus(c1 * t)), mask=mask)


@triton.jit
def _update_kernel(
    z2, mean, rstd, s_canvas, h, out, canvas, scale, shift, gate2, bias2, kappa, gamma, omega, gate1, bias1, samples,
    OUTER: tl.constexpr, GATE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    slot, flat, place, mask = _place(samples, CHANNELS, BLOCK, G)
    s = tl.load(s_canvas + place, mask=mask, other=0.0)
    g2 = tl.sigmoid(_mix(_matrix(gate2, CHANNELS, G[4], False), s) + _channel(bias2, CHANNELS, G[4]))
    gain = _channel(rstd, CHANNELS, G[4]) * _channel(scale, CHANNELS, G[4])
    centred = tl.load(z2 + place, mask=mask, other=0.0) - _channel(mean, CHANNELS, G[4])
    c2 = centred * gain + _channel(shift, CHANNELS, G[4])
    candidate = _softplus(
        _channel(kappa, CHANNELS, G[4]) * s + (_channel(gamma, CHANNELS, G[4]) + _channel(omega, CHANNELS, G[4]) * s) * c2
    )
    state = (1 - g2) * tl.load(h + flat, mask=mask, other=0.0) + g2 * candidate
    if OUTER:
        state = _softplus(state)
    tl.store(out + flat, state, mask=mask)
    if GATE:
        state = tl.where(mask, state, 0.0)
        g1 = tl.sigmoid(_mix(_matrix(gate1, CHANNELS, G[4], False), state) + _channel(bias1, CHANNELS, G[4]))
        tl.store(canvas + place, state * g1, mask=mask)


@triton.jit
def _linearize_kernel(
    z1, m1, r1, z2, m2, r2, s_canvas, x, h, out,
    to_excite, to_direct, to_gate2, to_keep, to_z2, to_inhibit, to_scale, to_z1, to_gate1, to_slope1,
    gate1, bias1, gate2, bias2, alpha, mu, kappa, gamma, omega, scale1, shift1, scale2, shift2, samples,
    OUTER: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    slot, flat, place, mask = _place(samples, CHANNELS, BLOCK, G)
    state = tl.load(h + flat, mask=mask, other=0.0)
    g1 = tl.sigmoid(_mix(_matrix(gate1, CHANNELS, G[4], False), state) + _channel(bias1, CHANNELS, G[4]))
    tl.store(to_gate1 + flat, g1, mask=mask)
    tl.store(to_slope1 + flat, state * g1 * (1 - g1), mask=mask)
    n1 = (tl.load(z1 + place, mask=mask, other=0.0) - _channel(m1, CHANNELS, G[4])) * _channel(r1, CHANNELS, G[4])
    tl.store(to_z1 + flat, n1, mask=mask)
    c1 = n1 * _channel(scale1, CHANNELS, G[4]) + _channel(shift1, CHANNELS, G[4])
    t = _channel(alpha, CHANNELS, G[4]) * state + _channel(mu, CHANNELS, G[4])
    r = c1 * t
    through = -tl.sigmoid(tl.load(x + flat, mask=mask, other=0.0) - _softplus(r)) * tl.sigmoid(r)
    tl.store(to_inhibit + flat, through * t, mask=mask)
    tl.store(to_scale + flat, through * c1 * _channel(alpha, CHANNELS, G[4]), mask=mask)
    s = tl.load(s_canvas + place, mask=mask, other=0.0)
    g2 = tl.sigmoid(_mix(_matrix(gate2, CHANNELS, G[4], False), s) + _channel(bias2, CHANNELS, G[4]))
    n2 = (tl.load(z2 + place, mask=mask, other=0.0) - _channel(m2, CHANNELS, G[4])) * _channel(r2, CHANNELS, G[4])
    tl.store(to_z2 + flat, n2, mask=mask)
    c2 = n2 * _channel(scale2, CHANNELS, G[4]) + _channel(shift2, CHANNELS, G[4])
    excite = _channel(gamma, CHANNELS, G[4]) + _channel(omega, CHANNELS, G[4]) * s
    argument = _channel(kappa, CHANNELS, G[4]) * s + excite * c2
    candidate = _softplus(argument)
    mixed = (1 - g2) * state + g2 * candidate
    slope = tl.full((CHANNELS, BLOCK), 1.0, tl.float32)
    if OUTER:
        slope = tl.sigmoid(mixed)
        tl.store(out + flat, _softplus(mixed), mask=mask)
    else:
        tl.store(out + flat, mixed, mask=mask)
    through = slope * g2 * tl.sigmoid(argument)
    tl.store(to_excite + flat, through * excite, mask=mask)
    direct = through * (_channel(kappa, CHANNELS, G[4]) + _channel(omega, CHANNELS, G[4]) * c2)
    tl.store(to_direct + flat, direct, mask=mask)
    tl.store(to_gate2 + flat, slope * (candidate - state) * g2 * (1 - g2), mask=mask)
    tl.store(to_keep + flat, slope * (1 - g2), mask=mask)


@triton.jit
def _product_sums_kernel(
    v, factor, z, partial, samples, slots, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr
):
    slot, flat, place, mask = _place(samples, CHANNELS, BLOCK, G)
    product = tl.load(v + flat, mask=mask, other=0.0) * tl.load(factor + flat, mask=mask, other=0.0)
    _store_sums(
        partial, slot, slots, product, product * tl.load(z + flat, mask=mask, other=0.0), mask, CHANNELS, G[4]
    )


@triton.jit
def _norm_adjoint_kernel(
    v, factor, z, sums, gain, canvas, samples, count, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr
):
    slot, flat, place, mask = _place(samples, CHANNELS, BLOCK, G)
    product = tl.load(v + flat, mask=mask, other=0.0) * tl.load(factor + flat, mask=mask, other=0.0)
    mean = _channel(sums, CHANNELS, G[4]) / count
    slope = _channel(sums + G[4], CHANNELS, G[4]) / count
    product = product - mean - tl.load(z + flat, mask=mask, other=0.0) * slope
    tl.store(canvas + place, _channel(gain, CHANNELS, G[4]) * product, mask=mask)


@triton.jit
def _through_excitation_kernel(
    y2, v, direct, gate2, inhibit, z1, ds, weight, partial, samples, slots,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    slot, flat, place, mask = _place(samples, CHANNELS, BLOCK, G)
    cotangent = tl.load(v + flat, mask=mask, other=0.0)
    gated = tl.load(gate2 + flat, mask=mask, other=0.0) * cotangent
    total = tl.load(y2 + place, mask=mask, other=0.0) + tl.load(direct + flat, mask=mask, other=0.0) * cotangent
    total += _mix(_matrix(weight, CHANNELS, G[4], True), gated)
    tl.store(ds + flat, total, mask=mask)
    product = total * tl.load(inhibit + flat, mask=mask, other=0.0)
    _store_sums(
        partial, slot, slots, product, product * tl.load(z1 + flat, mask=mask, other=0.0), mask, CHANNELS, G[4]
    )


@triton.jit
def _through_inhibition_kernel(
    y1, v, ds, keep, scale, gate1, slope1, out, weight, samples,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    slot, flat, place, mask = _place(samples, CHANNELS, BLOCK, G)
    dy = tl.load(y1 + place, mask=mask, other=0.0)
    gated = tl.load(slope1 + flat, mask=mask, other=0.0) * dy
    total = tl.load(keep + flat, mask=mask, other=0.0) * tl.load(v + flat, mask=mask, other=0.0)
    total += tl.load(scale + flat, mask=mask, other=0.0) * tl.load(ds + flat, mask=mask, other=0.0)
    total += tl.load(gate1 + flat, mask=mask, other=0.0) * dy
    tl.store(out + flat, total + _mix(_matrix(weight, CHANNELS, G[4], True), gated), mask=mask)


def _launch(kernel, like: Tensor, canvas: Tensor, *arguments, block: int = BLOCK, **constants) -> None:
    """Run ``kernel`` on all samples of ``like`` (N, C, H, W); ``canvas`` gives the size of transforms."""
    n, c, h, w = like.shape
    if n == 0:
        return
    columns = canvas.shape[3]
    geometry = (h * w, w, columns, canvas.shape[2] * columns, c)
    grid = ((n + 1) // 2 * 2 * triton.cdiv(h * w, block),)
    with torch.cuda.device_of(like):
        kernel[grid](
            *arguments, CHANNELS=max(16, triton.next_power_of_2(c)), BLOCK=block, G=geometry, num_warps=WARPS, **constants
        )


def _words(canvas: Tensor) -> Tensor:
    return torch.view_as_real(canvas)


def gate(h: Tensor, canvas: Tensor, w: Weights) -> None:
    _launch(_gate_kernel, h, canvas, h, _words(canvas), w.gate1, w.bias1, len(h))


def moments(canvas: Tensor, like: Tensor, epsilon: float) -> Moments:
    n, c, h, w = like.shape
    slots = n * triton.cdiv(h * w, REDUCTION_BLOCK)
    partial, out = like.new_empty((2, c, slots)), like.new_empty((2, c))
    _launch(_moments_kernel, like, canvas, _words(canvas), partial, n, slots, block=REDUCTION_BLOCK)
    with torch.cuda.device_of(like):
        _join_moments_kernel[(c,)](
            partial, out, slots, n * h * w, epsilon, BLOCK=REDUCTION_BLOCK, CHUNK=1024, G=(h * w,) * 4 + (c,)
        )
    return Moments(*out)


def inhibit(z1: Tensor, m1: Moments, x: Tensor, h: Tensor, canvas: Tensor, w: Weights) -> None:
    _launch(
        _inhibit_kernel, h, canvas, _words(z1), *m1, x, h, _words(canvas), w.scale1, w.shift1, w.alpha, w.mu, len(h)
    )


def update(z2: Tensor, m2: Moments, s_canvas: Tensor, h: Tensor, w: Weights, canvas: Tensor | None) -> Tensor:
    out = torch.empty_like(h)
    _launch(
        _update_kernel, h, s_canvas, _words(z2), *m2, _words(s_canvas), h, out,
        out if canvas is None else _words(canvas), w.scale2, w.shift2, w.gate2, w.bias2, w.kappa, w.gamma, w.omega,
        w.gate1, w.bias1, len(h), OUTER=w.outer, GATE=canvas is not None,
    )
    return out


def linearize(
    z1: Tensor, m1: Moments, z2: Tensor, m2: Moments, s_canvas: Tensor, x: Tensor, h: Tensor, w: Weights
) -> tuple[Tensor, Factors]:
    out, factors = torch.empty_like(h), h.new_empty((len(Factors._fields), *h.shape))
    _launch(
        _linearize_kernel, h, s_canvas, _words(z1), *m1, _words(z2), *m2, _words(s_canvas), x, h, out, *factors,
        *w[:13], len(h), OUTER=w.outer,
    )
    return out, Factors(*factors)


def product_sums(v: Tensor, factor: Tensor, z: Tensor) -> Tensor:
    n, c, h, w = v.shape
    slots = n * triton.cdiv(h * w, REDUCTION_BLOCK)
    partial = v.new_empty((2, c, slots))
    _launch(_product_sums_kernel, v, v, v, factor, z, partial, n, slots, block=REDUCTION_BLOCK)
    return _join_sums(partial)


def norm_adjoint(v: Tensor, factor: Tensor, z: Tensor, sums: Tensor, gain: Tensor, canvas: Tensor) -> None:
    count = v.numel() // v.shape[1]
    _launch(_norm_adjoint_kernel, v, canvas, v, factor, z, sums, gain, _words(canvas), len(v), count)


def through_excitation(y2: Tensor, v: Tensor, factors: Factors, w: Weights) -> tuple[Tensor, Tensor]:
    n, c, h, w_ = v.shape
    slots = n * triton.cdiv(h * w_, BLOCK)
    partial, ds = v.new_empty((2, c, slots)), torch.empty_like(v)
    _launch(
        _through_excitation_kernel, v, y2, _words(y2), v, factors.direct, factors.gate2, factors.inhibit, factors.z1, ds,
        w.gate2, partial, n, slots,
    )
    return ds, _join_sums(partial)


def through_inhibition(y1: Tensor, v: Tensor, ds: Tensor, factors: Factors, w: Weights) -> Tensor:
    out = torch.empty_like(v)
    _launch(
        _through_inhibition_kernel, v, y1, _words(y1), v, ds, factors.keep, factors.scale, factors.gate1,
        factors.slope1, out, w.gate1, len(v),
    )
    return out


def _join_sums(partial: Tensor) -> Tensor:
    rows, slots = partial.shape[0] * partial.shape[1], partial.shape[2]
    out = partial.new_empty(partial.shape[:2])
    with torch.cuda.device_of(partial):
        _join_sums_kernel[(rows,)](partial, out, slots, CHUNK=1024)
    return out
