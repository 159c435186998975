"""The stages of :mod:`rfpn.layers.fast.hgru_stages` as Triton kernels: same names, same arguments, float32.

A program works on all channels (a power of two, CHANNELS ≥ C) of BLOCK pixels of two samples. Sums over the batch are
written per program and added by a second kernel, in an order that is always the same.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfpn.layers.fast.hgru_stages import Factors, Moments, Weights
from rfpn.layers.fast.spectral_triton import parts, word, words

BLOCK = 32  # pixels of a program with many live values
REDUCTION_BLOCK = 128  # pixels of a program that only sums
WARPS = 8


@triton.jit
def softplus(v):
    e = tl.exp(-tl.abs(v))
    u = 1 + e
    # log(1 + e) without losing e < 2^-24 (Kahan)
    return tl.maximum(v, 0.0) + tl.where(u == 1, e, tl.log(u) * (e / tl.where(u == 1, 1.0, u - 1)))


@triton.jit
def mix(matrix, x):
    # too small for tensor cores to win: splitting operands for three TF32 products takes more than they save
    return tl.dot(matrix, x, input_precision="ieee")


@triton.jit
def place_pair(samples, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr):
    """Where a program works: its number, offsets of the first sample in (N, C, H, W) and of both in the canvas, masks.

    A canvas entry holds two samples side by side; one program works on both, so that it reads and writes whole words.
    """
    blocks: tl.constexpr = (G[0] + BLOCK - 1) // BLOCK
    pair = tl.program_id(0) // blocks
    c = tl.arange(0, CHANNELS)[:, None]
    p = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (c < G[4]) & (p < G[0])
    flat = (2 * pair * G[4] + c).to(tl.int64) * G[0] + p
    canvas = (pair * G[4] + c).to(tl.int64) * G[3] + p // G[1] * G[2] + p % G[1]
    return tl.program_id(0), flat, canvas, mask, mask & (2 * pair + 1 < samples)


@triton.jit
def _load_pair(pointer, flat, mask, other_mask, G: tl.constexpr):
    """Two samples of a tensor (N, C, H, W); zeros where they don't exist."""
    return tl.load(pointer + flat, mask=mask, other=0.0), tl.load(pointer + flat + G[4] * G[0], mask=other_mask, other=0.0)


@triton.jit
def _store_pair(pointer, flat, mask, other_mask, first, second, G: tl.constexpr):
    tl.store(pointer + flat, first, mask=mask)
    tl.store(pointer + flat + G[4] * G[0], second, mask=other_mask)


@triton.jit
def load_words(canvas, place, mask):
    return parts(tl.load(canvas + place, mask=mask, other=0))


@triton.jit
def store_words(canvas, place, mask, other_mask, first, second):
    tl.store(canvas + place, word(first, tl.where(other_mask, second, 0.0)), mask=mask)


@triton.jit
def channel(pointer, CHANNELS: tl.constexpr, C: tl.constexpr):
    c = tl.arange(0, CHANNELS)
    return tl.load(pointer + c, mask=c < C, other=0.0)[:, None]


@triton.jit
def matrix(pointer, CHANNELS: tl.constexpr, C: tl.constexpr, TRANSPOSED: tl.constexpr):
    row, column = tl.arange(0, CHANNELS)[:, None], tl.arange(0, CHANNELS)[None, :]
    offset = column * C + row if TRANSPOSED else row * C + column
    return tl.load(pointer + offset, mask=(row < C) & (column < C), other=0.0)


@triton.jit
def store_sums(partial, row, slot, slots, tile, CHANNELS: tl.constexpr, C: tl.constexpr):
    """Write a tile's sums over pixels, (CHANNELS,), to a row of partial (·, C, slots)."""
    c = tl.arange(0, CHANNELS)
    tl.store(partial + (row * C + c) * slots + slot, tl.sum(tile, 1), mask=c < C)


@triton.jit
def _gated(h, weight, bias):
    return h * tl.sigmoid(mix(weight, h) + bias)


@triton.jit
def _gate_kernel(h, canvas, weight, bias, samples, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr):
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    first, second = _load_pair(h, flat, mask, other, G)
    w, b = matrix(weight, CHANNELS, G[4], False), channel(bias, CHANNELS, G[4])
    store_words(canvas, place, mask, other, _gated(first, w, b), _gated(second, w, b))


