import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from rfpn.layers import ConvLSTMCell, GALAHGRUCell, HGRUCell, RecurrentLayer
from tests.layers.test_recurrent import METHODS
from tests.problems import ConvCell, assert_close, gradients

CELLS = {
    "gala hgru": lambda: GALAHGRUCell(32, gate_steps=2),
    "hgru": lambda: HGRUCell(8, 3, gate_steps=2),
    "conv lstm": lambda: ConvLSTMCell(8, 3),
    "conv": lambda: ConvCell(8),
}


def build(name):
    torch.manual_seed(0)
    cell = CELLS[name]()
    return cell, torch.rand(4, getattr(cell, "channels", 8), 7, 7)


def run(layer, x, enabled, weight):
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        output = layer(x)
    loss = (output.hidden * weight).sum() + output.penalty
    return output, gradients(loss, layer)


@pytest.mark.parametrize("steps", [2, 10])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CELLS)
def test_C11_gradients_match_float32_within_5_percent(name, method, steps):
    if (name, method, steps) == ("gala hgru", "equilibrium", 10):
        pytest.skip("10 evaluations leave this search unfinished: rounding moves the state itself by 4%")
    cell, x = build(name)
    layer = RecurrentLayer(cell, steps, **METHODS[method])
    weight = torch.rand_like(x)
    _, wanted = run(layer, x, False, weight)
    _, found = run(layer, x, True, weight)
    assert all(value.dtype == torch.float32 and value.abs().sum() > 0 for value in found.values())
    assert_close(found, wanted, 0.05)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CELLS)
def test_C9_states_and_penalty_are_float32(name, method):
    cell, x = build(name)
    layer = RecurrentLayer(cell, 3, **METHODS[method])
    output, _ = run(layer, x, True, 1.0)
    assert output.hidden.dtype == output.penalty.dtype == output.residual.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert all(hidden.dtype == torch.float32 for hidden, _ in layer.unroll(x.bfloat16(), 2))
        stopped = RecurrentLayer(cell, 3, test_tolerance=1e-3).eval()(x.bfloat16())
    assert stopped.hidden.dtype == torch.float32


@pytest.mark.parametrize("name", ["gala hgru", "hgru"])
def test_C11_only_convolutions_work_in_half_precision(name):
    # second derivatives of a norm in bfloat16 would cost the penalty's gradient 10%
    cell, x = build(name)
    seen = {"conv": set(), "norm": set()}

    def note(module, inputs, output):
        seen["conv" if isinstance(module, nn.Conv2d) else "norm"].add((inputs[0].dtype, output.dtype))

    for module in cell.modules():
        if isinstance(module, (nn.Conv2d, nn.GroupNorm, nn.BatchNorm2d)):
            module.register_forward_hook(note)
    with torch.autocast("cpu", torch.bfloat16):
        assert cell(x, x).dtype == torch.float32
    assert seen == {"conv": {(torch.float32, torch.bfloat16)}, "norm": {(torch.float32, torch.float32)}}


@pytest.mark.parametrize("method", ["c-rbp", "c-bptt", "equilibrium"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_C9_large_features_stay_finite(dtype, method):
    cell, x = build("gala hgru")
    layer = RecurrentLayer(cell, 20, **METHODS[method])
    with torch.autocast("cpu", dtype):
        output = layer(x * 1e3)
    assert output.hidden.isfinite().all() and output.penalty.isfinite()
    found = gradients(output.hidden.mean() + output.penalty, layer)
    assert all(value.isfinite().all() for value in found.values())


def test_C9_loss_scale_changes_nothing():
    cell, x = build("gala hgru")
    layer = RecurrentLayer(cell, 5)
    one, scaled = (run(layer, x, True, scale)[1] for scale in (1.0, 65536.0))
    assert_close({name: value / 65536 for name, value in scaled.items()}, one, 1e-3)


def test_C11_weights_seen_without_graph_first():
    # one shared convolution, run without and then with a graph inside one autocast region
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = ConvCell()
            self.layer = RecurrentLayer(self.cell, 2)

        def forward(self, x):
            return self.cell.conv(self.layer(x).hidden)

    torch.manual_seed(0)
    model, x = Shared(), torch.rand(2, 4, 5, 5)
    wanted = gradients(model(x).sum(), model)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    assert_close(gradients(out.float().sum(), model), wanted, 0.05)


@pytest.mark.parametrize("options", [{}, {"lipschitz": True}, {"gradient": "tbptt", "window": 1}, {"gradient": "bptt"}])
def test_C11_parametrized_weights_seen_without_graph_first(options):
    torch.manual_seed(0)
    cell = ConvCell()
    parametrizations.weight_norm(cell.conv)
    layer, x = RecurrentLayer(cell, 3, **options), torch.rand(2, 4, 5, 5)
    wanted = gradients(layer(x).hidden.sum(), layer)
    # keeps weights that were computed from others, also those that were computed without graph
    with parametrize.cached():
        out = layer(x)
    assert_close(gradients(out.hidden.sum(), layer), wanted, 1e-6)
