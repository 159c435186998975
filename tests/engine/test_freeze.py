import copy

import pytest
import torch
from torch import nn

from rfpn.engine.freeze import train_only
from rfpn.layers import HGRUCell, RecurrentLayer
from rfpn.layers.plain import PlainForm


def _model() -> nn.Module:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    head = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
    return nn.ModuleDict({"trunk": trunk, "head": head, "empty": nn.ReLU()})


def _step(model: nn.Module) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    model.train()
    model["head"](model["trunk"](torch.randn(3, 1, 6, 6) + 5)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("names, trained", [(("head",), ["head.0", "head.1"]), (("head.0", "trunk.1"), ["head.0", "trunk.1"])])
def test_nothing_else_changes_not_even_statistics(names, trained):
    model = _model()
    before = copy.deepcopy(model.state_dict())
    train_only(model, names)
    _step(model)
    changed = {name.rpartition(".")[0] for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == set(trained)


def test_norms_of_the_trained_part_without_parameters_keep_their_statistics_moving():
    model = _model()
    model["head"][1], model["trunk"][1] = nn.BatchNorm2d(2, affine=False), nn.BatchNorm2d(2, affine=False)
    train_only(model, ("head",))
    _step(model)
    assert model["head"][1].running_mean.any() and not model["trunk"][1].running_mean.any()


def test_the_trained_part_keeps_its_statistics_moving():
    model = _model()
    train_only(model, ("head",))
    _step(model)
    assert model["head"][1].running_mean.any() and model["head"][1].num_batches_tracked == 1


def test_a_frozen_cell_keeps_its_fast_form():
    """Its norms have no statistics to keep, and hooks on them would let it run plain."""
    layer = RecurrentLayer(HGRUCell(2, 11), 3)
    train_only(nn.ModuleDict({"layer": layer, "readout": nn.Conv2d(2, 2, 1)}), ("readout",))
    assert not isinstance(layer.form(torch.rand(2, 2, 12, 12)), PlainForm)


def test_parameters_that_were_frozen_stay_so():
    model = _model()
    model["head"][0].weight.requires_grad_(False)
    train_only(model, ("head",))
    assert not model["head"][0].weight.requires_grad and model["head"][0].bias.requires_grad


@pytest.mark.parametrize("name", ["mask_head", "", "empty", 1])
def test_unknown_names_are_told_with_those_that_there_are(name):
    with pytest.raises(ValueError, match=r"SOLVER.TRAIN_ONLY .* is no module with parameters; there are trunk, head and"):
        train_only(_model(), (name,))


def test_a_part_that_is_frozen_throughout_is_refused():
    model = _model()
    model["trunk"].requires_grad_(False)
    with pytest.raises(ValueError, match="SOLVER.TRAIN_ONLY 'trunk.1' is frozen throughout; MODEL.BACKBONE.FREEZE_AT"):
        train_only(model, ("head", "trunk.1"))
