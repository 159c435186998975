"""Triton kernels for products of spectra: out[j, i, f] = Σ_r a[i, r, f]·b[j, r, f], complex, at every frequency f.

In float32 by multiplications and additions, in bfloat16 on tensor cores.
"""

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = (32, 16, 16, 8)  # rows, columns and frequencies of a program, and its warps
# tensor cores: rows and columns of a program, at most so many terms at once, frequencies times terms, warps
HALF_TILE = (32, 16, 64, 128, 4)
# the interpreter multiplies bits of bfloat16 as if they were integers
_OPERANDS = tl.float32 if os.environ.get("TRITON_INTERPRET") == "1" else tl.bfloat16


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
def _contract_kernel(
    a, b, out, rows, columns, terms, frequencies, a_row, a_term, b_column, b_term, out_row, out_column,
    CONJUGATE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):
    """A tile of out, (ROWS, COLUMNS, BLOCK); CONJUGATE takes conj(a). Strides of rows, columns and terms are in words."""
    # programs that share a slice of `a` run side by side, so that it is read from memory once
    j = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :, None]
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None, None]
    f = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)[None, None, :]
    mask_a, mask_b = (i < rows) & (f < frequencies), (j < columns) & (f < frequencies)
    real = tl.zeros((ROWS, COLUMNS, BLOCK), tl.float32)
    imaginary = tl.zeros((ROWS, COLUMNS, BLOCK), tl.float32)
    # the next term's operands are on their way while this one's are used
    next_a = tl.load(a + i * a_row + f, mask=mask_a, other=0)
    next_b = tl.load(b + j * b_column + f, mask=mask_b, other=0)
    for r in range(1, terms + 1):
        a_real, a_imaginary = parts(next_a)
        b_real, b_imaginary = parts(next_b)
        next_a = tl.load(a + i * a_row + r * a_term + f, mask=mask_a & (r < terms), other=0)
        next_b = tl.load(b + j * b_column + r * b_term + f, mask=mask_b & (r < terms), other=0)
        if CONJUGATE:
            a_imaginary = -a_imaginary
        real += a_real * b_real - a_imaginary * b_imaginary
        imaginary += a_real * b_imaginary + a_imaginary * b_real
    mask = (i < rows) & (j < columns) & (f < frequencies)
    tl.store(out + i * out_row + j * out_column + f, word(real, imaginary), mask=mask)


@triton.jit
def _halves(pair):
    """Two bfloat16 read as one 32-bit word, real part first -> both in float32."""
    return (pair << 16).to(tl.float32, bitcast=True), (pair & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _half_product_kernel(
    a, b, out, rows, columns, terms, frequencies, a_row, a_term, a_frequency,
    CONJUGATE: tl.constexpr, CHUNKS: tl.constexpr, OPERANDS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr, BLOCK: tl.constexpr,
):
    """BLOCK products of matrices (ROWS, terms)·(terms, COLUMNS); a: pairs of bfloat16, b and out: words (columns, ·, f)."""
    # programs that share a slice of `a` run side by side, so that it is read from memory once
    j = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, None, :]
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None, None]
    i = tl.program_id(2) * ROWS + tl.arange(0, ROWS)[None, :, None]
    real = tl.zeros((BLOCK, ROWS, COLUMNS), tl.float32)
    imaginary = tl.zeros((BLOCK, ROWS, COLUMNS), tl.float32)
    for chunk in tl.static_range(CHUNKS):
        r_a = chunk * TERMS + tl.arange(0, TERMS)[None, None, :]
        r_b = chunk * TERMS + tl.arange(0, TERMS)[None, :, None]
        mask_a, mask_b = (i < rows) & (r_a < terms), (j < columns) & (r_b < terms)
        a_pair = tl.load(a + i * a_row + r_a * a_term + f * a_frequency, mask=mask_a & (f < frequencies), other=0)
        b_word = tl.load(b + (j * terms + r_b) * frequencies + f, mask=mask_b & (f < frequencies), other=0)
        a_real, a_imaginary = _halves(a_pair)
        b_real, b_imaginary = parts(b_word)
        if CONJUGATE:
            a_imaginary = -a_imaginary
        a_minus = (-a_imaginary).to(OPERANDS)
        a_real, a_imaginary = a_real.to(OPERANDS), a_imaginary.to(OPERANDS)
        b_real, b_imaginary = b_real.to(OPERANDS), b_imaginary.to(OPERANDS)
        real = tl.dot(a_real, b_real, real)
        real = tl.dot(a_minus, b_imaginary, real)
        imaginary = tl.dot(a_real, b_imaginary, imaginary)
        imaginary = tl.dot(a_imaginary, b_real, imaginary)
    mask = (i < rows) & (j < columns) & (f < frequencies)
    tl.store(out + (j * rows + i) * frequencies + f, word(real, imaginary), mask=mask)


