import pytest
import torch

from rfpn.fixed_point import linear_solve, neumann_series
from tests.problems import LinearCell, dense_solve, random, relative_error, transpose_of


@pytest.mark.parametrize("radius", [0.5, 0.99, 1.5, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_equals_the_dense_solve_also_where_the_series_diverges(seed, radius):
    jacobian, g = LinearCell(radius=radius, seed=seed).weight.detach(), random((4, 6), seed)
    solution = linear_solve(transpose_of(jacobian), g, 15, growth_limit=1e3)
    assert relative_error(solution.total, dense_solve(jacobian, g)) < 1e-9
    # the space is exhausted after D products
    assert not solution.truncated.any() and (solution.length <= 7).all() and (solution.residual < 1e-10).all()


def test_minimises_the_residual_and_reports_it():
    jacobian, g = LinearCell(size=40, radius=0.9).weight.detach(), random((4, 40))
    before = torch.ones(4, dtype=torch.float64)
    for terms in range(1, 20):
        solution = linear_solve(transpose_of(jacobian), g, terms)
        residual = g - (solution.total - solution.total @ jacobian)
        relative = residual.norm(dim=1) / g.norm(dim=1)
        torch.testing.assert_close(relative, solution.residual)
        assert (relative <= before + 1e-12).all()
        before = relative
        series = neumann_series(transpose_of(jacobian), g, terms - 1, growth_limit=1e3).total
        assert (relative <= (g - (series - series @ jacobian)).norm(dim=1) / g.norm(dim=1) + 1e-12).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e3, 65536.0, 1e25])
@pytest.mark.parametrize("gain", [0.5, 1.5, 30.0])
def test_E4_linear_in_the_cotangent(scale, gain):
    jacobian, g = random((20, 20)).float() * gain / 20**0.5, random((4, 20)).float()
    one = linear_solve(transpose_of(jacobian), g, 10)
    scaled = linear_solve(transpose_of(jacobian), g * scale, 10)
    assert torch.equal(one.length, scaled.length)
    assert relative_error(scaled.total, one.total * scale) < 1e-4


def test_tolerance_ends_each_sample_alone():
    gains = torch.stack([torch.linspace(0.0, top, 30, dtype=torch.float64) for top in (0.3, 0.95)])
    g, calls = random((2, 30)), []

    def transpose(vector):
        calls.append(1)
        return gains * vector

    solution = linear_solve(transpose, g, 30, tolerance=1e-3)
    assert solution.length[0] < solution.length[1] == len(calls) < 30
    assert (solution.residual <= 1e-3).all() and not solution.truncated.any()
    torch.testing.assert_close(solution.total, g / (1 - gains), rtol=0, atol=0.1)


@pytest.mark.parametrize("count", [2, 100])
def test_E6_does_not_depend_on_the_batch(count):
    gains = torch.linspace(0.1, 3, count, dtype=torch.float64)[:, None] * torch.linspace(-1, 1, 12, dtype=torch.float64)
    g = random((count, 12))
    together = linear_solve(lambda v: gains * v, g, 10, tolerance=1e-4)
    for i in range(0, count, 9):
        alone = linear_solve(lambda v: gains[i] * v, g[i : i + 1], 10, tolerance=1e-4)
        assert alone.length[0] == together.length[i] and alone.truncated[0] == together.truncated[i]
        torch.testing.assert_close(alone.total[0], together.total[i])


def test_samples_that_act_on_each_other_are_solved_as_one():
    jacobian, g = LinearCell(size=12).weight.detach(), random((4, 3)) * torch.tensor([[1.0], [0.1], [0.1], [0.1]])

    def transpose(v):
        return (v.flatten() @ jacobian).view(4, 3)

    wanted = dense_solve(jacobian, g.view(1, 12)).view(4, 3)
    together = linear_solve(transpose, g, 12, joint=True)
    assert relative_error(together.total, wanted) < 1e-9 and (together.residual < 1e-9).all()
    assert together.length.shape == together.truncated.shape == (4,)
    # each with coefficients of its own does not minimise anything
    assert relative_error(linear_solve(transpose, g, 12).total, wanted) > 1e-3
    assert linear_solve(lambda v: v, g[:0], 12, joint=True).total.shape == (0, 3)


