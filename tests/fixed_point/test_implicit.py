import pytest
import torch

from rfpn.fixed_point import implicit_gradient, iterate, linear_solve, replace_cotangent
from tests.problems import LinearCell, TanhCell, assert_close, gradients, random


def last_step(cell, x, steps=80):
    with torch.no_grad():
        previous = iterate(cell, x, torch.zeros_like(x), steps - 1)
    previous.requires_grad_()
    return cell(x, previous), previous


def test_value_passes_and_the_cotangent_is_replaced():
    h = random((2, 3)).requires_grad_()
    out = replace_cotangent(h * 2, lambda g: g * 5)
    assert torch.equal(out, h * 2)
    (gradient,) = torch.autograd.grad(out.sum(), h)
    assert torch.equal(gradient, torch.full_like(h, 10.0))


@pytest.mark.parametrize("adjoint_terms", [(None, 60), (linear_solve, 12)])
@pytest.mark.parametrize("seed", range(5))
def test_E3_linear_cell_equals_the_dense_solve(seed, adjoint_terms):
    adjoint, terms = adjoint_terms
    cell, x, g = LinearCell(seed=seed), random((4, 6), seed).requires_grad_(), random((4, 6), seed + 100)
    h, previous = last_step(cell, x)
    options = {"adjoint": adjoint} if adjoint else {}
    hidden = implicit_gradient(h, previous, terms, growth_limit=10.0, **options)
    torch.testing.assert_close(hidden, cell.fixed_point(x), rtol=1e-10, atol=1e-10)
    assert_close(gradients((hidden * g).sum(), cell, x), cell.exact_gradients(x, g), 1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_E3_equals_backpropagation_through_300_steps(seed):
    cell, x, g = TanhCell(seed=seed), random((4, 6), seed).requires_grad_(), random((4, 6), seed + 100)
    unrolled = gradients((iterate(cell, x, torch.zeros_like(x), 300) * g).sum(), cell, x)
    h, previous = last_step(cell, x)
    implicit = gradients((implicit_gradient(h, previous, 80, growth_limit=10.0) * g).sum(), cell, x)
    assert_close(implicit, unrolled, 1e-6)


def test_E3_gradcheck_against_the_solved_fixed_point():
    cell = LinearCell(size=3)

    def fixed_point(weight, drive, x):
        parameters = {"weight": weight, "drive": drive}
        with torch.no_grad():
            previous = torch.zeros_like(x)
            for _ in range(120):
                previous = torch.func.functional_call(cell, parameters, (x, previous))
        previous.requires_grad_()
        h = torch.func.functional_call(cell, parameters, (x, previous))
        return implicit_gradient(h, previous, 80, growth_limit=10.0)

    inputs = [p.detach().clone().requires_grad_() for p in (cell.weight, cell.drive, random((2, 3)))]
    assert torch.autograd.gradcheck(fixed_point, inputs)


def test_report_gets_the_series():
    reports, x = [], random((4, 6))
    h, previous = last_step(LinearCell(), x)
    implicit_gradient(h, previous, 7, report=reports.append).sum().backward()
    assert len(reports) == 1 and (reports[0].length == 7).all()


def test_update_that_ignores_its_state_gets_its_own_gradient():
    weight, previous, g = random((2, 3)).requires_grad_(), random((2, 3)).requires_grad_(), random((2, 3), 1)
    hidden = implicit_gradient(weight * 2, previous, 5)
    (gradient,) = torch.autograd.grad((hidden * g).sum(), weight)
    torch.testing.assert_close(gradient, 2 * g)


@pytest.mark.parametrize("change", [lambda previous: previous.detach(), lambda previous: previous * 1])
def test_a_previous_state_that_is_no_leaf_with_gradient_is_refused(change):
    cell, x = TanhCell(), random((4, 6))
    previous = change(last_step(cell, x)[1])
    with pytest.raises(ValueError, match="h_previous must be a leaf that requires grad"):
        implicit_gradient(cell(x, previous), previous, 5)
    # nobody will ask for a gradient, or something else than autograd knows the Jacobian
    implicit_gradient(cell(x, previous).detach(), previous, 5)
    implicit_gradient(cell(x, previous), None, 5, transpose=lambda v: v)


def test_second_derivatives_are_refused():
    x = random((4, 6)).requires_grad_()
    h, previous = last_step(TanhCell(), x)
    with pytest.raises(RuntimeError, match="use gradient 'bptt'"):
        torch.autograd.grad(implicit_gradient(h, previous, 5).sum(), x, create_graph=True)


def test_C9_half_precision_state_keeps_its_type_and_matches():
    cell, x, g = LinearCell(), random((4, 6)), random((4, 6), 1)
    exact = cell.exact_gradients(x, g)["x"]
    half = cell.bfloat16()
    x = x.bfloat16().requires_grad_()
    h, previous = last_step(half, x, 20)
    hidden = implicit_gradient(h, previous, 15, growth_limit=10.0)
    assert hidden.dtype == torch.bfloat16
    (gradient,) = torch.autograd.grad((hidden * g.bfloat16()).sum(), x)
    assert_close({"x": gradient.double()}, {"x": exact}, 0.05)
