"""What every recurrent layer promises about its gradients: exact, linear, per sample, bounded."""

import pytest
import torch

from rfpn.fixed_point import linear_solve, neumann_series, sample_norm
from rfpn.layers import GALAHGRUCell, HGRUCell, RecurrentLayer
from tests.problems import GainCell, LinearCell, NaNCell, TanhCell, assert_close, gradients, random, relative_error

ADJOINTS = ("neumann", "solve")


@pytest.mark.parametrize("adjoint", ADJOINTS)
@pytest.mark.parametrize("seed", range(5))
def test_E3_linear_cell_matches_dense_solve_and_bptt(seed, adjoint):
    cell, x, g = LinearCell(seed=seed), random((4, 6), seed).requires_grad_(), random((4, 6), seed + 100)
    layer = RecurrentLayer(cell, 60, neumann_terms=60, growth_limit=10.0, adjoint=adjoint)
    implicit = gradients((layer(x).hidden * g).sum(), cell, x)
    unrolled = gradients((RecurrentLayer(cell, 300, gradient="bptt")(x).hidden * g).sum(), cell, x)
    assert_close(implicit, cell.exact_gradients(x, g), 1e-6)
    assert_close(implicit, unrolled, 1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_E3_nonlinear_cell_matches_bptt(seed):
    cell, x, g = TanhCell(seed=seed), random((4, 6), seed).requires_grad_(), random((4, 6), seed + 100)
    layer = RecurrentLayer(cell, 80, neumann_terms=80, growth_limit=10.0)
    implicit = gradients((layer(x).hidden * g).sum(), cell, x)
    unrolled = gradients((RecurrentLayer(cell, 300, gradient="bptt")(x).hidden * g).sum(), cell, x)
    assert_close(implicit, unrolled, 1e-6)


def test_E3_error_of_all_gradients_falls_like_the_spectral_radius():
    cell, x, g = LinearCell(symmetric=True), random((4, 6)).requires_grad_(), random((4, 6), 1)
    exact, errors = cell.exact_gradients(x, g), []
    for terms in (5, 10, 15, 20):
        layer = RecurrentLayer(cell, 80, neumann_terms=terms)
        found = gradients((layer(x).hidden * g).sum(), cell, x)
        errors.append({name: relative_error(found[name], exact[name]) for name in exact})
    for earlier, later in zip(errors, errors[1:]):
        for name in exact:
            assert 0.5**5 / 2 < later[name] / earlier[name] < 0.5**5 * 1.1


@pytest.mark.parametrize("adjoint", ADJOINTS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 65536.0])
@pytest.mark.parametrize("gain", [0.5, 1.5, 3.0])
def test_E4_backward_is_linear_in_the_cotangent(gain, scale, adjoint):
    cell, x, g = GainCell().float(), GainCell.input([gain] * 3).float().requires_grad_(), random((3, 6)).float()
    layer = RecurrentLayer(cell, 5, adjoint=adjoint)
    one = gradients((layer(x).hidden * g).sum(), cell, x)
    scaled = gradients((layer(x).hidden * g * scale).sum(), cell, x)
    assert_close(scaled, {name: value * scale for name, value in one.items()}, 1e-4)


def test_E4_hgru_backward_is_linear_in_the_cotangent():
    torch.manual_seed(0)
    cell, x, g = GALAHGRUCell(32), torch.rand(3, 32, 7, 7, requires_grad=True), torch.randn(3, 32, 7, 7)
    layer = RecurrentLayer(cell, 5)
    one = gradients((layer(x).hidden * g).sum(), cell, x)
    for scale in (1e-3, 1e3, 65536.0):
        scaled = gradients((layer(x).hidden * g * scale).sum(), cell, x)
        assert_close(scaled, {name: value * scale for name, value in one.items()}, 1e-4)