@pytest.mark.parametrize("growth_limit", [1.0, 2.0, 8.0])
@pytest.mark.parametrize("distance", [0.0, 1e-12, 1e-4])
def test_nearly_singular_system_stays_bounded(distance, growth_limit):
    jacobian = torch.diag(torch.tensor([1 - distance, 0.5, 0.1], dtype=torch.float64))
    g = random((2, 3))
    solution = linear_solve(transpose_of(jacobian), g, 15, growth_limit=growth_limit)
    assert solution.truncated.all()
    assert (solution.total.norm(dim=1) <= 50 * growth_limit * g.norm(dim=1) * (1 + 1e-9)).all()
    assert (solution.total != 0).any(dim=1).all()


def test_growth_limit_sets_the_bound():
    jacobian, g = torch.tensor([[0.99]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    totals = [float(linear_solve(transpose_of(jacobian), g, 5, growth_limit=limit).total) for limit in (1.0, 4.0)]
    assert totals == [1.0, pytest.approx(100.0)]


def test_identity_jacobian_gives_the_cotangent():
    g = random((2, 3))
    solution = linear_solve(lambda v: v, g, 15)
    assert solution.truncated.all() and torch.equal(solution.total, g) and (solution.length == 0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("start", [0, 3])
def test_product_that_is_not_finite_ends_its_sample_only(bad, start):
    jacobian, g, calls = LinearCell().weight.detach(), random((3, 6)), []

    def transpose(vector):
        product = vector @ jacobian
        product[1] = bad if len(calls) >= start else product[1]
        calls.append(1)
        return product

    solution = linear_solve(transpose, g, 10)
    assert solution.truncated.tolist() == [False, True, False] and solution.length[1] == start
    assert solution.total.isfinite().all()
    assert relative_error(solution.total[[0, 2]], dense_solve(jacobian, g)[[0, 2]]) < 1e-9


def test_zero_cotangent_no_terms_and_no_samples():
    zero = linear_solve(lambda v: 3 * v, torch.zeros(2, 6), 15)
    assert torch.equal(zero.total, torch.zeros(2, 6)) and not zero.truncated.any()
    g = random((2, 6))
    assert torch.equal(linear_solve(lambda v: 3 * v, g, 0).total, g)
    assert linear_solve(lambda v: 3 * v, torch.zeros(0, 6), 5, tolerance=1e-3).total.shape == (0, 6)
    assert linear_solve(lambda v: 3 * v, torch.zeros(3, 6, 0), 5).total.shape == (3, 6, 0)


def test_C9_half_precision_is_solved_in_float32():
    g, types = torch.ones(2, 8, dtype=torch.bfloat16), set()
    solution = linear_solve(lambda v: types.add(v.dtype) or v * 0.5, g, 5)
    assert solution.total.dtype == torch.float32 and types == {torch.bfloat16}
    torch.testing.assert_close(solution.total, torch.full((2, 8), 2.0), rtol=1e-2, atol=0)


def test_C9_autocast_does_not_reach_the_solver():
    jacobian, g = random((20, 20)).float() * 0.1, random((4, 20)).float()
    wanted = linear_solve(lambda v: (v[:, :, None] * jacobian).sum(dim=1), g, 15).total
    with torch.autocast("cpu", torch.bfloat16):
        solution = linear_solve(lambda v: (v[:, :, None] * jacobian).sum(dim=1), g, 15)
    assert torch.equal(solution.total, wanted)


@pytest.mark.parametrize("count", [4, 0])
@pytest.mark.parametrize("terms", [0, 3])
@pytest.mark.parametrize("joint", [False, True])
def test_states_of_one_number_a_sample(count, terms, joint):
    g = random((count,))
    solution = linear_solve(lambda v: 0.5 * v, g, terms, joint=joint)
    torch.testing.assert_close(solution.total, 2 * g if terms else g)
    assert solution.length.shape == solution.residual.shape == (count,)


def test_a_sample_without_cotangent_is_solved():
    """Its u is 0, which leaves nothing: a residual of 1 would count in the mean of all samples."""
    solution = linear_solve(lambda v: 0.5 * v, torch.tensor([[0.0, 0.0], [1.0, 2.0]]), 3)
    assert not solution.total[0].any() and solution.length.tolist() == [0, 1]
    torch.testing.assert_close(solution.residual, torch.zeros(2))