@triton.jit
def _moments_kernel(canvas, partial, samples, slots, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr):
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    first, second = load_words(canvas, place, mask)
    second = tl.where(other, second, 0.0)
    c = tl.arange(0, CHANNELS)
    mean = (tl.sum(first, 1) + tl.sum(second, 1)) / _count(slot, samples, BLOCK, G)
    first, second = tl.where(mask, first - mean[:, None], 0.0), tl.where(other, second - mean[:, None], 0.0)
    tl.store(partial + c * slots + slot, mean, mask=c < G[4])
    tl.store(partial + (G[4] + c) * slots + slot, tl.sum(first * first + second * second, 1), mask=c < G[4])


@triton.jit
def _count(slot, samples, BLOCK: tl.constexpr, G: tl.constexpr):
    """How many values of a channel a program sees."""
    blocks: tl.constexpr = (G[0] + BLOCK - 1) // BLOCK
    pixels = tl.minimum(G[0] - slot % blocks * BLOCK, BLOCK)
    return pixels * tl.minimum(samples - 2 * (slot // blocks), 2)


@triton.jit
def _join_moments_kernel(
    partial, out, samples, slots, total, epsilon, BLOCK: tl.constexpr, CHUNK: tl.constexpr, G: tl.constexpr
):
    """Mean and 1/√(variance + ε) of one channel from means and squared deviations of blocks (Chan et al., 1983)."""
    c = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    summed = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, slots, CHUNK):
        slot = start + lane
        mean = tl.load(partial + c * slots + slot, mask=slot < slots, other=0.0)
        summed += mean * _count(slot, samples, BLOCK, G)
    mean = tl.sum(summed, 0) / total
    squares = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, slots, CHUNK):
        slot = start + lane
        gap = tl.load(partial + c * slots + slot, mask=slot < slots, other=0.0) - mean
        inner = tl.load(partial + (G[4] + c) * slots + slot, mask=slot < slots, other=0.0)
        squares += tl.where(slot < slots, inner + _count(slot, samples, BLOCK, G) * gap * gap, 0.0)
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
def _inhibited(z1, x, h, mean, gain, shift, alpha, mu):
    return softplus(x - softplus(((z1 - mean) * gain + shift) * (alpha * h + mu)))


