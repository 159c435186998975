import pytest
import torch

from rfpn.fixed_point import iterate, lipschitz_penalty, relative_residual
from rfpn.layers import ConvLSTMCell, GALAHGRUCell, HGRUCell, RecurrentLayer
from tests.problems import ConvCell, GainCell, LinearCell, TanhCell, assert_close, gradients, random

METHODS = {
    "bptt": {"gradient": "bptt"},
    "tbptt": {"gradient": "tbptt"},
    "rbp": {"gradient": "rbp"},
    "c-bptt": {"gradient": "bptt", "lipschitz": True, "coefficient": 0.0},
    "c-rbp": {"gradient": "rbp", "lipschitz": True, "coefficient": 0.0},
    "secant": {"gradient": "rbp", "lipschitz": True, "coefficient": 0.0, "probe": "secant"},
    "equilibrium": {"solver": "anderson", "adjoint": "solve"},
}


def states(cell, x, steps):
    """h_0 … h_T, recorded."""
    found = [torch.zeros_like(x)]
    for _ in range(steps):
        found.append(cell(x, found[-1]))
    return found


@pytest.mark.parametrize("steps", [1, 2, 6])
def test_bptt_equals_plain_autograd(steps):
    cell, x, g = TanhCell(), random((4, 6)).requires_grad_(), random((4, 6), 1)
    output = RecurrentLayer(cell, steps, gradient="bptt")(x)
    wanted = states(cell, x, steps)[-1]
    assert torch.equal(output.hidden, wanted)
    assert_close(gradients((output.hidden * g).sum(), cell, x), gradients((wanted * g).sum(), cell, x), 1e-12)


@pytest.mark.parametrize("steps, window", [(6, 3), (6, 1), (2, 3), (1, 3), (6, 6)])
def test_tbptt_cuts_the_graph_before_the_window(steps, window):
    cell, x, g = TanhCell(), random((4, 6)).requires_grad_(), random((4, 6), 1)
    output = RecurrentLayer(cell, steps, gradient="tbptt", window=window)(x)
    before = max(steps - window, 0)
    wanted = iterate(cell, x, states(cell, x, before)[-1].detach(), steps - before)
    assert torch.equal(output.hidden, wanted)
    assert_close(gradients((output.hidden * g).sum(), cell, x), gradients((wanted * g).sum(), cell, x), 1e-12)