def words(canvas: Tensor) -> Tensor:
    """A complex64 tensor as 64-bit words, for :func:`parts` and :func:`word`."""
    return torch.view_as_real(canvas).view(torch.int64)


def _contract(a, b, out, rows, columns, terms, a_strides, b_strides, out_strides, conjugate):
    frequencies = out.shape[-2] * out.shape[-1]
    block_rows, block_columns, block, warps = TILE
    grid = (triton.cdiv(columns, block_columns), triton.cdiv(rows, block_rows), triton.cdiv(frequencies, block))
    # 128 registers: two programs share a multiprocessor
    with torch.cuda.device_of(out):
        _contract_kernel[grid](
            words(a.contiguous()), words(b.contiguous()), words(out), rows, columns, terms, frequencies,
            *a_strides, *b_strides, *out_strides,
            CONJUGATE=conjugate, ROWS=block_rows, COLUMNS=block_columns, BLOCK=block, num_warps=warps, maxnreg=128,
        )
    return out


def multiply(transformed: Tensor, spectrum: Tensor, transposed: bool) -> Tensor:
    """See :func:`rfpn.layers.fast.spectral.multiply`."""
    if not spectrum.is_complex():
        return _multiply_half(transformed, spectrum, transposed)
    entries, (c_out, c_in) = len(transformed), spectrum.shape[:2]
    plane = spectrum.shape[2] * spectrum.shape[3]
    rows, terms = (c_in, c_out) if transposed else (c_out, c_in)
    strides = (plane, c_in * plane) if transposed else (c_in * plane, plane)
    out = transformed.new_empty((entries, rows, *spectrum.shape[2:]))
    return _contract(
        spectrum, transformed, out, rows, entries, terms, strides, (terms * plane, plane), (plane, rows * plane), transposed
    )


def _multiply_half(transformed: Tensor, spectrum: Tensor, transposed: bool) -> Tensor:
    entries, (s1, s2, c_in, c_out, _) = len(transformed), spectrum.shape
    rows, terms = (c_in, c_out) if transposed else (c_out, c_in)
    strides = (c_out, 1) if transposed else (1, c_out)
    block_rows, columns, most_terms, most, warps = HALF_TILE
    block_terms = min(most_terms, max(16, triton.next_power_of_2(terms)))
    block = most // block_terms
    out = transformed.new_empty((entries, rows, s1, s2))
    grid = (triton.cdiv(entries, columns), triton.cdiv(s1 * s2, block), triton.cdiv(rows, block_rows))
    with torch.cuda.device_of(out):
        _half_product_kernel[grid](
            spectrum.view(torch.int32), words(transformed.contiguous()), words(out), rows, entries, terms, s1 * s2,
            *strides, c_in * c_out, CONJUGATE=transposed, CHUNKS=triton.cdiv(terms, block_terms), OPERANDS=_OPERANDS,
            ROWS=block_rows, COLUMNS=columns, TERMS=block_terms, BLOCK=block, num_warps=warps,
        )
    return out


def cross_spectrum(cotangent: Tensor, transformed: Tensor) -> Tensor:
    """Σ_m conj(cotangent[m, o])·transformed[m, i]: (Co, Ci, S1, S2)."""
    entries, c_out = cotangent.shape[:2]
    c_in = transformed.shape[1]
    plane = transformed.shape[2] * transformed.shape[3]
    out = transformed.new_empty((c_out, c_in, *transformed.shape[2:]))
    return _contract(
        cotangent, transformed, out, c_out, c_in, entries,
        (plane, c_out * plane), (plane, c_in * plane), (c_in * plane, plane), True,
    )
