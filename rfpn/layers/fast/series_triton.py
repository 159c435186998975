"""A term of the Neumann series, judged and added in two Triton kernels: what :func:`rfpn.fixed_point.neumann.add_term` does."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
WARPS = 8


@triton.jit(do_not_specialize=["size", "blocks"])
def _square_kernel(term, squares, size, blocks, BLOCK: tl.constexpr):
    """Σ t² of one block of one sample."""
    sample, first = tl.program_id(0) // blocks, tl.program_id(0) % blocks * BLOCK
    i = first + tl.arange(0, BLOCK)
    t = tl.load(term + sample.to(tl.int64) * size + i, mask=i < size, other=0.0)
    tl.store(squares + tl.program_id(0), tl.sum(t * t))


@triton.jit(do_not_specialize=["size", "blocks"])
def _add_kernel(total, term, squares, limit, out, norm, size, blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """out = total + term in one block of one sample if the whole sample's norm allows it, else total and a term of 0."""
    sample, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    k = tl.arange(0, BLOCKS)
    length = tl.sqrt(tl.sum(tl.load(squares + sample * blocks + k, mask=k < blocks, other=0.0)))
    kept = tl.where(length <= tl.load(limit + sample), size, 0)
    i = block * BLOCK + tl.arange(0, BLOCK)
    place, mask = sample.to(tl.int64) * size + i, i < size
    t = tl.load(term + place, mask=i < kept, other=0.0)
    tl.store(out + place, tl.load(total + place, mask=mask, other=0.0) + t, mask=mask)
    tl.store(term + place, t, mask=mask & (i >= kept))
    if block == 0:
        tl.store(norm + sample, length)


def add_term(total: Tensor, term: Tensor, limit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`rfpn.fixed_point.neumann.add_term`; float32, one sample after the other in memory. Writes to ``term``."""
    if total.stride() != term.stride():
        total = torch.empty_like(term).copy_(total)
    samples, size = len(term), term[0].numel()
    blocks = triton.cdiv(size, BLOCK)
    squares, norm = term.new_empty((samples, blocks)), term.new_empty(samples)
    out = torch.empty_like(term)
    with torch.cuda.device_of(term):
        _square_kernel[(samples * blocks,)](term, squares, size, blocks, BLOCK=BLOCK, num_warps=WARPS)
        _add_kernel[(samples * blocks,)](
            total, term, squares, limit, out, norm, size, blocks,
            BLOCK=BLOCK, BLOCKS=triton.next_power_of_2(blocks), num_warps=WARPS,
        )
    return out, term, norm
