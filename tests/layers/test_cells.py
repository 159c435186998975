import math

import pytest
import torch

from rfpn.layers import ConvLSTMCell, GALAHGRUCell, HGRUCell, RecurrentLayer
from rfpn.layers.gates import GALAGate, gate_bias_start


def count(module):
    return sum(p.numel() for p in module.parameters())


def test_parameter_counts():
    # 284,227 of the released Pathfinder model less filters (25·49 + 25), unused norms (100), readout norm and 1×1
    assert count(HGRUCell(25)) == 284_227 - (25 * 49 + 25) - 100 - 50 - (2 * 25 + 2)
    assert count(ConvLSTMCell(25)) == 8 * 25 * 25 * 225 + 4 * 25
    # the mask head's cell: 2 kernels, gate, GALA gate, 2 norms, α and μ
    c = 256
    gala = c * c // 4 + c // 4 + c // 4 * c + c * c // 2 * 9 + c // 2 + c // 2 * 9 + c
    assert count(GALAGate(c)) == gala
    assert count(GALAHGRUCell(c)) == 2 * c * c * 9 + c * c + c + gala + 4 * c + 2 * c


def test_printed_form_has_one_factor_and_no_outer_softplus():
    torch.manual_seed(0)
    printed, released = HGRUCell(4, 3, form="printed"), HGRUCell(4, 3)
    assert count(printed) == count(released) - 4
    released.load_state_dict(printed.state_dict() | {"gamma": printed.kappa.detach()})
    x, h = torch.rand(2, 4, 5, 5), torch.rand(2, 4, 5, 5)
    torch.testing.assert_close(torch.nn.functional.softplus(printed(x, h)), released(x, h))


def test_start_values_of_the_pathfinder_cell():
    cell = HGRUCell(6, 5)
    for name, value in {"alpha": 0.1, "gamma": 1.0, "kappa": 0.5, "omega": 0.5, "mu": 1.0}.items():
        assert torch.equal(getattr(cell, name), torch.full((6, 1, 1), value))
    for conv in (cell.inhibition, cell.excitation, cell.gate_inhibition, cell.gate_excitation):
        rows = conv.weight.flatten(1)
        torch.testing.assert_close(rows @ rows.mT, torch.eye(6), rtol=0, atol=1e-5)
    for norm in (cell.norm_inhibition, cell.norm_excitation):
        assert norm.eps == 1e-3 and (norm.weight == 0.1).all() and (norm.bias == 0).all()
    assert torch.equal(cell.gate_inhibition.bias, -cell.gate_excitation.bias)


def test_start_values_of_the_mask_head_cell():
    torch.manual_seed(0)
    cell = GALAHGRUCell(64)
    for conv in (cell.inhibition, cell.excitation, cell.gate_excitation, cell.gate_inhibition.spatial_in):
        fan = conv.weight[0].numel()
        assert conv.weight.std().item() == pytest.approx(math.sqrt(2 / fan), rel=0.05)
    assert (cell.alpha == 0.1).all() and (cell.mu == 1).all()
    assert all((norm.weight == 0.1).all() and norm.num_groups == 32 for norm in (cell.norm_inhibition, cell.norm_excitation))
    assert torch.equal(cell.gate_inhibition.bias, -cell.gate_excitation.bias)


@pytest.mark.parametrize("steps", [1, 2, 8, 20])
def test_gate_bias_starts(steps):
    torch.manual_seed(0)
    released, high = gate_bias_start(20_000, steps), max(steps - 1, 1)
    assert released.min() >= 1 and released.max() <= high
    assert released.mean().item() == pytest.approx((1 + high) / 2, rel=0.02)
    torch.manual_seed(0)
    torch.testing.assert_close(gate_bias_start(20_000, steps, "chronos"), released.log())


def test_C5_pathfinder_norms_keep_no_statistics_and_use_the_batch_in_both_modes():
    torch.manual_seed(0)
    cell, x = HGRUCell(4, 3), torch.rand(3, 4, 6, 6)
    layer = RecurrentLayer(cell, 20)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    training = layer(x).hidden
    assert not list(cell.buffers()) and cell.batch_statistics
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert torch.equal(layer.eval()(x).hidden, training)
    # as documented, an image's result depends on its neighbours
    assert not torch.allclose(layer(x[:1]).hidden[0], training[0])


def test_C5_mask_head_cell_has_no_batch_statistics():
    torch.manual_seed(0)
    cell, x, h = GALAHGRUCell(32), torch.rand(8, 32, 7, 7), torch.rand(8, 32, 7, 7)
    assert not list(cell.buffers()) and not hasattr(cell, "batch_statistics")
    for training in (True, False):
        cell.train(training)
        for i in range(8):
            torch.testing.assert_close(cell(x[i : i + 1], h[i : i + 1])[0], cell(x, h)[i], rtol=1e-5, atol=1e-6)


def test_conv_lstm_state_is_hidden_and_cell():
    torch.manual_seed(0)
    cell, x, state = ConvLSTMCell(3, 3), torch.rand(2, 3, 5, 5), torch.rand(2, 6, 5, 5)
    new = cell(x, state)
    h, c = cell.hidden(new), new[:, 3:]
    i, f, candidate, o = (cell.from_drive(x) + cell.from_state(state[:, :3])).chunk(4, dim=1)
    torch.testing.assert_close(c, f.sigmoid() * state[:, 3:] + i.sigmoid() * candidate.tanh())
    torch.testing.assert_close(h, o.sigmoid() * c.tanh())


@pytest.mark.parametrize(
    "build, named",
    [
        (lambda: HGRUCell(4, 4), "odd, got 4"),
        (lambda: HGRUCell(4, -1), "hGRU kernel size must be at least 1, got -1"),
        (lambda: HGRUCell(0), "hGRU channels must be at least 1, got 0"),
        (lambda: HGRUCell(4, 3.0), "kernel size must be a whole number, got 3.0"),
        (lambda: HGRUCell(4, 3, gate_steps=0), "gate steps must be at least 1, got 0"),
        (lambda: HGRUCell(4, 3, form="fancy"), "released, printed"),
        (lambda: HGRUCell(4, 3, gate_bias="zero"), "released, chronos"),
        (lambda: GALAHGRUCell(48), "48 and 32"),
        (lambda: GALAHGRUCell(32, groups=0), "norm groups must be at least 1"),
        (lambda: GALAHGRUCell(32, 2), "odd, got 2"),
        (lambda: GALAHGRUCell(32, gate_reduction=5), "reduction 5"),
        (lambda: GALAHGRUCell(32, gate_reduction=0), "reduction must be at least 1"),
        (lambda: GALAHGRUCell(0), "channels must be at least 1, got 0"),
        (lambda: ConvLSTMCell(4, 2), "odd, got 2"),
    ],
)
def test_bad_settings_are_named(build, named):
    with pytest.raises(ValueError, match=named):
        build()


@pytest.mark.parametrize("cell", [HGRUCell(8, 3), GALAHGRUCell(8, groups=2)], ids=["pathfinder", "mask_head"])
@pytest.mark.parametrize("shape", [(2, 1, 6, 5), (2, 3, 6, 5), (8, 8, 5)])
def test_drives_of_another_shape_are_not_broadcast(cell, shape):
    with pytest.raises(ValueError, match=r"hGRU of 8 channels needs a drive \(N, 8, H, W\)"):
        RecurrentLayer(cell, 2)(torch.rand(shape))
