"""What kernels on canvases share: where a program works, words of two samples, sums over the batch.

A program works on all channels (a power of two, CHANNELS ≥ C) of BLOCK pixels of two samples, the two of a canvas entry, so
that it reads and writes whole words. Sums over the batch are written per program and added by a second kernel, in an
order that is always the same. G: pixels H·W, W, S2, S1·S2, C.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfpn.layers.fast.spectral_triton import parts, word

BLOCK = 32  # pixels of a program with many live values
REDUCTION_BLOCK = 128  # pixels of a program that only sums
WARPS = 8


@triton.jit
def softplus(v):
    """ζ(v) = log(1 + eᵛ), element by element, accurate for v far below 0 too."""
    e = tl.exp(-tl.abs(v))
    u = 1 + e
    # log(1 + e) without losing e < 2^-24 (Kahan)
    return tl.maximum(v, 0.0) + tl.where(u == 1, e, tl.log(u) * (e / tl.where(u == 1, 1.0, u - 1)))


@triton.jit
def mix(matrix, x):
    """1×1 convolution in float32: matrix (CHANNELS, CHANNELS) times a tile (CHANNELS, BLOCK)."""
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
def load_pair(pointer, flat, mask, other_mask, G: tl.constexpr):
    """Two samples of a tensor (N, C, H, W); zeros where they don't exist."""
    return tl.load(pointer + flat, mask=mask, other=0.0), tl.load(pointer + flat + G[4] * G[0], mask=other_mask, other=0.0)


@triton.jit
def store_pair(pointer, flat, mask, other_mask, first, second, G: tl.constexpr):
    """Write the tiles of two samples to a tensor (N, C, H, W), where they exist."""
    tl.store(pointer + flat, first, mask=mask)
    tl.store(pointer + flat + G[4] * G[0], second, mask=other_mask)


@triton.jit
def load_words(canvas, place, mask):
    """Both samples of a canvas, given as words: two tiles (CHANNELS, BLOCK)."""
    return parts(tl.load(canvas + place, mask=mask, other=0))


@triton.jit
def store_words(canvas, place, mask, other_mask, first, second):
    """Write the tiles of two samples into a canvas of words; a second sample that doesn't exist becomes zero."""
    tl.store(canvas + place, word(first, tl.where(other_mask, second, 0.0)), mask=mask)


@triton.jit
def channel(pointer, CHANNELS: tl.constexpr, C: tl.constexpr):
    """A vector (C,) as a column (CHANNELS, 1), zero from C on."""
    c = tl.arange(0, CHANNELS)
    return tl.load(pointer + c, mask=c < C, other=0.0)[:, None]


@triton.jit
def matrix(pointer, CHANNELS: tl.constexpr, C: tl.constexpr, TRANSPOSED: tl.constexpr):
    """A matrix (C, C) or its transpose as (CHANNELS, CHANNELS), zero from C on."""
    row, column = tl.arange(0, CHANNELS)[:, None], tl.arange(0, CHANNELS)[None, :]
    offset = column * C + row if TRANSPOSED else row * C + column
    return tl.load(pointer + offset, mask=(row < C) & (column < C), other=0.0)


@triton.jit
def store_sums(partial, row, slot, slots, tile, CHANNELS: tl.constexpr, C: tl.constexpr):
    """Write a tile's sums over pixels, (CHANNELS,), to a row of partial (·, C, slots)."""
    c = tl.arange(0, CHANNELS)
    tl.store(partial + (row * C + c) * slots + slot, tl.sum(tile, 1), mask=c < C)


@triton.jit
def _join_sums_kernel(partial, out, slots, CHUNK: tl.constexpr):
    """Sum of one row of partial (·, C, slots) over its slots."""
    row = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    summed = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, slots, CHUNK):
        slot = start + lane
        summed += tl.load(partial + row * slots + slot, mask=slot < slots, other=0.0)
    tl.store(out + row, tl.sum(summed, 0))


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


def join_sums(partial: Tensor) -> Tensor:
    """Sums over the programs of a launch: partial (rows, C, slots) -> (rows, C)."""
    rows, slots = partial.shape[0] * partial.shape[1], partial.shape[2]
    out = partial.new_empty(partial.shape[:2])
    with torch.cuda.device_of(partial):
        _join_sums_kernel[(rows,)](partial, out, slots, CHUNK=1024)
    return out
