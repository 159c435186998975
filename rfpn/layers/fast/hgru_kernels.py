"""Triton kernels of :mod:`rfpn.layers.fast.hgru_triton`."""

import triton
import triton.language as tl

from rfpn.layers.fast.canvas_triton import (
    channel,
    load_pair,
    load_words,
    matrix,
    mix,
    place_pair,
    softplus,
    store_pair,
    store_sums,
    store_words,
)


@triton.jit
def _gated(h, weight, bias):
    return h * tl.sigmoid(mix(weight, h) + bias)


@triton.jit
def gate_kernel(h, canvas, weight, bias, samples, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr):
    """h⊙σ(U1∗h + b1) into ``canvas``; h (N, C, H, W)."""
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    first, second = load_pair(h, flat, mask, other, G)
    w, b = matrix(weight, CHANNELS, G[4], False), channel(bias, CHANNELS, G[4])
    store_words(canvas, place, mask, other, _gated(first, w, b), _gated(second, w, b))


@triton.jit
def moments_kernel(canvas, partial, samples, slots, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr):
    """Mean and squared deviations of each channel over a program's pixels, into partial (2, C, slots)."""
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
def join_moments_kernel(
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
def _inhibited(z1, x, h, mean, gain, shift, alpha, mu):
    return softplus(x - softplus(((z1 - mean) * gain + shift) * (alpha * h + mu)))


@triton.jit
def inhibit_kernel(
    z1, mean, rstd, x, h, canvas, scale, shift, alpha, mu, samples,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    """s = ζ(x − ζ(c1⊙(α h + μ))) into ``canvas``, c1 = BN(z1); x, h (N, C, H, W), z1 a canvas."""
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    m, b = channel(mean, CHANNELS, G[4]), channel(shift, CHANNELS, G[4])
    gain = channel(rstd, CHANNELS, G[4]) * channel(scale, CHANNELS, G[4])
    a, u = channel(alpha, CHANNELS, G[4]), channel(mu, CHANNELS, G[4])
    z, other_z = load_words(z1, place, mask)
    drive, other_drive = load_pair(x, flat, mask, other, G)
    state, other_state = load_pair(h, flat, mask, other, G)
    first = _inhibited(z, drive, state, m, gain, b, a, u)
    store_words(canvas, place, mask, other, first, _inhibited(other_z, other_drive, other_state, m, gain, b, a, u))


@triton.jit
def _updated(z2, s, h, mean, gain, shift, gate2, bias2, kappa, gamma, omega, OUTER: tl.constexpr):
    g2 = tl.sigmoid(mix(gate2, s) + bias2)
    candidate = softplus(kappa * s + (gamma + omega * s) * ((z2 - mean) * gain + shift))
    state = (1 - g2) * h + g2 * candidate
    return softplus(state) if OUTER else state


@triton.jit
def update_kernel(
    z2, mean, rstd, s_canvas, h, out, canvas, scale, shift, gate2, bias2, kappa, gamma, omega, gate1, bias1, samples,
    OUTER: tl.constexpr, GATE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    """The next state into ``out`` (N, C, H, W) and, with GATE, its gated form into ``canvas``; OUTER: the released form."""
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    m, b = channel(mean, CHANNELS, G[4]), channel(shift, CHANNELS, G[4])
    gain = channel(rstd, CHANNELS, G[4]) * channel(scale, CHANNELS, G[4])
    w, b2 = matrix(gate2, CHANNELS, G[4], False), channel(bias2, CHANNELS, G[4])
    k, g, o = channel(kappa, CHANNELS, G[4]), channel(gamma, CHANNELS, G[4]), channel(omega, CHANNELS, G[4])
    z, other_z = load_words(z2, place, mask)
    s, other_s = load_words(s_canvas, place, mask)
    state, other_state = load_pair(h, flat, mask, other, G)
    state = _updated(z, s, state, m, gain, b, w, b2, k, g, o, OUTER)
    other_state = _updated(other_z, other_s, other_state, m, gain, b, w, b2, k, g, o, OUTER)
    store_pair(out, flat, mask, other, state, other_state, G)
    if GATE:
        w, b = matrix(gate1, CHANNELS, G[4], False), channel(bias1, CHANNELS, G[4])
        state, other_state = tl.where(mask, state, 0.0), tl.where(other, other_state, 0.0)
        store_words(canvas, place, mask, other, _gated(state, w, b), _gated(other_state, w, b))


@triton.jit
def linearize_kernel(
    z1, m1, r1, z2, m2, r2, s_canvas, x, h, out,
    to_excite, to_direct, to_gate2, to_lose, to_z2, to_inhibit, to_scale, to_z1, to_gate1, to_slope1,
    gate1, bias1, gate2, bias2, alpha, mu, kappa, gamma, omega, scale1, shift1, scale2, shift2, samples,
    OUTER: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    """The next state into ``out`` and the ten factors of J (hgru_stages.Factors), all (N, C, H, W)."""
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
        tl.store(to_lose + at, 1 - slope * (1 - g2), mask=exists)


@triton.jit
def product_sums_kernel(
    v, factor, z, partial, samples, slots, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr
):
    """Σ factor⊙v and Σ factor⊙v⊙z over a program's pixels, into partial (2, C, slots)."""
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    first, second = load_pair(v, flat, mask, other, G)
    gain, other_gain = load_pair(factor, flat, mask, other, G)
    n, other_n = load_pair(z, flat, mask, other, G)
    first, second = first * gain, second * other_gain
    store_sums(partial, 0, slot, slots, first + second, CHANNELS, G[4])
    store_sums(partial, 1, slot, slots, first * n + second * other_n, CHANNELS, G[4])


@triton.jit
def norm_adjoint_kernel(
    v, factor, z, sums, gain, canvas, samples, count, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr
):
    """Adjoint of a batch norm for the cotangent factor⊙v, into ``canvas``; sums (2, C) of product_sums, gain (C,)."""
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    mean = channel(sums, CHANNELS, G[4]) / count
    slope = channel(sums + G[4], CHANNELS, G[4]) / count
    scale = channel(gain, CHANNELS, G[4])
    first, second = load_pair(v, flat, mask, other, G)
    product, other_product = load_pair(factor, flat, mask, other, G)
    n, other_n = load_pair(z, flat, mask, other, G)
    first = scale * (first * product - mean - n * slope)
    store_words(canvas, place, mask, other, first, scale * (second * other_product - mean - other_n * slope))


@triton.jit
def through_excitation_kernel(
    y2, v, direct, gate2, inhibit, z1, ds, weight, partial, samples, slots,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    """ds = y2 + direct⊙v + U2ᵀ(gate2⊙v), (N, C, H, W), and product_sums of it with ``inhibit``, partial (2, C, slots)."""
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    w = matrix(weight, CHANNELS, G[4], True)
    first, second = load_words(y2, place, mask)
    v1, v2 = load_pair(v, flat, mask, other, G)
    f1, f2 = load_pair(direct, flat, mask, other, G)
    g1, g2 = load_pair(gate2, flat, mask, other, G)
    first += f1 * v1 + mix(w, g1 * v1)
    second += f2 * v2 + mix(w, g2 * v2)
    store_pair(ds, flat, mask, other, first, second, G)
    # factors are zero where nothing exists
    f1, f2 = load_pair(inhibit, flat, mask, other, G)
    n1, n2 = load_pair(z1, flat, mask, other, G)
    first, second = first * f1, second * f2
    store_sums(partial, 0, slot, slots, first + second, CHANNELS, G[4])
    store_sums(partial, 1, slot, slots, first * n1 + second * n2, CHANNELS, G[4])


@triton.jit
def through_inhibition_kernel(
    y1, v, ds, lose, scale, gate1, slope1, out, weight, samples,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, G: tl.constexpr,
):
    """Jᵀv = v − lose⊙v + scale⊙ds + gate1⊙y1 + U1ᵀ(slope1⊙y1) into ``out`` (N, C, H, W); y1 a canvas."""
    slot, flat, place, mask, other = place_pair(samples, CHANNELS, BLOCK, G)
    w = matrix(weight, CHANNELS, G[4], True)
    dy1, dy2 = load_words(y1, place, mask)
    f1, f2 = load_pair(slope1, flat, mask, other, G)
    first, second = mix(w, f1 * dy1), mix(w, f2 * dy2)
    f1, f2 = load_pair(gate1, flat, mask, other, G)
    first, second = first + f1 * dy1, second + f2 * dy2
    f1, f2 = load_pair(lose, flat, mask, other, G)
    v1, v2 = load_pair(v, flat, mask, other, G)
    first, second = first + (v1 - f1 * v1), second + (v2 - f2 * v2)
    f1, f2 = load_pair(scale, flat, mask, other, G)
    v1, v2 = load_pair(ds, flat, mask, other, G)
    store_pair(out, flat, mask, other, first + f1 * v1, second + f2 * v2, G)