def test_rbp_without_terms_is_one_step():
    cell, x = TanhCell(), random((4, 6)).requires_grad_()
    output = RecurrentLayer(cell, 5, neumann_terms=0)(x)
    wanted = cell(x, states(cell, x, 4)[-1].detach())
    assert_close(gradients(output.hidden.sum(), cell, x), gradients(wanted.sum(), cell, x), 1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_all_methods_agree_on_value_steps_and_residual(method):
    cell, x = TanhCell(), random((4, 6))
    layer = RecurrentLayer(cell, 20, **METHODS[method])
    output = layer(x)
    torch.testing.assert_close(output.hidden, states(cell, x, 200)[-1], rtol=1e-3, atol=1e-4)
    if method != "equilibrium":
        wanted = states(cell, x, 20)
        assert torch.equal(output.hidden, wanted[-1])
        torch.testing.assert_close(output.residual, relative_residual(wanted[-1], wanted[-2]))
        assert (output.steps == 20).all()
    assert not output.residual.requires_grad and output.steps.dtype == torch.int64


@pytest.mark.parametrize("gradient", ["bptt", "tbptt", "rbp"])
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("two_sided", [False, True])
def test_penalty_on_any_gradient_method(gradient, steps, two_sided):
    cell, x = TanhCell(), random((4, 6))
    layer = RecurrentLayer(cell, steps, gradient=gradient, lipschitz=True, coefficient=0.05, two_sided=two_sided)
    trail = states(cell, x, steps)
    previous = trail[-2].detach().requires_grad_()
    wanted = lipschitz_penalty(cell(x, previous), previous, 0.05, two_sided=two_sided)
    penalty = layer(x).penalty
    assert wanted > 0
    torch.testing.assert_close(penalty, wanted)
    found = gradients(penalty, cell)
    assert all(value.abs().sum() > 0 for value in found.values())
    if gradient == "rbp":
        assert_close(found, gradients(wanted, cell), 1e-12)


def test_penalty_of_bptt_reaches_earlier_steps():
    cell, x = TanhCell(), random((4, 6))
    trail = states(cell, x, 4)
    (sums,) = torch.autograd.grad(trail[-1], trail[-2], torch.ones_like(x), create_graph=True)
    wanted = (sums - 0.05).clamp(min=0).square().mean()
    penalty = RecurrentLayer(cell, 4, gradient="bptt", lipschitz=True, coefficient=0.05)(x).penalty
    assert_close(gradients(penalty, cell), gradients(wanted, cell), 1e-9)


def test_no_penalty_in_evaluation_or_without_grad():
    layer = RecurrentLayer(GainCell(), 3, lipschitz=True, coefficient=0.0)
    x = GainCell.input([3.0, 3.0])
    assert layer(x).penalty > 0
    with torch.no_grad():
        assert layer(x).penalty == 0
    assert layer.eval()(x).penalty == 0


@pytest.mark.parametrize("method", ["bptt", "tbptt", "rbp", "c-rbp"])
def test_extra_steps_are_drawn_anew_in_training_alone(method):
    cell, x, g = TanhCell(), random((4, 6)).requires_grad_(), random((4, 6), 1)
    layer = RecurrentLayer(cell, 3, extra_steps=2, **METHODS[method])
    seen = set()
    for seed in range(20):
        torch.manual_seed(seed)
        output = layer(x)
        (steps,) = output.steps.unique().tolist()
        seen.add(steps)
        other = RecurrentLayer(cell, steps, **METHODS[method])(x)
        assert torch.equal(output.hidden, other.hidden) and torch.equal(output.penalty, other.penalty)
        found, wanted = (gradients((o.hidden * g).sum() + o.penalty, cell, x) for o in (output, other))
        assert_close(found, wanted, 1e-12)
    assert seen == {3, 4, 5}
    assert (layer.eval()(x).steps == 3).all()
    # torch's default device may be another than the generator's
    with torch.device("meta"):
        assert 3 <= int(layer.train()(x).steps[0]) <= 5


def test_test_steps_apart_from_training_steps():
    cell, x = TanhCell(), random((4, 6))
    layer = RecurrentLayer(cell, 3, test_steps=7)
    assert torch.equal(layer(x).hidden, states(cell, x, 3)[-1])
    output = layer.eval()(x)
    assert torch.equal(output.hidden, states(cell, x, 7)[-1]) and (output.steps == 7).all()


@pytest.mark.parametrize("gradient", ["bptt", "rbp"])
def test_test_tolerance_stops_samples_and_keeps_gradients(gradient):
    cell, x = GainCell(), GainCell.input([0.1, 0.5, 0.9]).requires_grad_()
    layer = RecurrentLayer(cell, 300, gradient=gradient, test_tolerance=1e-8, neumann_terms=300).eval()
    output = layer(x)
    with torch.no_grad():
        silent = layer(x)
    assert torch.equal(output.steps, silent.steps) and len(output.steps.unique()) == 3
    torch.testing.assert_close(output.hidden, silent.hidden)
    fixed = torch.linalg.solve(torch.eye(6) - x[:, :1, None].detach() * cell.weight, (x @ cell.drive.mT)[:, :, None])
    assert_close(gradients(output.hidden.sum(), cell, x), gradients(fixed.sum(), cell, x), 1e-5)
    assert layer.diagnostics["unconverged_share"] == 0


@pytest.mark.parametrize("solver", ["steps", "anderson"])
def test_value_does_not_depend_on_whether_gradients_are_on(solver):
    x = GainCell.input([0.1, 0.5, 0.9])
    layer = RecurrentLayer(GainCell(), 50, solver=solver, test_tolerance=0.1).eval()
    recorded = layer(x)
    with torch.no_grad():
        silent = layer(x)
    assert recorded.hidden.requires_grad and torch.equal(recorded.steps, silent.steps)
    torch.testing.assert_close(recorded.hidden, silent.hidden, rtol=1e-12, atol=1e-12)


def test_C5_batch_statistics_see_all_samples_until_the_last_settles():
    torch.manual_seed(0)
    x = torch.rand(2, 8, 6, 6)
    cell = HGRUCell(8, 3, gate_steps=2)
    layer = RecurrentLayer(cell, 200, test_tolerance=1e-5).eval()
    with torch.no_grad():
        output = layer(x)
        settled = relative_residual(cell(x, output.hidden), output.hidden)
    assert (output.steps < 200).all() and (settled < 5e-5).all()


def test_equilibrium_layer_equals_the_dense_solve():
    cell, x, g = LinearCell(radius=0.95), random((4, 6)).requires_grad_(), random((4, 6), 1)
    layer = RecurrentLayer(cell, 50, solver="anderson", solver_tolerance=1e-10, adjoint="solve", growth_limit=10.0)
    output = layer(x)
    torch.testing.assert_close(output.hidden, cell.fixed_point(x), rtol=1e-7, atol=1e-7)
    assert_close(gradients((output.hidden * g).sum(), cell, x), cell.exact_gradients(x, g), 1e-6)
    assert layer.diagnostics["solve_residual"] < 1e-6 and layer.diagnostics["solve_length"] <= 7
    assert (output.steps < 50).all()


def test_anderson_takes_the_tolerance_of_its_mode():
    cell, x = LinearCell(radius=0.9), random((4, 6))
    layer = RecurrentLayer(cell, 50, test_tolerance=1e-2, solver="anderson", solver_tolerance=1e-8)
    training = layer(x)
    assert (training.residual <= 1e-8).all()
    evaluation = layer.eval()(x)
    assert (evaluation.residual <= 1e-2).all() and (evaluation.steps < training.steps).all()
    assert (RecurrentLayer(cell, 4, solver="anderson", solver_tolerance=0.0)(x).steps == 4).all()


def test_anderson_with_neumann_and_penalty():
    cell, x = TanhCell(), random((4, 6))
    layer = RecurrentLayer(cell, 50, solver="anderson", lipschitz=True, coefficient=0.0)
    output = layer(x)
    (output.hidden.sum() + output.penalty).backward()
    assert output.penalty > 0 and layer.diagnostics["neumann_length"] == 15


def test_unroll_yields_every_state():
    cell, x = TanhCell(), random((4, 6))
    layer, wanted = RecurrentLayer(cell, 3), states(cell, x, 5)
    for step, (hidden, residual) in enumerate(layer.unroll(x, 5), start=1):
        assert torch.equal(hidden, wanted[step]) and torch.equal(residual, relative_residual(wanted[step], wanted[step - 1]))
    assert step == 5
    assert torch.equal(next(layer.unroll(x, 1, wanted[3]))[0], wanted[4])


@pytest.mark.parametrize("gradient, steps", [("bptt", [1, 2, 3, 4, 5]), ("tbptt", [3, 4, 5]), ("rbp", [5])])
@pytest.mark.parametrize("lipschitz", [False, True])
def test_each_recorded_state_is_shown(gradient, steps, lipschitz):
    cell, x, seen = TanhCell(), random((4, 6)), []
    layer = RecurrentLayer(cell, 5, gradient=gradient, lipschitz=lipschitz)
    output, wanted = layer(x, seen.append), states(cell, x, 5)
    assert len(seen) == len(steps) and all(torch.equal(hidden, wanted[step]) for step, hidden in zip(steps, seen))
    assert seen[-1].requires_grad and torch.equal(output.hidden, layer(x).hidden)


def test_state_may_have_its_own_channels():
    x = torch.rand(2, 3, 5, 5)
    for method in METHODS.values():
        output = RecurrentLayer(ConvLSTMCell(3, 3), 4, **method)(x)
        assert output.hidden.shape == x.shape
        output.hidden.sum().backward()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cell_class", [GALAHGRUCell, HGRUCell, ConvLSTMCell, ConvCell])
def test_C7_every_parameter_gets_a_gradient(method, cell_class):
    torch.manual_seed(0)
    cell = {GALAHGRUCell: lambda: GALAHGRUCell(32), HGRUCell: lambda: HGRUCell(4, 3), ConvCell: ConvCell,
            ConvLSTMCell: lambda: ConvLSTMCell(4, 3)}[cell_class]()
    channels = getattr(cell, "channels", 4)
    output = RecurrentLayer(cell, 3, **METHODS[method])(torch.rand(2, channels, 5, 5))
    (output.hidden.square().sum() + output.penalty).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in cell.parameters())
    assert len({id(p) for p in cell.parameters()}) == len(cell.state_dict())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_C1_no_samples(method, training):
    cell = GALAHGRUCell(32)
    layer = RecurrentLayer(cell, 3, **METHODS[method]).train(training)
    output = layer(torch.rand(0, 32, 7, 7))
    assert output.hidden.shape == (0, 32, 7, 7) and output.steps.shape == output.residual.shape == (0,)
    loss = output.hidden.sum() + output.penalty
    assert loss == 0
    loss.backward()
    assert all(p.grad is not None and (p.grad == 0).all() for p in cell.parameters())
    assert all(value.isfinite() for value in layer.diagnostics.values())


