import math

import pytest
import torch
from torch.autograd import gradcheck

from rfpn.fixed_point import column_sums, lipschitz_penalty, penalty_of_sums, probe_vector, secant_quotients
from rfpn.fixed_point.lipschitz import REDUCTIONS
from tests.problems import LinearCell, TanhCell, random


def linear_step(jacobian, samples=2):
    """h and h_previous with ∂h/∂h_previous = jacobian for every sample."""
    previous = random((samples, len(jacobian))).requires_grad_()
    return previous @ torch.tensor(jacobian, dtype=torch.float64).mT, previous


@pytest.mark.parametrize(
    "jacobian, excess",
    [
        ([[2.0, -2.0], [-2.0, 2.0]], [0.0, 0.0]),  # spectral radius 4, unseen
        ([[-5.0, 0.0], [0.0, -5.0]], [0.0, 0.0]),  # negative sums are free
        ([[0.5, 0.0], [0.0, 0.9]], [0.0, 0.0]),
        ([[1.5, 0.0], [0.5, 1.0]], [1.1, 0.1]),  # columns, not rows
        ([[0.0, 3.0], [0.0, 0.0]], [0.0, 2.1]),
    ],
)
def test_E10_penalty_is_the_documented_formula(jacobian, excess):
    for samples in (1, 5):
        h, previous = linear_step(jacobian, samples)
        square = torch.tensor(excess, dtype=torch.float64).square().sum()
        wanted = {"mean_square": square / 2, "sum_square": square * samples, "norm": (square * samples).sqrt()}
        for reduction in REDUCTIONS:
            value = lipschitz_penalty(h, previous, 0.9, reduction)
            torch.testing.assert_close(value, wanted[reduction], rtol=1e-9, atol=1e-12)


def test_E10_two_sided_penalty_sees_negative_sums():
    h, previous = linear_step([[-5.0, 0.0], [0.5, 0.2]])
    assert lipschitz_penalty(h, previous, 0.9) == 0
    value = lipschitz_penalty(h, previous, 0.9, two_sided=True)
    torch.testing.assert_close(value, torch.tensor((4.5 - 0.9) ** 2 / 2, dtype=torch.float64))


def test_E10_random_signs_see_what_ones_do_not():
    torch.manual_seed(0)
    h, previous = linear_step([[2.0, -2.0], [-2.0, 2.0]], samples=200)
    assert lipschitz_penalty(h, previous, probe="ones") == 0
    # signs agree (sums 0) or differ (sums 4 and -4) with equal chance: mean of (0, 0, 3.1², 0)
    value = lipschitz_penalty(h, previous, probe="rademacher").item()
    assert 0.2 * 3.1**2 < value < 0.3 * 3.1**2


def test_E10_sample_signs_see_what_a_norm_over_the_batch_hides_from_ones():
    torch.manual_seed(0)
    previous = random((200, 2)).requires_grad_()
    h = 3 * (previous - previous.mean(dim=0))
    assert lipschitz_penalty(h, previous, probe="ones", two_sided=True) == 0
    # ±3 but for the mean of the signs, which is at most a few tenths
    value = lipschitz_penalty(h, previous, probe="sample_signs", two_sided=True).item()
    assert 0.9 * 2.1**2 < value < 1.1 * 2.1**2


def test_E10_sample_signs_are_one_for_each_sample():
    vector = probe_vector(random((40, 3, 2)), "sample_signs")
    assert (vector == vector[:, :1, :1]).all() and set(vector.flatten().tolist()) == {-1.0, 1.0}


def test_E10_column_sums():
    cell = LinearCell()
    previous = random((3, 6)).requires_grad_()
    sums = column_sums(cell(random((3, 6)), previous), previous)
    torch.testing.assert_close(sums, cell.weight.sum(dim=0).expand(3, 6))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("cell_class", [LinearCell, TanhCell])
def test_double_backward_equals_finite_differences(cell_class, reduction):
    cell = cell_class(size=3, radius=2.0, seed=1)
    start = random((2, 3), 1) * 0.1

    def penalty(weight, drive, x, previous):
        h = torch.func.functional_call(cell, {"weight": weight, "drive": drive}, (x, previous))
        return lipschitz_penalty(h, previous, 0.2, reduction)

    inputs = [p.detach().clone().requires_grad_() for p in (cell.weight, cell.drive, random((2, 3)) * 0.1, start)]
    assert penalty(*inputs) > 0
    assert gradcheck(penalty, inputs)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_excess_gives_zero_gradient_not_nan(reduction):
    cell, previous = LinearCell(radius=0.01), random((2, 6)).requires_grad_()
    value = lipschitz_penalty(cell(random((2, 6)), previous), previous, 0.9, reduction)
    (gradient,) = torch.autograd.grad(value, cell.weight)
    assert value == 0 and torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_E1_a_jacobian_that_is_not_finite_never_passes_for_one_without_excess(reduction, bad):
    h, previous = linear_step([[bad, 0.0], [0.0, 0.5]])
    assert not lipschitz_penalty(h, previous, 0.9, reduction).isfinite()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_C1_no_samples_give_zero(reduction):
    cell, previous = LinearCell(), random((0, 6)).requires_grad_()
    value = lipschitz_penalty(cell(random((0, 6)), previous), previous, 0.0, reduction)
    (gradient,) = torch.autograd.grad(value, cell.weight)
    assert value == 0 and torch.equal(gradient, torch.zeros_like(gradient))


