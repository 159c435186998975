import pytest
import torch

from rfpn.fixed_point import anderson, iterate, iterate_until, relative_residual
from tests.problems import GainCell, LinearCell, NaNCell, TanhCell, random


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("options", [{}, {"window": 2}, {"damping": 0.7}, {"ridge": 1e-4}])
def test_reaches_the_exact_fixed_point(seed, options):
    cell, x = LinearCell(radius=0.9, seed=seed), random((4, 6), seed)
    found = anderson(cell, x, torch.zeros_like(x), 300, 1e-10, **options)
    assert found.converged.all()
    torch.testing.assert_close(found.state, cell.fixed_point(x), rtol=1e-7, atol=1e-7)


def test_full_window_solves_a_linear_problem_in_as_many_steps_as_dimensions():
    cell, x = LinearCell(radius=0.9), random((4, 6))
    found = anderson(cell, x, torch.zeros_like(x), 60, 1e-10, window=6)
    # D + 1 gaps span the space, one more evaluation confirms; rounding may cost a few
    assert (found.steps <= 12).all()
    assert (iterate_until(cell, x, torch.zeros_like(x), 60, 1e-10).steps == 60).all()


def test_nonlinear_cell_needs_fewer_steps_than_iteration():
    cell, x = TanhCell(radius=0.95, symmetric=True), random((20, 6)) * 0.1
    fast = anderson(cell, x, torch.zeros_like(x), 500, 1e-8)
    plain = iterate_until(cell, x, torch.zeros_like(x), 500, 1e-8)
    assert fast.converged.all() and fast.steps.double().mean() < 0.7 * plain.steps.double().mean()
    torch.testing.assert_close(fast.state, iterate(cell, x, plain.state, 500), rtol=1e-5, atol=1e-6)


def test_finds_a_fixed_point_that_repels():
    x = GainCell.input([1.5, 3.0])
    cell = GainCell()
    found = anderson(cell, x, torch.zeros_like(x), 60, 1e-9, window=6)
    assert found.converged.all()
    torch.testing.assert_close(cell(x, found.state), found.state, rtol=1e-6, atol=1e-6)


def test_state_follows_from_previous_and_residual_is_theirs():
    cell, x = TanhCell(seed=3), random((4, 6))
    found = anderson(cell, x, torch.zeros_like(x), 7, 1e-12)
    assert torch.equal(cell(x, found.previous), found.state)
    torch.testing.assert_close(relative_residual(found.state, found.previous), found.residual)
    assert not found.state.requires_grad


@pytest.mark.parametrize("count", [2, 100])
def test_E6_does_not_depend_on_the_batch(count):
    cell, x = GainCell(), GainCell.input(torch.linspace(0.05, 1.2, count).tolist())
    together = anderson(cell, x, torch.zeros_like(x), 30, 1e-4)
    assert len(together.steps.unique()) > 1
    for i in range(0, count, 7):
        alone = anderson(cell, x[i : i + 1], torch.zeros_like(x[:1]), 30, 1e-4)
        assert alone.steps[0] == together.steps[i]
        torch.testing.assert_close(alone.state[0], together.state[i], rtol=1e-5, atol=1e-9)


def test_E6_a_settled_sample_keeps_its_iterate_where_others_act_on_it():
    points = []

    def update(x, h):
        points.append(h.clone())
        return torch.stack([1 + 0.02 * h[1], torch.cos(3 * h[1])])

    start = torch.zeros(2, 1, dtype=torch.float64)
    whole = anderson(update, start, start, 12, 0.03)
    first = int(whole.steps[0])
    assert first < int(whole.steps[1]) and len({float(h[0]) for h in points[first - 1 :]}) == 1
    torch.testing.assert_close(whole.state[0], anderson(update, start, start, first, 0.03).state[0])


def test_E1_nan_is_reported_and_stays_in_its_sample():
    x = random((3, 6)).abs()
    x[1, 0] = -1
    found = anderson(NaNCell(), x, torch.zeros_like(x), 60, 1e-8)
    assert found.converged.tolist() == [True, False, True]
    assert found.steps[1] == 60 and found.residual[1].isnan() and found.state[1].isnan().all()
    torch.testing.assert_close(found.state[[0, 2]], NaNCell().fixed_point(x)[[0, 2]], rtol=1e-6, atol=1e-6)
    without = anderson(NaNCell(), x[[0, 2]], torch.zeros_like(x[[0, 2]]), 60, 1e-8)
    assert torch.equal(found.steps[[0, 2]], without.steps)
    torch.testing.assert_close(found.state[[0, 2]], without.state, rtol=1e-9, atol=1e-12)


def test_E1_without_a_fixed_point_the_best_iterate_comes_back():
    def run(steps):
        return anderson(lambda x, h: h.square() + 1 + x, torch.zeros(2, 3), torch.zeros(2, 3), steps, 1e-6)

    residuals = torch.stack([run(steps).residual for steps in range(1, 40)])
    found = run(39)
    assert not found.converged.any() and found.state.isfinite().all()
    assert (residuals.diff(dim=0) <= 0).all()
    # the step that is recorded leads from the one to the other, also where the best is not the last
    assert torch.equal(found.previous.square() + 1, found.state)


def test_one_evaluation_equals_one_step_and_no_samples_work():
    cell, x = TanhCell(), random((4, 6))
    assert torch.equal(anderson(cell, x, torch.zeros_like(x), 1, 0.0).state, cell(x, torch.zeros_like(x)))
    empty = anderson(cell, random((0, 6)), random((0, 6)), 5, 1e-3)
    assert empty.state.shape == (0, 6) and empty.converged.shape == (0,)


@pytest.mark.parametrize("search", [anderson, iterate_until])
def test_a_state_at_rest_has_converged_also_at_tolerance_0(search):
    x, calls = random((2, 3)), []
    found = search(lambda x, h: calls.append(1) or x, x, torch.zeros_like(x), 5, 0.0)
    assert found.converged.all() and found.steps.tolist() == [2, 2] and torch.equal(found.state, x)
    assert len(calls) == 2 and found.steps.dtype == torch.int64


@pytest.mark.parametrize("count", [4, 0])
def test_states_of_one_number_a_sample(count):
    x = random((count,))
    found = anderson(lambda x, h: torch.cos(h) + x, x, torch.zeros_like(x), 40, 1e-10)
    column = anderson(lambda x, h: torch.cos(h) + x, x[:, None], torch.zeros_like(x)[:, None], 40, 1e-10)
    assert found.converged.shape == (count,) and found.converged.all()
    assert torch.equal(found.state[:, None], column.state) and torch.equal(found.previous[:, None], column.previous)


def test_C9_half_precision_is_mixed_in_float32():
    cell, x = LinearCell(radius=0.9).bfloat16(), random((4, 6)).bfloat16()
    found = anderson(cell, x, torch.zeros_like(x), 40, 1e-3)
    assert found.state.dtype == torch.float32 and found.residual.max() < 0.02


def test_C9_autocast_reaches_the_cell_only():
    cell, x = LinearCell(radius=0.9).float(), random((4, 6)).float()

    def update(x, h):
        with torch.autocast("cpu", enabled=False):
            return cell(x, h)

    wanted = anderson(cell, x, torch.zeros_like(x), 10, 0.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(anderson(update, x, torch.zeros_like(x), 10, 0.0).state, wanted.state)
