"""Faster forms of the cells, chosen automatically and never required; the plain forms are their reference.

A fast form is made for one forward pass by :func:`bind` and offers what :class:`rfpn.layers.plain.PlainForm` does:
``step``, ``iterate`` and ``record``.
"""

import importlib.util
import os

import torch
from torch import Tensor, nn

FAST = ("auto", "off")
# below this edge, direct convolutions win over the frequency domain
_SMALLEST_SPECTRAL_KERNEL = 7


def available(x: Tensor) -> bool:
    """Whether this project's Triton kernels can work on ``x``: single precision on CUDA, with Triton installed."""
    if x.dtype not in (torch.float32, torch.complex64) or importlib.util.find_spec("triton") is None:
        return False
    return x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"


def compiles(device: str) -> bool:
    """Whether stages between convolutions go through torch.compile: on CUDA, with Triton installed."""
    return device == "cuda" and importlib.util.find_spec("triton") is not None


def bind(cell: nn.Module, x: Tensor):
    """The fast form of ``cell`` for drive x (R, C, H, W), or None where the plain one is to be used."""
    from rfpn.layers.hgru import HGRUCell

    # a subclass may compute something else, and hooks want to see the cell called
    if type(cell) is not HGRUCell or cell._forward_hooks or cell._forward_pre_hooks or not available(x):
        return None
    same = all(p.dtype == x.dtype and p.device == x.device for p in cell.parameters())
    if not same or x.dim() != 4 or not len(x) or cell.inhibition.kernel_size[0] < _SMALLEST_SPECTRAL_KERNEL:
        return None
    from rfpn.layers.fast.hgru import FastHGRU

    return FastHGRU(cell, x)
