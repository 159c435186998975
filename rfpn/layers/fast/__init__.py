"""Faster forms of the cells, chosen automatically and never required; the plain forms are their reference.

A fast form is made for one forward pass by :func:`bind` and offers what :class:`rfpn.layers.plain.PlainForm` does:
``step``, ``iterate``, ``record`` and ``neumann_series``.
"""

import functools
import importlib.util
import logging
import os

import torch
from torch import Tensor, nn

from rfpn.layers.modes import autocast_dtype, computed_at_once
from rfpn.layers.parts import as_made

FAST = ("auto", "off")
# below these edges, direct convolutions win over the frequency domain or were not compared with it
_SMALLEST_SPECTRAL_KERNEL = 3
_SMALLEST_SPECTRAL_KERNEL_CPU = 11
# kernels of the hGRU's gates hold a square of its channels: 96 KiB for 128
_MOST_SPECTRAL_CHANNELS = 64
# pixels of a RoI: kernels with a group norm hold all of them
_MOST_PIXELS = 256
# programs hold whole groups: with more channels than that they take minutes to compile
_MOST_CHANNELS_OF_A_GROUP = 64
# bytes of a pixel in the gates' hidden layer: kernels hold a square of its channels in shared memory, 128 KiB for 64 of float32
_MOST_GATE_BYTES = 256
# kernels count elements in 32 bits
_MOST_ELEMENTS = 2**31 - 1
# programs along the second and third axis of a launch
_MOST_PROGRAMS = 65_535
# frequencies that a program serves at least, in float32 and in bfloat16: by the tiles of spectral_triton
_FREQUENCIES = {False: 16, True: 2}


def available(x: Tensor) -> bool:
    """Whether this project's Triton kernels can work on ``x``: at most single precision, on CUDA, with Triton installed."""
    if x.dtype in (torch.float64, torch.complex128) or importlib.util.find_spec("triton") is None:
        return False
    return (x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1") and _kernels_run(x.device)


@functools.lru_cache(maxsize=None)
def _kernels_run(device: torch.device) -> bool:
    """Whether Triton compiles and launches here: it needs a C compiler at run time and a card it knows."""
    one = torch.ones((1, 1, 1, 1), dtype=torch.complex64, device=device)
    try:
        from rfpn.layers.fast.spectral_triton import multiply

        return bool((multiply(one, one, False) == 1).all())
    except Exception as error:  # compilers and drivers fail in many ways, and none of them may stop a run
        reason = str(error).strip().splitlines() or [type(error).__name__]
        logging.getLogger(__name__).warning("Triton kernels do not run on %s, plain forms do: %s", device, reason[0])
        return False


def bind(cell: nn.Module, x: Tensor):
    """The fast form of ``cell`` for drive x (R, C, H, W), or None where the plain one is to be used."""
    from rfpn.layers.hgru import GALAHGRUCell, HGRUCell

    if not computed_at_once(x) or x.dim() != 4 or x.shape[0] == 0 or x.numel() > _MOST_ELEMENTS:
        return None
    # a subclass may compute something else
    make = {HGRUCell: _bind_hgru, GALAHGRUCell: _bind_gala}.get(type(cell))
    if make is None or not (available(x) or make is _bind_hgru and _serves_cpu(x)):
        return None
    # the plain form tells what is wrong with a drive of other channels
    if x.shape[1] != cell.channels or not as_made(cell):
        return None
    if any(p.dtype != torch.float32 or p.device != x.device for p in cell.parameters()):
        return None
    return make(cell, x)


def _serves_cpu(x: Tensor) -> bool:
    """Whether x may be left to the hGRU's fast form in torch operations."""
    return x.device.type == "cpu" and autocast_dtype(x) is None


def _bind_hgru(cell: nn.Module, x: Tensor):
    half = autocast_dtype(x) == torch.bfloat16
    # a convolution under autocast gives such a drive; steps work in float32
    if not (x.dtype == torch.float32 or half and x.dtype == torch.bfloat16) or cell.channels > _MOST_SPECTRAL_CHANNELS:
        return None
    # the plain form tells that there is nothing to normalise
    if x.numel() <= x.shape[1]:
        return None
    if cell.inhibition.kernel_size[0] < (_SMALLEST_SPECTRAL_KERNEL if available(x) else _SMALLEST_SPECTRAL_KERNEL_CPU):
        return None
    from rfpn.layers.fast.hgru import FastHGRU
    from rfpn.layers.fast.spectral import canvas_shape

    m, c, s1, s2 = canvas_shape(x, cell.inhibition.kernel_size[0])
    # canvases, with their tangents, and kernels' spectra
    if max(2 * m, c) * c * s1 * s2 > _MOST_ELEMENTS or s1 * s2 > _MOST_PROGRAMS * _FREQUENCIES[half]:
        return None
    return FastHGRU(cell, x)


def _bind_gala(cell: nn.Module, x: Tensor):
    narrowest = cell.gate_inhibition.channel_in.out_channels
    # the gate's hidden channels divide the cell's, so that they are one too
    power_of_two = cell.channels & (cell.channels - 1) == 0
    if not power_of_two or narrowest < 16 or cell.channels < 32 or x.shape[2] * x.shape[3] > _MOST_PIXELS:
        return None
    if cell.channels > _MOST_CHANNELS_OF_A_GROUP * cell.norm_inhibition.num_groups:
        return None
    from rfpn.layers.fast.gala import FastGALA

    half = autocast_dtype(x)
    if narrowest * (half or x.dtype).itemsize > _MOST_GATE_BYTES:
        return None
    # Triton's interpreter gets products of bfloat16 wrong
    if half is torch.bfloat16 and not x.is_cuda:
        return None
    if half is not None:
        # cotangents have no loss scale of their own: float16 would lose the small ones
        return None if torch.float16 in (half, x.dtype) else FastGALA(cell, half, x)
    return FastGALA(cell, torch.float32, x) if x.dtype == torch.float32 else None