@pytest.mark.parametrize("method", METHODS)
def test_C1_no_samples_with_early_stop(method):
    layer = RecurrentLayer(GALAHGRUCell(32), 3, test_tolerance=1e-2, **METHODS[method]).eval()
    output = layer(torch.rand(0, 32, 7, 7))
    output.hidden.sum().backward()
    assert output.steps.shape == (0,) and all(p.grad is not None and not p.grad.any() for p in layer.parameters())


def test_frozen_cell_still_gives_gradient_to_the_drive():
    cell, x, g = LinearCell(), random((4, 6)).requires_grad_(), random((4, 6), 1)
    wanted = cell.exact_gradients(x, g)["x"]
    cell.requires_grad_(False)
    output = RecurrentLayer(cell, 60, neumann_terms=60, growth_limit=10.0, lipschitz=True)(x)
    (gradient,) = torch.autograd.grad((output.hidden * g).sum(), x)
    assert_close({"x": gradient}, {"x": wanted}, 1e-6)


def test_cell_that_ignores_its_state_is_a_feedforward_layer():
    class Feedforward(LinearCell):
        def forward(self, x, h):
            return x @ self.drive.mT + 0 * self.weight.sum()

    cell, x = Feedforward(), random((4, 6)).requires_grad_()
    output = RecurrentLayer(cell, 5, lipschitz=True)(x)
    assert output.penalty == 0
    assert_close(gradients(output.hidden.sum(), cell, x), gradients(cell(x, x).sum(), cell, x), 1e-12)


