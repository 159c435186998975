"""Parameter names of the paper's released code, and their places in this project's cells."""

from typing import Iterable

import torch
from torch import Tensor

from rfpn.layers.conv_lstm import ConvLSTMCell
from rfpn.layers.hgru import GALAHGRUCell, HGRUCell

_HGRU = {
    "u1_gate.weight": "gate_inhibition.weight",
    "u1_gate.bias": "gate_inhibition.bias",
    "u2_gate.weight": "gate_excitation.weight",
    "u2_gate.bias": "gate_excitation.bias",
    "w_gate_inh": "inhibition.weight",
    "w_gate_exc": "excitation.weight",
    "alpha": "alpha",
    "mu": "mu",
    "gamma": "gamma",
    "kappa": "kappa",
    "w": "omega",
    "bn.1.weight": "norm_inhibition.weight",
    "bn.1.bias": "norm_inhibition.bias",
    "bn.3.weight": "norm_excitation.weight",
    "bn.3.bias": "norm_excitation.bias",
}
_GALA_HGRU = {
    "u0_channel_gate_0.weight": "gate_inhibition.channel_in.weight",
    "u0_channel_gate_0.bias": "gate_inhibition.channel_in.bias",
    "u0_channel_gate_1.weight": "gate_inhibition.channel_out.weight",
    "u0_spatial_gate_0": "gate_inhibition.spatial_in.weight",
    "u0_spatial_bias": "gate_inhibition.spatial_in.bias",
    "u0_spatial_gate_1": "gate_inhibition.spatial_out.weight",
    "u0_combine_bias": "gate_inhibition.bias",
    "u1_gate.weight": "gate_excitation.weight",
    "u1_gate.bias": "gate_excitation.bias",
    "w_gate_inh": "inhibition.weight",
    "w_gate_exc": "excitation.weight",
    "alpha": "alpha",
    "mu": "mu",
    "bn.0.weight": "norm_inhibition.weight",
    "bn.0.bias": "norm_inhibition.bias",
    "bn.1.weight": "norm_excitation.weight",
    "bn.1.bias": "norm_excitation.bias",
}
# two norms of the released Pathfinder cell take no part in any computation
_UNUSED = ("bn.0.weight", "bn.0.bias", "bn.2.weight", "bn.2.bias")
_LSTM_GATES = "ifco"


def cell_state_dict(cell: torch.nn.Module, released: dict[str, Tensor]) -> dict[str, Tensor]:
    """Translate a released cell's parameters into ``cell.state_dict()`` form.

    Args:
        cell: an HGRUCell (of the released form), GALAHGRUCell or ConvLSTMCell.
        released: name -> tensor, names as in the released code, without any prefix.

    Raises:
        KeyError: naming every parameter that is missing or unknown.
        ValueError: for an HGRUCell of another form, or naming a parameter of another size. TypeError: for another cell.
    """
    if isinstance(cell, ConvLSTMCell):
        return _conv_lstm(cell, released)
    if not isinstance(cell, (HGRUCell, GALAHGRUCell)):
        raise TypeError(f"no released form of {type(cell).__name__}")
    names = _GALA_HGRU if isinstance(cell, GALAHGRUCell) else _HGRU
    unused = () if isinstance(cell, GALAHGRUCell) else _UNUSED
    if isinstance(cell, HGRUCell) and cell.form != "released":
        raise ValueError(f"released parameters have κ and γ apart and need an HGRUCell of form 'released', not {cell.form!r}")
    _compare_names(type(cell).__name__, names.keys(), released.keys() - set(unused))
    shapes = {name: parameter.shape for name, parameter in cell.named_parameters()}
    for theirs, ours in names.items():
        if released[theirs].numel() != shapes[ours].numel():
            raise ValueError(_wrong_size(cell, theirs, released[theirs], shapes[ours]))
    return {ours: released[theirs].reshape(shapes[ours]) for theirs, ours in names.items()}


def _conv_lstm(cell: ConvLSTMCell, released: dict[str, Tensor]) -> dict[str, Tensor]:
    stacked = {
        "from_drive.weight": [f"Wx{gate}.weight" for gate in _LSTM_GATES],
        "from_drive.bias": [f"Wx{gate}.bias" for gate in _LSTM_GATES],
        "from_state.weight": [f"Wh{gate}.weight" for gate in _LSTM_GATES],
    }
    _compare_names("ConvLSTMCell", {name for names in stacked.values() for name in names}, released)
    parameters = dict(cell.named_parameters())
    for ours, names in stacked.items():
        one = parameters[ours][: cell.channels].shape
        for name in names:
            if released[name].shape != one:
                raise ValueError(_wrong_size(cell, name, released[name], one))
    return {ours: torch.cat([released[name] for name in names]) for ours, names in stacked.items()}


def _wrong_size(cell: torch.nn.Module, name: str, found: Tensor, wanted: torch.Size) -> str:
    sizes = f"{name} of shape {tuple(found.shape)}, not {tuple(wanted)}"
    return f"released {type(cell).__name__}: {sizes}; see the cell's channels and kernel size"


def _compare_names(cell: str, wanted: Iterable[str], given: Iterable[str]) -> None:
    missing, unknown = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    if missing or unknown:
        raise KeyError(f"released {cell}: missing {missing}, unknown {unknown}")
