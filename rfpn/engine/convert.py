"""The paper's released checkpoints, rewritten in this project's names."""

from typing import Iterable

import torch
from torch import Tensor, nn

from rfpn.layers.released import cell_state_dict
from rfpn.modeling.mask_head import HGRUMaskHead

HEAD = "roi_heads.mask_head."
# the released head registers its cell twice; both copies hold the same values
_CELLS = ("recurrent.", "mask_fcn_rnn.")
_HEAD_NAMES = {"horizontal_norm": "norm", "deconv": "deconv", "predictor": "predictor"}


def is_released(names: Iterable[str]) -> bool:
    """Whether some tensors' names are those of the released code's mask head, with or without a ``module.`` prefix."""
    return any(name.removeprefix("module.").startswith((HEAD + _CELLS[1], HEAD + "horizontal_norm")) for name in names)


def convert_released(state: dict[str, Tensor], head: HGRUMaskHead) -> dict[str, Tensor]:
    """Rename a released model's tensors for a model that holds ``head``.

    Args:
        state: name -> tensor in the released names, with or without a ``module.`` prefix.
        head: a mask head of the same width.

    Raises:
        KeyError: naming what the cell lacks, or a part that the head does not have. ValueError: the two copies of the cell
            differ, or are of another width.
    """
    state = _without_module(state)
    converted = {name: value for name, value in state.items() if not name.startswith(HEAD)}
    cell, copy = (_part(state, HEAD + prefix) for prefix in _CELLS)
    differing = [name for name in cell if name not in copy or not _equal(cell[name], copy[name])] if copy else []
    if differing:
        raise ValueError(f"released mask head: its two copies of the cell differ in {', '.join(differing)}")
    for name, value in cell_state_dict(head.recurrent.cell, cell or copy).items():
        converted[f"{HEAD}recurrent.cell.{name}"] = value
    for name, value in _part(state, HEAD).items():
        if name.startswith(_CELLS):
            continue
        theirs, _, rest = name.partition(".")
        if theirs not in _HEAD_NAMES:
            raise KeyError(f"released mask head: unknown tensor {name}")
        converted[f"{HEAD}{_HEAD_NAMES[theirs]}.{rest}"] = value
    return converted


def head_of(model: nn.Module) -> HGRUMaskHead:
    """The recurrent mask head of a model. Raises ValueError where it has none."""
    for module in model.modules():
        if isinstance(module, HGRUMaskHead):
            return module
    raise ValueError("the configured model has no HGRUMaskHead (MODEL.ROI_MASK_HEAD.NAME)")


def _equal(first: Tensor, second: Tensor) -> bool:
    first, second = first.double(), second.double()
    return first.shape == second.shape and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)


def _without_module(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("module."): value for name, value in state.items()}


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
