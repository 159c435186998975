import pytest
import torch

from rfpn.fixed_point import iterate, iterate_until, relative_residual, sample_norm, stopping_tolerance
from tests.problems import GainCell, LinearCell, NaNCell, random


def test_iterate_reaches_the_exact_fixed_point():
    cell, x = LinearCell(), random((3, 6))
    torch.testing.assert_close(iterate(cell, x, torch.zeros_like(x), 80), cell.fixed_point(x), rtol=1e-10, atol=1e-10)


def test_iterate_zero_steps_returns_the_start():
    x = random((3, 6))
    assert iterate(LinearCell(), x, x, 0) is x


def test_residual_is_relative_and_zero_for_zeros():
    new, old = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(relative_residual(new, old), torch.tensor([1.0, 0.0]))


def test_sample_norm_is_wide():
    assert sample_norm(torch.ones(2, 3, dtype=torch.bfloat16)).dtype == torch.float32
    assert sample_norm(torch.ones(2, 3, 4, dtype=torch.float64)).dtype == torch.float64
    assert sample_norm(torch.ones(0, 3, 4)).shape == (0,)
    # 300² overflows float16
    assert sample_norm(torch.full((1, 4), 300.0, dtype=torch.float16)).item() == 600


def test_until_stops_each_sample_alone():
    x = GainCell.input([0.1, 0.5, 0.9])
    found = iterate_until(GainCell(), x, torch.zeros_like(x), 200, 1e-6)
    assert found.converged.all()
    assert found.steps[0] < found.steps[1] < found.steps[2] < 200
    for i, steps in enumerate(found.steps.tolist()):
        states = [iterate(GainCell(), x, torch.zeros_like(x), t) for t in (steps - 2, steps - 1, steps)]
        torch.testing.assert_close(found.state[i], states[2][i])
        torch.testing.assert_close(found.previous[i], states[1][i])
        assert relative_residual(states[2], states[1])[i] <= 1e-6 < relative_residual(states[1], states[0])[i]


@pytest.mark.parametrize("count", [2, 100])
def test_E6_until_does_not_depend_on_the_batch(count):
    cell, x = GainCell(), GainCell.input(torch.linspace(0.05, 1.2, count).tolist())
    together = iterate_until(cell, x, torch.zeros_like(x), 60, 1e-4)
    assert len(together.steps.unique()) > 1
    for i in range(0, count, 7):
        alone = iterate_until(cell, x[i : i + 1], torch.zeros_like(x[:1]), 60, 1e-4)
        assert alone.steps[0] == together.steps[i]
        torch.testing.assert_close(alone.state[0], together.state[i], rtol=1e-5, atol=0)


def test_until_keeps_settled_samples_for_batch_statistics():
    sizes = []

    def update(x, h):
        sizes.append(len(h))
        return x[:, :1] * h + x - x.mean(dim=0)

    x = GainCell.input([0.1, 0.8])
    found = iterate_until(update, x, torch.zeros_like(x), 200, 1e-6, independent=False)
    assert set(sizes) == {2} and len(sizes) == found.steps.max()
    exact = (x - x.mean(dim=0)) / (1 - x[:, :1])
    torch.testing.assert_close(found.state, exact, rtol=1e-4, atol=1e-4)


def test_until_drops_settled_samples_otherwise():
    sizes = []

    def update(x, h):
        sizes.append(len(h))
        return x[:, :1] * h + x

    x = GainCell.input([0.1, 0.8])
    iterate_until(update, x, torch.zeros_like(x), 200, 1e-6)
    assert sizes[0] == 2 and sizes[-1] == 1


def test_until_leaves_the_start_alone_and_takes_zero_steps():
    h = random((2, 6))
    kept = h.clone()
    iterate_until(LinearCell(), random((2, 6), 1), h, 5, 1e-9)
    assert torch.equal(h, kept)
    none = iterate_until(LinearCell(), random((2, 6), 1), h, 0, 1e-9)
    assert torch.equal(none.state, h) and not none.converged.any() and (none.steps == 0).all()


def test_until_of_no_samples():
    found = iterate_until(LinearCell(), random((0, 6)), random((0, 6)), 5, 1e-3)
    assert found.state.shape == (0, 6) and found.steps.shape == found.converged.shape == (0,)


def test_E1_nan_is_reported_not_raised():
    x = random((3, 6)).abs()
    x[1, 0] = -1
    found = iterate_until(NaNCell(), x, torch.zeros_like(x), 100, 1e-6)
    assert found.converged.tolist() == [True, False, True]
    assert found.steps[1] == 100 and found.residual[1].isnan() and found.state[1].isnan().all()
    torch.testing.assert_close(found.state[[0, 2]], NaNCell().fixed_point(x)[[0, 2]], rtol=1e-4, atol=1e-4)


def test_E1_divergence_is_reported():
    x = GainCell.input([1.5, 0.5])
    found = iterate_until(GainCell(), x, torch.zeros_like(x), 50, 1e-6)
    assert found.converged.tolist() == [False, True]
    assert found.residual[0] > 0.1


def test_E1_exploded_state_is_not_taken_for_a_settled_one():
    # finite in float32, but its norm is not, while that of the difference is: their quotient would be 0
    new, old = torch.full((1, 8), 1.5e19), torch.full((1, 8), 1.4e19)
    assert (new - old).norm().isfinite() and relative_residual(new, old).isnan()
    found = iterate_until(lambda x, h: 3 * h + x, torch.ones(1, 8), torch.zeros(1, 8), 41, 1e-6)
    assert found.state.isfinite().all() and found.steps.item() == 41 and not found.converged


@pytest.mark.parametrize(
    "solver, test_tolerance, stops_at",
    [("steps", 0.0, 0.0), ("steps", 0.1, 0.1), ("anderson", 0.0, 1e-4), ("anderson", 0.1, 0.1)],
)
def test_the_residual_at_which_a_sample_may_stop(solver, test_tolerance, stops_at):
    assert stopping_tolerance(solver, 1e-4, test_tolerance) == stops_at
