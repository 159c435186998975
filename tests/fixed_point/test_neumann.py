import pytest
import torch

from rfpn.fixed_point import neumann_series
from tests.problems import LinearCell, dense_solve, random, relative_error, transpose_of


@pytest.mark.parametrize("seed", range(5))
def test_E3_equals_the_dense_solve(seed):
    jacobian, g = LinearCell(seed=seed).weight.detach(), random((4, 6), seed)
    series = neumann_series(transpose_of(jacobian), g, 60, growth_limit=10.0)
    assert relative_error(series.total, dense_solve(jacobian, g)) < 1e-6
    assert not series.truncated.any() and (series.length == 60).all()


def test_E3_error_falls_like_the_spectral_radius():
    jacobian, g = LinearCell(radius=0.5, symmetric=True).weight.detach(), random((4, 6))
    wanted = dense_solve(jacobian, g)
    errors = [relative_error(neumann_series(transpose_of(jacobian), g, k).total, wanted) for k in range(4, 30)]
    rates = [later / earlier for earlier, later in zip(errors, errors[1:])]
    assert all(0.35 < rate <= 0.5 + 1e-9 for rate in rates) and rates[-1] > 0.49


def test_no_terms_give_the_cotangent():
    g = random((4, 6))
    series = neumann_series(transpose_of(torch.eye(6, dtype=g.dtype)), g, 0)
    assert torch.equal(series.total, g) and (series.length == 0).all()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 65536.0])
@pytest.mark.parametrize("gain", [0.5, 1.5, 3.0])
def test_E4_linear_in_the_cotangent(scale, gain):
    jacobian, g = random((6, 6)).float() * gain / 6**0.5, random((4, 6)).float()
    one = neumann_series(transpose_of(jacobian), g, 15)
    scaled = neumann_series(transpose_of(jacobian), g * scale, 15)
    assert torch.equal(one.length, scaled.length) and torch.equal(one.truncated, scaled.truncated)
    assert relative_error(scaled.total, one.total * scale) < 1e-4


@pytest.mark.parametrize("gain, length", [(1.5, 1), (3.0, 0)])
def test_E4_expansion_is_cut_at_the_limit(gain, length):
    jacobian, g = gain * torch.eye(6, dtype=torch.float64), random((4, 6))
    series = neumann_series(transpose_of(jacobian), g, 15, growth_limit=2.0)
    assert series.truncated.all() and (series.length == length).all()
    torch.testing.assert_close(series.total, g * sum(gain**k for k in range(length + 1)))


def test_E4_first_stop_wins():
    # the terms of this transient grow beyond the limit and would come back below it
    jacobian = torch.tensor([[0.1, 8.0], [0.0, 0.1]], dtype=torch.float64)
    g = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    series = neumann_series(transpose_of(jacobian), g, 15, growth_limit=2.0)
    assert series.truncated.tolist() == [True, False]
    torch.testing.assert_close(series.total[0], g[0])
    torch.testing.assert_close(series.total[1], dense_solve(jacobian, g)[1])


@pytest.mark.parametrize("tolerance", [0.0, 1e-30])
def test_E4_a_sample_that_was_cut_gets_nothing_from_others(tolerance):
    # two samples of one number: the first outgrows the limit at once, and the second goes on feeding it
    jacobian = torch.tensor([[1.2, 0.9], [0.0, 0.9]], dtype=torch.float64)
    series = neumann_series(lambda v: jacobian @ v, torch.ones(2, 1, dtype=torch.float64), 12, tolerance=tolerance)
    assert series.truncated.tolist() == [True, False] and series.length.tolist() == [0, 12]
    torch.testing.assert_close(series.total[:, 0], torch.tensor([1.0, (1 - 0.9**13) / 0.1], dtype=torch.float64))


def test_E6_samples_may_be_single_numbers():
    gains, g = torch.tensor([0.5, 3.0], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    series = neumann_series(lambda v: gains * v, g, 60)
    assert series.truncated.tolist() == [False, True]
    torch.testing.assert_close(series.total, torch.tensor([2.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_term_that_is_not_finite_ends_its_sample_only(bad):
    jacobian, g = LinearCell().weight.detach(), random((3, 6))

    def transpose(vector):
        product = vector @ jacobian
        product[1] = bad
        return product

    series = neumann_series(transpose, g, 40)
    assert series.truncated.tolist() == [False, True, False]
    assert torch.equal(series.total[1], g[1])
    assert relative_error(series.total[[0, 2]], dense_solve(jacobian, g)[[0, 2]]) < 1e-6


def test_E6_samples_do_not_share_a_stop():
    gains = torch.linspace(0.1, 3, 100, dtype=torch.float64)[:, None]
    g = random((100, 6))
    together = neumann_series(lambda v: gains * v, g, 15)
    for i in range(0, 100, 9):
        alone = neumann_series(lambda v: gains[i] * v, g[i : i + 1], 15)
        assert alone.length[0] == together.length[i] and alone.truncated[0] == together.truncated[i]
        torch.testing.assert_close(alone.total[0], together.total[i])


def test_tolerance_ends_each_sample_when_its_terms_are_small():
    gains = torch.tensor([[0.1], [0.5]], dtype=torch.float64)
    g, calls = random((2, 6)), []

    def transpose(vector):
        calls.append(1)
        return gains * vector

    series = neumann_series(transpose, g, 100, tolerance=1.5e-3)
    assert series.length.tolist() == [3, 10] and len(calls) == 10 and not series.truncated.any()
    torch.testing.assert_close(series.total, g / (1 - gains), rtol=2e-3, atol=0)


def test_zero_cotangent_and_no_samples():
    zero = neumann_series(lambda v: 3 * v, torch.zeros(2, 6), 15)
    assert torch.equal(zero.total, torch.zeros(2, 6)) and not zero.truncated.any()
    empty = neumann_series(lambda v: 3 * v, torch.zeros(0, 6), 15, tolerance=1e-3)
    assert empty.total.shape == (0, 6) and empty.length.shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_C9_sums_half_precision_in_float32(dtype):
    g, types = torch.ones(2, 8, dtype=dtype), set()
    series = neumann_series(lambda v: types.add(v.dtype) or v * 0.5, g, 15)
    assert series.total.dtype == torch.float32 and types == {dtype}
    torch.testing.assert_close(series.total, torch.full((2, 8), 2.0), rtol=1e-4, atol=0)


def test_an_infinite_term_never_meets_an_infinite_limit():
    """The limit times a huge cotangent would overflow."""
    g = torch.full((1, 2), 1e38)
    series = neumann_series(lambda v: v * float("inf"), g, 3, growth_limit=100.0)
    assert series.truncated.all() and torch.equal(series.total, g)