def test_E10_mean_square_does_not_grow_with_samples():
    cell, x, start = TanhCell(radius=2.0), random((3, 6)), random((3, 6), 1) * 0.1
    values = []
    for copies in (1, 10):
        previous = start.repeat(copies, 1).requires_grad_()
        values.append(lipschitz_penalty(cell(x.repeat(copies, 1), previous), previous, 0.1))
    assert values[0] > 0
    torch.testing.assert_close(values[0], values[1])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_E10_a_single_sum_is_its_own_mean(reduction):
    """As one sample's secant quotient is."""
    assert penalty_of_sums(torch.tensor([2.5]), 0.5, reduction).item() == (2 if reduction == "norm" else 4)


def test_C9_half_precision_gives_float32():
    previous = torch.ones(2, 4, dtype=torch.bfloat16, requires_grad=True)
    assert lipschitz_penalty(previous * 2, previous).dtype == torch.float32


def test_update_that_ignores_its_state_has_no_penalty():
    previous = random((2, 3)).requires_grad_()
    assert lipschitz_penalty(random((2, 3)).requires_grad_() * 2, previous, 0.0) == 0


@pytest.mark.parametrize(
    "arguments, named",
    [((1.0, "norm"), "1.0"), ((-0.1, "norm"), "-0.1"), ((0.9, "max"), "max"), ((0.9, "norm", "gaussian"), "gaussian")],
)
def test_bad_settings_are_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        lipschitz_penalty(*[random((2, 3)).requires_grad_()] * 2, *arguments)


def rotation(radius, degrees):
    angle = math.radians(degrees)
    return [[radius * math.cos(angle), -radius * math.sin(angle)], [radius * math.sin(angle), radius * math.cos(angle)]]


@pytest.mark.parametrize(
    "jacobian, motion, quotient",
    [
        ([[2.0, -2.0], [-2.0, 2.0]], [1.0, -1.0], 4.0),  # column sums 0
        ([[-3.0, 0.0], [0.0, -3.0]], [0.3, 0.1], 3.0),  # column sums negative
        (rotation(1.3, 120), [0.2, -0.7], 1.3),  # a cycle of three that grows
        ([[0.5, 0.0], [0.0, 4.0]], [1.0, 0.0], 0.5),  # nothing moves along the other axis
    ],
)
def test_E10_secant_quotients_see_what_moves(jacobian, motion, quotient):
    matrix = torch.tensor(jacobian, dtype=torch.float64)
    previous = random((3, 2))
    h = previous + torch.tensor(motion, dtype=torch.float64) * torch.tensor([[1.0], [5.0], [20.0]], dtype=torch.float64)
    offset = h - previous @ matrix.mT  # F(previous) = h
    found = secant_quotients(h @ matrix.mT + offset, h, previous)
    torch.testing.assert_close(found, torch.full((3,), quotient, dtype=torch.float64))


def test_E10_a_settled_sample_has_small_quotients_whatever_rounding_does():
    h = random((2, 50)) + 2
    noise = 1e-4 * random((2, 50), 1)
    found = secant_quotients(h + 3 * noise, h, h - noise)
    assert (found < 0.1).all()
    # a motion of 2% is one
    assert secant_quotients(h * 1.06, h, h * 0.98).min() > 2.5


@pytest.mark.parametrize("motion", [0.5, 1e-3])
def test_E10_quotients_have_no_gradient_through_what_they_divide_by(motion):
    """Neither through the length of a motion nor, where that is small, through the state's."""
    previous, ahead = random((2, 5)), random((2, 5), 1)
    h = (previous + motion * random((2, 5), 2)).requires_grad_()
    (gradient,) = torch.autograd.grad(secant_quotients(ahead, h, previous).sum(), h)
    length = torch.maximum((h - previous).norm(dim=1), 0.01 * h.norm(dim=1))
    wanted = (h - ahead) / (h - ahead).norm(dim=1, keepdim=True) / length[:, None]
    torch.testing.assert_close(gradient, wanted.detach())


def test_E10_no_motion_gives_zero_gradient_not_nan():
    h = random((2, 4)).requires_grad_()
    for state in (h, h * 0):
        found = secant_quotients(state.clone(), state, state.detach())
        (gradient,) = torch.autograd.grad(found.sum(), h)
        assert torch.equal(found, torch.zeros_like(found)) and torch.equal(gradient, torch.zeros_like(h))


def test_E1_an_exploded_state_has_no_quotient():
    h = torch.tensor([[1.5e19] * 8, [1.5] * 8])  # the first one's norm overflows, that of its motion does not
    found = secant_quotients(h * 1.1, h, h * 0.9)
    assert found[0].isnan() and found[1].item() == pytest.approx(1.0)


def test_C1_no_samples_have_no_quotients():
    empty = random((0, 6)).requires_grad_()
    assert secant_quotients(empty * 2, empty, empty.detach()).shape == (0,)
