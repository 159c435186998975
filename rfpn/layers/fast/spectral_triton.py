"""Triton kernels for products of spectra, complex numbers at every frequency."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# output channels, canvas entries (or input channels), frequencies of a program, and its warps
MULTIPLY_TILE = (32, 16, 16, 16)
CROSS_TILE = (32, 16, 16, 8)


@triton.jit
def parts(word):
    """A complex64 read as one 64-bit word -> real and imaginary part."""
    real = word.to(tl.int32).to(tl.float32, bitcast=True)
    return real, (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def word(real, imaginary):
    """Real and imaginary part, float32 -> a complex64 as one 64-bit word."""
    low = real.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return low | (imaginary.to(tl.int32, bitcast=True).to(tl.int64) << 32)


@triton.jit
def _multiply_kernel(
    kernel, x, out, rows, entries, terms, kernel_row, kernel_term,
    CONJUGATE: tl.constexpr, S1: tl.constexpr, S2: tl.constexpr,
    ROWS: tl.constexpr, ENTRIES: tl.constexpr, BLOCK: tl.constexpr,
):
    """out[j, i, f] = Σ_r k[i, r, f]·x[j, r, f] for a tile (ROWS, ENTRIES, BLOCK) and for the mirrored frequencies −f.

    ``kernel`` holds rows 0 … S1//2 of k, and k[−f] = conj(k[f]); CONJUGATE takes conj(k). Strides are in words.
    """
    half: tl.constexpr = (S1 // 2 + 1) * S2
    # programs that share a slice of the kernel run side by side, so that it is read from memory once
    j = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)[None, :, None]
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None, None]
    f = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)[None, None, :]
    row = f // S2
    mirrored = (S1 - row) * S2 + (S2 - f % S2) % S2
    # a row that is its own mirror is whole already
    own = f < half
    other = own & (row > 0) & (2 * row != S1)
    kernel_mask, mask, other_mask = (i < rows) & own, (j < entries) & own, (j < entries) & other
    real = tl.zeros((ROWS, ENTRIES, BLOCK), tl.float32)
    imaginary = tl.zeros((ROWS, ENTRIES, BLOCK), tl.float32)
    other_real = tl.zeros((ROWS, ENTRIES, BLOCK), tl.float32)
    other_imaginary = tl.zeros((ROWS, ENTRIES, BLOCK), tl.float32)
    place, other_place = j * (terms * S1 * S2) + f, j * (terms * S1 * S2) + mirrored
    # the next term's operands are on their way while this one's are used
    next_k = tl.load(kernel + i * kernel_row + f, mask=kernel_mask, other=0)
    next_x = tl.load(x + place, mask=mask, other=0)
    next_other = tl.load(x + other_place, mask=other_mask, other=0)
    for r in range(1, terms + 1):
        k_real, k_imaginary = parts(next_k)
        x_real, x_imaginary = parts(next_x)
        other_x_real, other_x_imaginary = parts(next_other)
        more = r < terms
        next_k = tl.load(kernel + i * kernel_row + r * kernel_term + f, mask=kernel_mask & more, other=0)
        next_x = tl.load(x + place + r * (S1 * S2), mask=mask & more, other=0)
        next_other = tl.load(x + other_place + r * (S1 * S2), mask=other_mask & more, other=0)
        if CONJUGATE:
            k_imaginary = -k_imaginary
        real += k_real * x_real - k_imaginary * x_imaginary
        imaginary += k_real * x_imaginary + k_imaginary * x_real
        other_real += k_real * other_x_real + k_imaginary * other_x_imaginary
        other_imaginary += k_real * other_x_imaginary - k_imaginary * other_x_real
    to = out + (j * rows + i) * (S1 * S2)
    tl.store(to + f, word(real, imaginary), mask=mask & (i < rows))
    tl.store(to + mirrored, word(other_real, other_imaginary), mask=other_mask & (i < rows))


@triton.jit
def _cross_kernel(
    a, b, out, rows, columns, terms, frequencies, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr
):
    """out[i, j, f] = Σ_r conj(a[r, i, f])·b[r, j, f] for a tile (ROWS, COLUMNS, BLOCK)."""
    j = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :, None]
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None, None]
    f = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)[None, None, :]
    mask_a, mask_b = (i < rows) & (f < frequencies), (j < columns) & (f < frequencies)
    real = tl.zeros((ROWS, COLUMNS, BLOCK), tl.float32)
    imaginary = tl.zeros((ROWS, COLUMNS, BLOCK), tl.float32)
    next_a = tl.load(a + i * frequencies + f, mask=mask_a, other=0)
    next_b = tl.load(b + j * frequencies + f, mask=mask_b, other=0)
    for r in range(1, terms + 1):
        a_real, a_imaginary = parts(next_a)
        b_real, b_imaginary = parts(next_b)
        next_a = tl.load(a + (r * rows + i) * frequencies + f, mask=mask_a & (r < terms), other=0)
        next_b = tl.load(b + (r * columns + j) * frequencies + f, mask=mask_b & (r < terms), other=0)
        real += a_real * b_real + a_imaginary * b_imaginary
        imaginary += a_real * b_imaginary - a_imaginary * b_real
    mask = (i < rows) & (j < columns) & (f < frequencies)
    tl.store(out + (i * columns + j) * frequencies + f, word(real, imaginary), mask=mask)


def words(canvas: Tensor) -> Tensor:
    """A complex64 tensor as 64-bit words, for :func:`parts` and :func:`word`."""
    return torch.view_as_real(canvas).view(torch.int64)


def multiply(transformed: Tensor, spectrum: Tensor, transposed: bool) -> Tensor:
    """See :func:`rfpn.layers.fast.spectral.multiply`."""
    entries, _, s1, s2 = transformed.shape
    c_out, c_in = spectrum.shape[:2]
    half = spectrum.shape[2] * s2
    rows, terms, strides = (c_in, c_out, (half, c_in * half)) if transposed else (c_out, c_in, (c_in * half, half))
    out = transformed.new_empty((entries, rows, s1, s2))
    block_rows, block_entries, block, warps = MULTIPLY_TILE
    grid = (triton.cdiv(entries, block_entries), triton.cdiv(rows, block_rows), triton.cdiv(half, block))
    with torch.cuda.device_of(out):
        _multiply_kernel[grid](
            words(spectrum), words(transformed.contiguous()), words(out), rows, entries, terms, *strides,
            CONJUGATE=transposed, S1=s1, S2=s2,
            ROWS=block_rows, ENTRIES=block_entries, BLOCK=block, num_warps=warps, maxnreg=128,
        )
    return out


def cross_spectrum(cotangent: Tensor, transformed: Tensor) -> Tensor:
    """Σ_m conj(cotangent[m, o])·transformed[m, i]: (Co, Ci, S1, S2)."""
    entries, c_out = cotangent.shape[:2]
    c_in, s1, s2 = transformed.shape[1:]
    out = transformed.new_empty((c_out, c_in, s1, s2))
    block_rows, block_columns, block, warps = CROSS_TILE
    grid = (triton.cdiv(c_in, block_columns), triton.cdiv(c_out, block_rows), triton.cdiv(s1 * s2, block))
    # 128 registers: two programs share a multiprocessor
    with torch.cuda.device_of(out):
        _cross_kernel[grid](
            words(cotangent.contiguous()), words(transformed.contiguous()), words(out), c_out, c_in, entries, s1 * s2,
            ROWS=block_rows, COLUMNS=block_columns, BLOCK=block, num_warps=warps, maxnreg=128,
        )
    return out
