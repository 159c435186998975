"""Each argument of RecurrentLayer has its effect."""

import pytest
import torch

from rfpn.fixed_point import lipschitz_penalty
from rfpn.layers import HGRUCell, RecurrentLayer
from tests.layers.test_recurrent import METHODS
from tests.problems import ConvCell, GainCell, LinearCell, TanhCell, assert_close, gradients, random, relative_error


def test_neumann_tolerance_ends_series():
    lengths = []
    for tolerance in (0.0, 0.1):
        layer = RecurrentLayer(LinearCell(radius=0.5), 30, neumann_terms=20, neumann_tolerance=tolerance)
        layer(random((4, 6))).hidden.sum().backward()
        lengths.append(layer.diagnostics["neumann_length"].item())
    assert lengths[0] == 20 and 1 <= lengths[1] < 10


def test_growth_limit_cuts_series():
    shares = []
    for limit in (1.2, 4.0):  # terms grow as 1.1^k
        layer = RecurrentLayer(GainCell(), 1, neumann_terms=10, growth_limit=limit)
        layer(GainCell.input([1.1, 0.5])).hidden.sum().backward()
        shares.append(layer.diagnostics["truncated_share"].item())
    assert shares == [0.5, 0.0]


@pytest.mark.parametrize("probe", ["ones", "rademacher", "sample_signs"])
def test_probe_is_that_of_the_penalty(probe):
    x, cell = random((4, 6)), TanhCell(radius=2.0)
    layer = RecurrentLayer(cell, 5, lipschitz=True, coefficient=0.0, probe=probe, two_sided=True)
    torch.manual_seed(3)
    found = layer(x).penalty
    with torch.no_grad():
        state = torch.zeros_like(x)
        for _ in range(4):
            state = cell(x, state)
    state.requires_grad_()
    torch.manual_seed(3)
    wanted = lipschitz_penalty(cell(x, state), state, 0.0, probe=probe, two_sided=True)
    torch.testing.assert_close(found, wanted)
    assert found > 0


def test_samples_that_act_on_each_other_are_solved_as_one():
    """A cotangent on one image alone reaches the weights through its neighbours too."""
    torch.manual_seed(0)
    cell, x = HGRUCell(3, 3).double(), random((3, 3, 6, 6))
    assert cell.batch_statistics
    cell.kappa.data.mul_(0.5)
    found = {}
    for name, options in {"bptt": {"gradient": "bptt"}, "solve": {"adjoint": "solve", "neumann_terms": 60}}.items():
        layer = RecurrentLayer(cell, 1000, **options)
        loss = (layer(x).hidden[0] * random((3, 6, 6), seed=1)).sum()
        found[name] = torch.cat([g.flatten() for g in gradients(loss, layer).values()])
    assert relative_error(found["solve"], found["bptt"]) < 1e-5


def test_unconverged_share_is_judged_by_the_tolerance_in_force():
    x = random((8, 6))
    layer = RecurrentLayer(TanhCell(radius=0.9), 6, test_steps=4, test_tolerance=0.3).eval()
    residual = layer(x).residual
    assert ((residual <= 0.3) & (residual > 0.01)).any()
    assert layer.diagnostics["unconverged_share"] == (residual > 0.3).double().mean()
    layer.test_tolerance = 0.0
    residual = layer(x).residual
    assert layer.diagnostics["unconverged_share"] == (residual > 0.01).double().mean()


@pytest.mark.parametrize("method", METHODS)
def test_compiled_models_have_the_gradients_of_eager_ones(method):
    """The penalty's second derivatives are computed outside the compiled part."""
    torch.manual_seed(0)
    torch.compiler.reset()
    layer = RecurrentLayer(ConvCell(), 4, fast="off", **METHODS[method])
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 1))
    x = torch.rand(2, 4, 5, 5)

    def loss(x):
        output = layer(model(x))
        return output.hidden.square().sum() + 10 * output.penalty

    wanted = gradients(loss(x), torch.nn.ModuleList([layer, model]))
    found = gradients(torch.compile(loss, backend="aot_eager")(x), torch.nn.ModuleList([layer, model]))
    assert_close(found, wanted, 1e-5)
