"""Cells with random weights, and how fast forms are compared with plain ones."""

import importlib.util
import os

import pytest
import torch

from rfpn.layers import GALAHGRUCell, HGRUCell

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


class OnCard(torch.Tensor):
    """A CPU tensor that says it is on a card."""

    is_cuda = True


def interprets() -> bool:
    """Whether Triton kernels run on the CPU: set TRITON_INTERPRET=1 before Python starts."""
    return importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"


def hgru(channels=4, kernel_size=7, form="released", seed=0, **where) -> HGRUCell:
    torch.manual_seed(seed)
    return _shaken(HGRUCell(channels, kernel_size, form), 0.1).to(**where)


def gala(channels=64, groups=8, seed=0, **where) -> GALAHGRUCell:
    torch.manual_seed(seed)
    return _shaken(GALAHGRUCell(channels, groups=groups, gate_steps=4), 0.05).to(**where)


def _shaken(cell, size):
    # start values hide terms: norms nearly off, gates nearly shut
    for parameter in cell.parameters():
        parameter.data += size * torch.randn_like(parameter)
    for norm in (cell.norm_inhibition, cell.norm_excitation):
        norm.weight.data += 0.5
    for gate in (cell.gate_inhibition, cell.gate_excitation):
        gate.bias.data.fill_(0.3)
    return cell


def spread(module):
    """The same weights, each number with a foreign one behind it in memory, as a checkpoint that is assigned may hold them."""
    for parameter in module.parameters():
        parameter.data = torch.stack([parameter.data, torch.full_like(parameter.data, 9.0)], -1)[..., 0]
    return module


def relative_error(value, reference) -> float:
    value, reference = value.detach().double().cpu(), reference.detach().double().cpu()
    return float((value - reference).norm() / reference.norm().clamp(min=1e-30))


def assert_close(value, reference, tolerance, what=""):
    error = relative_error(value, reference)
    assert error <= tolerance, f"{what}: relative error {error:.1e} above {tolerance:.0e}"