def test_E6_diagnostics_are_detached_scalars_of_this_pass():
    layer = RecurrentLayer(TanhCell(), 3, lipschitz=True)
    output = layer(random((4, 6)))
    assert layer.diagnostics.keys() == {"residual", "unconverged_share", "penalty"}
    output.hidden.sum().backward()
    assert {"truncated_share", "neumann_length"} < layer.diagnostics.keys()
    assert all(value.shape == () and not value.requires_grad for value in layer.diagnostics.values())
    torch.testing.assert_close(layer.diagnostics["residual"], output.residual.mean())
    changed = layer(random((4, 6))).penalty.add_(1)
    assert "truncated_share" not in layer.diagnostics and layer.diagnostics["penalty"] < changed


@pytest.mark.parametrize("method", METHODS)
def test_half_precision_model_without_autocast(method):
    layer = RecurrentLayer(GALAHGRUCell(32), 3, **METHODS[method]).bfloat16()
    x = torch.rand(2, 32, 7, 7, dtype=torch.bfloat16)
    output = layer(x)
    assert output.hidden.dtype == torch.bfloat16
    assert output.penalty.dtype == (torch.float32 if layer.lipschitz else torch.bfloat16)
    (output.hidden.float().sum() + output.penalty).backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    with torch.no_grad():
        assert layer.eval()(x).hidden.dtype == torch.bfloat16