@pytest.mark.parametrize("options", [{}, {"adjoint": "solve"}, {"solver": "anderson"}, {"neumann_tolerance": 1e-3}])
@pytest.mark.parametrize("count", [2, 100])
def test_E6_each_sample_stands_alone(count, options):
    gains = torch.linspace(0.05, 3, count).tolist()
    x, g = GainCell.input(gains).requires_grad_(), random((count, 6), 2)
    layer = RecurrentLayer(GainCell(), 20, **options)
    together = layer(x)
    (gradient,) = torch.autograd.grad((together.hidden * g).sum(), x)
    if not options:
        assert 0 < layer.diagnostics["truncated_share"] < 1
    for i in range(0, count, 11):
        alone = layer(one := x[i : i + 1].detach().requires_grad_())
        (single,) = torch.autograd.grad((alone.hidden * g[i : i + 1]).sum(), one)
        torch.testing.assert_close(alone.hidden[0], together.hidden[i], rtol=1e-5, atol=1e-9)
        torch.testing.assert_close(alone.residual[0], together.residual[i], rtol=1e-4, atol=1e-9)
        torch.testing.assert_close(single[0], gradient[i], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("count", [2, 100])
def test_C5_E6_hgru_roi_stands_alone(count):
    torch.manual_seed(0)
    cell = GALAHGRUCell(32, gate_steps=2)
    x = torch.rand(count, 32, 5, 5) * torch.logspace(-1, 1, count).view(-1, 1, 1, 1)
    for layer in (RecurrentLayer(cell, 6), RecurrentLayer(cell, 30, test_tolerance=0.01).eval()):
        with torch.no_grad():
            together = layer(x)
            for i in range(0, count, 33):
                alone = layer(x[i : i + 1])
                assert alone.steps[0] == together.steps[i]
                assert relative_error(alone.hidden[0], together.hidden[i]) < 1e-5
    assert len(together.steps.unique()) > 1


@pytest.mark.parametrize("solver", ["steps", "anderson"])
@pytest.mark.parametrize("tolerance", [1e-1, 1e-2, 1e-3])
def test_C5_batch_statistics_make_recorded_values_differ_by_less_than_the_tolerance(solver, tolerance):
    torch.manual_seed(0)
    x = torch.rand(4, 8, 6, 6) * torch.logspace(-1, 1, 4).view(-1, 1, 1, 1)
    layer = RecurrentLayer(HGRUCell(8, 3, gate_steps=4), 200, solver=solver, test_tolerance=tolerance).eval()
    recorded = layer(x)
    with torch.no_grad():
        silent = layer(x)
    assert recorded.hidden.requires_grad and torch.equal(recorded.steps, silent.steps)
    assert (sample_norm(recorded.hidden - silent.hidden) < tolerance * sample_norm(silent.hidden)).all()


@pytest.mark.parametrize("adjoint, bound", [("neumann", 1 + 2.0 * 15), ("solve", 100.0)])
@pytest.mark.parametrize("gain", [1.5, 3.0, 1e6])
def test_E2_E4_diverging_cell_gets_a_bounded_gradient(gain, adjoint, bound):
    cell, x, g = GainCell(), GainCell.input([gain, 0.5]).requires_grad_(), random((2, 6))
    layer = RecurrentLayer(cell, 20, adjoint=adjoint)
    output = layer(x)
    assert output.hidden.requires_grad
    found = gradients((output.hidden * g).sum(), cell, x)
    # ∂F/∂x is the identity here, so x receives u itself
    assert (found["x"].norm(dim=1) <= bound * g.norm(dim=1)).all()
    assert all(value.isfinite().all() and value.abs().sum() > 0 for value in found.values())
    assert layer.diagnostics["unconverged_share"] == 0.5 and layer.diagnostics["residual"] > 0.1
    if adjoint == "neumann":
        assert layer.diagnostics["truncated_share"] == 0.5


@pytest.mark.parametrize("adjoint, solve", [("neumann", neumann_series), ("solve", linear_solve)])
def test_E2_diagnostics_of_the_backward_pass_are_means_over_samples(adjoint, solve):
    cell, x, g = GainCell(), GainCell.input([0.5, 0.9, 40.0]), random((3, 6), 3)
    layer = RecurrentLayer(cell, 3, adjoint=adjoint, neumann_terms=4, neumann_tolerance=0.3)
    (layer(x).hidden * g).sum().backward()
    wanted = solve(lambda v: x[:, :1] * (v @ cell.weight), g, 4, 2.0, 0.3)
    assert len(wanted.length.unique()) > 1
    found = {"truncated": "truncated_share", "length": f"{adjoint}_length", "residual": "solve_residual"}
    for name in wanted._fields[1:]:
        torch.testing.assert_close(layer.diagnostics[found[name]].double(), getattr(wanted, name).double().mean())


@pytest.mark.parametrize("gradient", ["bptt", "tbptt", "rbp"])
def test_E2_output_requires_grad_and_every_parameter_gets_one(gradient):
    cell, x = GainCell(), GainCell.input([3.0, 3.0])
    output = RecurrentLayer(cell, 20, gradient=gradient)(x)
    output.hidden.sum().backward()
    assert output.hidden.requires_grad
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in cell.parameters())


@pytest.mark.parametrize("gradient", ["rbp", "bptt", "tbptt"])
def test_shapes_can_be_had_without_numbers(gradient):
    layer = RecurrentLayer(HGRUCell(4, 3), 4, gradient=gradient, lipschitz=True).to("meta")
    output = layer(torch.empty(2, 4, 8, 8, device="meta"))
    output.hidden.sum().backward()
    assert output.hidden.is_meta and output.hidden.shape == (2, 4, 8, 8) and all(p.grad.is_meta for p in layer.parameters())


@pytest.mark.parametrize("options", [{}, {"adjoint": "solve"}, {"solver": "anderson"}, {"gradient": "bptt"}])
def test_E1_nan_shows_in_the_sample_that_made_it(options):
    x = random((3, 6)).abs()
    x[1, 0] = -1
    cell, x = NaNCell(), x.requires_grad_()
    layer = RecurrentLayer(cell, 40, lipschitz=True, **options)
    output = layer(x)
    assert output.hidden[1].isnan().all() and output.hidden[[0, 2]].isfinite().all()
    assert output.residual[1].isnan() and layer.diagnostics["residual"].isnan()
    assert layer.diagnostics["unconverged_share"] == pytest.approx(1 / 3)
    output.hidden.square().sum().backward()
    assert all(p.grad is not None for p in cell.parameters())
    # a NaN never passes for a small gradient
    assert x.grad[1].isnan().all() and x.grad[[0, 2]].isfinite().all()
    if "gradient" not in options:
        assert layer.diagnostics["truncated_share"] == pytest.approx(1 / 3)


def test_E1_nan_in_evaluation_with_early_stop():
    x = random((3, 6)).abs()
    x[1, 0] = -1
    layer = RecurrentLayer(NaNCell(), 60, test_tolerance=1e-6).eval()
    output = layer(x)
    assert output.steps[1] == 60 and (output.steps[[0, 2]] < 60).all()
    assert output.hidden[1].isnan().all() and layer.diagnostics["unconverged_share"] == pytest.approx(1 / 3)