@triton.jit
def _inhibit_kernel(
    z1, mean, rstd, x, h, canvas, scale, shift, alpha, mu, samples,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    m, b = channel(mean, CHANNELS, G[4]), channel(shift, CHANNELS, G[4])
    gain = channel(rstd, CHANNELS, G[4]) * channel(scale, CHANNELS, G[4])
    a, u = channel(alpha, CHANNELS, G[4]), channel(mu, CHANNELS, G[4])
    z, other_z = load_words(z1, place, mask)
    drive, other_drive = _load_pair(x, flat, mask, other, G)
    state, other_state = _load_pair(h, flat, mask, other, G)
    first = _inhibited(z, drive, state, m, gain, b, a, u)
    store_words(canvas, place, mask, other, first, _inhibited(other_z, other_drive, other_state, m, gain, b, a, u))


@triton.jit
def _updated(z2, s, h, mean, gain, shift, gate2, bias2, kappa, gamma, omega, OUTER: tl.constexpr):
    g2 = tl.sigmoid(mix(gate2, s) + bias2)
    candidate = softplus(kappa * s + (gamma + omega * s) * ((z2 - mean) * gain + shift))
    state = (1 - g2) * h + g2 * candidate
    return softplus(state) if OUTER else state


@triton.jit
def _update_kernel(
    z2, mean, rstd, s_canvas, h, out, canvas, scale, shift, gate2, bias2, kappa, gamma, omega, gate1, bias1, samples,
    OUTER: tl.constexpr, GATE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    m, b = channel(mean, CHANNELS, G[4]), channel(shift, CHANNELS, G[4])
    gain = channel(rstd, CHANNELS, G[4]) * channel(scale, CHANNELS, G[4])
    w, b2 = matrix(gate2, CHANNELS, G[4], False), channel(bias2, CHANNELS, G[4])
    k, g, o = channel(kappa, CHANNELS, G[4]), channel(gamma, CHANNELS, G[4]), channel(omega, CHANNELS, G[4])
    z, other_z = load_words(z2, place, mask)
    s, other_s = load_words(s_canvas, place, mask)
    state, other_state = _load_pair(h, flat, mask, other, G)
    state = _updated(z, s, state, m, gain, b, w, b2, k, g, o, OUTER)
    other_state = _updated(other_z, other_s, other_state, m, gain, b, w, b2, k, g, o, OUTER)
    _store_pair(out, flat, mask, other, state, other_state, G)
    if GATE:
        w, b = matrix(gate1, CHANNELS, G[4], False), channel(bias1, CHANNELS, G[4])
        state, other_state = tl.where(mask, state, 0.0), tl.where(other, other_state, 0.0)
        store_words(canvas, place, mask, other, _gated(state, w, b), _gated(other_state, w, b))


@triton.jit
def _linearize_kernel(
    z1, m1, r1, z2, m2, r2, s_canvas, x, h, out,
    to_excite, to_direct, to_gate2, to_keep, to_z2, to_inhibit, to_scale, to_z1, to_gate1, to_slope1,
    gate1, bias1, gate2, bias2, alpha, mu, kappa, gamma, omega, scale1, shift1, scale2, shift2, samples,
    OUTER: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    weight1, weight2 = matrix(gate1, CHANNELS, G[4], False), matrix(gate2, CHANNELS, G[4], False)
    first_z1, second_z1 = load_words(z1, place, mask)
    first_z2, second_z2 = load_words(z2, place, mask)
    first_s, second_s = load_words(s_canvas, place, mask)
    for k in tl.static_range(2):
        exists = mask if k == 0 else other
        at = flat + k * G[4] * G[0]
        state = tl.load(h + at, mask=exists, other=0.0)
        g1 = tl.sigmoid(mix(weight1, state) + channel(bias1, CHANNELS, G[4]))
        tl.store(to_gate1 + at, g1, mask=exists)
        tl.store(to_slope1 + at, state * g1 * (1 - g1), mask=exists)
        n1 = ((first_z1 if k == 0 else second_z1) - channel(m1, CHANNELS, G[4])) * channel(r1, CHANNELS, G[4])
        tl.store(to_z1 + at, n1, mask=exists)
        c1 = n1 * channel(scale1, CHANNELS, G[4]) + channel(shift1, CHANNELS, G[4])
        t = channel(alpha, CHANNELS, G[4]) * state + channel(mu, CHANNELS, G[4])
        r = c1 * t
        through = -tl.sigmoid(tl.load(x + at, mask=exists, other=0.0) - softplus(r)) * tl.sigmoid(r)
        tl.store(to_inhibit + at, through * t, mask=exists)
        tl.store(to_scale + at, through * c1 * channel(alpha, CHANNELS, G[4]), mask=exists)
        s = first_s if k == 0 else second_s
        g2 = tl.sigmoid(mix(weight2, s) + channel(bias2, CHANNELS, G[4]))
        n2 = ((first_z2 if k == 0 else second_z2) - channel(m2, CHANNELS, G[4])) * channel(r2, CHANNELS, G[4])
        tl.store(to_z2 + at, n2, mask=exists)
        c2 = n2 * channel(scale2, CHANNELS, G[4]) + channel(shift2, CHANNELS, G[4])
        excite = channel(gamma, CHANNELS, G[4]) + channel(omega, CHANNELS, G[4]) * s
        argument = channel(kappa, CHANNELS, G[4]) * s + excite * c2
        candidate = softplus(argument)
        mixed = (1 - g2) * state + g2 * candidate
        slope = tl.full((CHANNELS, BLOCK), 1.0, tl.float32)
        if OUTER:
            slope = tl.sigmoid(mixed)
            tl.store(out + at, softplus(mixed), mask=exists)
        else:
            tl.store(out + at, mixed, mask=exists)
        through = slope * g2 * tl.sigmoid(argument)
        tl.store(to_excite + at, through * excite, mask=exists)
        direct = through * (channel(kappa, CHANNELS, G[4]) + channel(omega, CHANNELS, G[4]) * c2)
        tl.store(to_direct + at, direct, mask=exists)
        tl.store(to_gate2 + at, slope * (candidate - state) * g2 * (1 - g2), mask=exists)
        tl.store(to_keep + at, slope * (1 - g2), mask=exists)


@triton.jit
def _product_sums_kernel(
    v, factor, z, partial, samples, slots, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr
):
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    first, second = _load_pair(v, flat, mask, other, G)
    gain, other_gain = _load_pair(factor, flat, mask, other, G)
    n, other_n = _load_pair(z, flat, mask, other, G)
    first, second = first * gain, second * other_gain
    store_sums(partial, 0, slot, slots, first + second, CHANNELS, G[4])
    store_sums(partial, 1, slot, slots, first * n + second * other_n, CHANNELS, G[4])


@triton.jit
def _norm_adjoint_kernel(
    v, factor, z, sums, gain, canvas, samples, count, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr
):
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    mean = channel(sums, CHANNELS, G[4]) / count
    slope = channel(sums + G[4], CHANNELS, G[4]) / count
    scale = channel(gain, CHANNELS, G[4])
    first, second = _load_pair(v, flat, mask, other, G)
    product, other_product = _load_pair(factor, flat, mask, other, G)
    n, other_n = _load_pair(z, flat, mask, other, G)
    first = scale * (first * product - mean - n * slope)
    store_words(canvas, place, mask, other, first, scale * (second * other_product - mean - other_n * slope))


@triton.jit
def _through_excitation_kernel(
    y2, v, direct, gate2, inhibit, z1, ds, weight, partial, samples, slots,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    w = matrix(weight, CHANNELS, G[4], True)
    first, second = load_words(y2, place, mask)
    v1, v2 = _load_pair(v, flat, mask, other, G)
    f1, f2 = _load_pair(direct, flat, mask, other, G)
    g1, g2 = _load_pair(gate2, flat, mask, other, G)
    first += f1 * v1 + mix(w, g1 * v1)
    second += f2 * v2 + mix(w, g2 * v2)
    _store_pair(ds, flat, mask, other, first, second, G)
    # factors are zero where nothing exists
    f1, f2 = _load_pair(inhibit, flat, mask, other, G)
    n1, n2 = _load_pair(z1, flat, mask, other, G)
    first, second = first * f1, second * f2
    store_sums(partial, 0, slot, slots, first + second, CHANNELS, G[4])
    store_sums(partial, 1, slot, slots, first * n1 + second * n2, CHANNELS, G[4])


@triton.jit
def _through_inhibition_kernel(
    y1, v, ds, keep, scale, gate1, slope1, out, weight, samples,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    w = matrix(weight, CHANNELS, G[4], True)
    dy1, dy2 = load_words(y1, place, mask)
    f1, f2 = _load_pair(slope1, flat, mask, other, G)
    first, second = mix(w, f1 * dy1), mix(w, f2 * dy2)
    f1, f2 = _load_pair(gate1, flat, mask, other, G)
    first, second = first + f1 * dy1, second + f2 * dy2
    f1, f2 = _load_pair(keep, flat, mask, other, G)
    v1, v2 = _load_pair(v, flat, mask, other, G)
    first, second = first + f1 * v1, second + f2 * v2
    f1, f2 = _load_pair(scale, flat, mask, other, G)
    v1, v2 = _load_pair(ds, flat, mask, other, G)
    _store_pair(out, flat, mask, other, first + f1 * v1, second + f2 * v2, G)


def launch(kernel, like: Tensor, canvas: Tensor, *arguments, block: int = BLOCK, warps: int = WARPS, **constants) -> None:
    """Run ``kernel`` on all samples of ``like`` (N, C, H, W); ``canvas`` gives the size of transforms."""
    c, h, w = like.shape[1:]
    columns = canvas.shape[3]
    geometry = (h * w, w, columns, canvas.shape[2] * columns, c)
    grid = (slots_of(like, block),)
    with torch.cuda.device_of(like):
        kernel[grid](
            *arguments, CHANNELS=max(16, triton.next_power_of_2(c)), BLOCK=block, G=geometry, num_warps=warps, **constants
        )


def slots_of(like: Tensor, block: int) -> int:
    """Programs along the first axis of a launch."""
    n, _, h, w = like.shape
    return (n + 1) // 2 * triton.cdiv(h * w, block)


def gate(h: Tensor, canvas: Tensor, w: Weights) -> None:
    launch(_gate_kernel, h, canvas, h, words(canvas), w.gate1, w.bias1, len(h))


def moments(canvas: Tensor, like: Tensor, epsilon: float) -> Moments:
    n, c, h, w = like.shape
    slots = slots_of(like, REDUCTION_BLOCK)
    partial, out = like.new_empty((2, c, slots)), like.new_empty((2, c))
    launch(_moments_kernel, like, canvas, words(canvas), partial, n, slots, block=REDUCTION_BLOCK)
    with torch.cuda.device_of(like):
        _join_moments_kernel[(c,)](
            partial, out, n, slots, n * h * w, epsilon, BLOCK=REDUCTION_BLOCK, CHUNK=1024, G=(h * w,) * 4 + (c,)
        )
    return Moments(*out)


def inhibit(z1: Tensor, m1: Moments, x: Tensor, h: Tensor, canvas: Tensor, w: Weights) -> None:
    launch(
        _inhibit_kernel, h, canvas, words(z1), *m1, x, h, words(canvas), w.scale1, w.shift1, w.alpha, w.mu, len(h)
    )


def update(z2: Tensor, m2: Moments, s_canvas: Tensor, h: Tensor, w: Weights, canvas: Tensor | None) -> Tensor:
    out = torch.empty_like(h)
    launch(
        _update_kernel, h, s_canvas, words(z2), *m2, words(s_canvas), h, out,
        out if canvas is None else words(canvas), w.scale2, w.shift2, w.gate2, w.bias2, w.kappa, w.gamma, w.omega,
        w.gate1, w.bias1, len(h), OUTER=w.outer, GATE=canvas is not None,
    )
    return out


def linearize(
    z1: Tensor, m1: Moments, z2: Tensor, m2: Moments, s_canvas: Tensor, x: Tensor, h: Tensor, w: Weights
) -> tuple[Tensor, Factors]:
    out, factors = torch.empty_like(h), h.new_empty((len(Factors._fields), *h.shape))
    launch(
        _linearize_kernel, h, s_canvas, words(z1), *m1, words(z2), *m2, words(s_canvas), x, h, out, *factors,
        *w[:13], len(h), OUTER=w.outer, block=16, warps=4,
    )
    return out, Factors(*factors)


def product_sums(v: Tensor, factor: Tensor, z: Tensor) -> Tensor:
    slots = slots_of(v, REDUCTION_BLOCK)
    partial = v.new_empty((2, v.shape[1], slots))
    launch(_product_sums_kernel, v, v, v, factor, z, partial, len(v), slots, block=REDUCTION_BLOCK)
    return join_sums(partial)


def norm_adjoint(v: Tensor, factor: Tensor, z: Tensor, sums: Tensor, gain: Tensor, canvas: Tensor) -> None:
    count = v.numel() // v.shape[1]
    launch(_norm_adjoint_kernel, v, canvas, v, factor, z, sums, gain, words(canvas), len(v), count)


def through_excitation(y2: Tensor, v: Tensor, factors: Factors, w: Weights) -> tuple[Tensor, Tensor]:
    slots = slots_of(v, BLOCK)
    partial, ds = v.new_empty((2, v.shape[1], slots)), torch.empty_like(v)
    launch(
        _through_excitation_kernel, v, y2, words(y2), v, factors.direct, factors.gate2, factors.inhibit, factors.z1, ds,
        w.gate2, partial, len(v), slots,
    )
    return ds, join_sums(partial)


def through_inhibition(y1: Tensor, v: Tensor, ds: Tensor, factors: Factors, w: Weights) -> Tensor:
    out = torch.empty_like(v)
    launch(
        _through_inhibition_kernel, v, y1, words(y1), v, ds, factors.keep, factors.scale, factors.gate1,
        factors.slope1, out, w.gate1, len(v),
    )
    return out


def join_sums(partial: Tensor) -> Tensor:
    rows, slots = partial.shape[0] * partial.shape[1], partial.shape[2]
    out = partial.new_empty(partial.shape[:2])
    with torch.cuda.device_of(partial):
        _join_sums_kernel[(rows,)](partial, out, slots, CHUNK=1024)
    return out
