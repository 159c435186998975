"""Triton kernels for products of spectra: out[j, i, f] = Σ_r a[i, r, f]·b[j, r, f], complex, at every frequency f."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = (32, 16, 16, 8)  # rows, columns and frequencies of a program, and its warps


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
    entries, (c_out, c_in) = len(transformed), spectrum.shape[:2]
    plane = spectrum.shape[2] * spectrum.shape[3]
    rows, terms = (c_in, c_out) if transposed else (c_out, c_in)
    strides = (plane, c_in * plane) if transposed else (c_in * plane, plane)
    out = transformed.new_empty((entries, rows, *spectrum.shape[2:]))
    return _contract(
        spectrum, transformed, out, rows, entries, terms, strides, (terms * plane, plane), (plane, rows * plane), transposed
    )


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
