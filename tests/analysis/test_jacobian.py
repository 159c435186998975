"""Spectral radii and singular values against dense Jacobians."""

import numpy as np
import pytest
import torch
from torch import nn

from rfpn.analysis import jacobian
from rfpn.analysis.jacobian import largest_singular_value, sample_jacobian, sample_stability, spectral_radius
from rfpn.analysis.stability import summarise
from rfpn.layers import ConvLSTMCell, GALAHGRUCell, HGRUCell, RecurrentLayer


class Linear(nn.Module):
    """h ← h Wᵀ + x on states (R, n)."""

    def __init__(self, matrix):
        super().__init__()
        self.matrix = nn.Parameter(torch.as_tensor(matrix, dtype=torch.float64))

    def forward(self, x, h):
        return h @ self.matrix.T + x


def dense_block(cell, x, h, sample):
    """Own block of the batch's Jacobian, from autograd."""
    full = torch.autograd.functional.jacobian(lambda state: cell(x, state), h)
    return full[sample, ..., sample, :, :, :].reshape(h[0].numel(), -1).detach().numpy()


CELLS = {"hgru": lambda: HGRUCell(4, 3), "gala": lambda: GALAHGRUCell(4, groups=2), "conv_lstm": lambda: ConvLSTMCell(4, 3)}


@pytest.mark.parametrize("name", CELLS)
def test_cells_against_their_dense_jacobians(name):
    torch.manual_seed(0)
    cell = CELLS[name]().double()
    layer = RecurrentLayer(cell, 3, coefficient=0.1)
    x = torch.randn(3, 4, 5, 5, dtype=torch.float64)
    h = torch.rand(3, getattr(cell, "state_channels", 4), 5, 5, dtype=torch.float64)
    with torch.no_grad():
        found = sample_stability(layer, x, h, 1, tolerance=1e-6)
    matrix = dense_block(cell, x, h, 1)
    assert len(matrix) > jacobian._DENSE
    assert found.spectral_radius == pytest.approx(np.abs(np.linalg.eigvals(matrix)).max(), rel=1e-5)
    assert found.singular_value == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-5)
    sums = matrix.sum(axis=0)
    assert found.largest_column_sum == pytest.approx(sums.max())
    assert found.mean_column_sum == pytest.approx(sums.mean())
    assert found.smallest_column_sum == pytest.approx(sums.min())
    assert found.share_above == pytest.approx((sums > 0.1).mean())
    assert found.lcp == pytest.approx((np.maximum(sums - 0.1, 0) ** 2).mean())
    new = cell(x, h)[1].detach()
    assert found.residual == pytest.approx(float((new - h[1]).norm() / new.norm()))
    ahead = cell(x, cell(x, h))[1].detach()
    assert found.motion_quotient == pytest.approx(float((ahead - new).norm() / (new - h[1]).norm()))
    cosine = torch.nn.functional.cosine_similarity((ahead - new).ravel(), (new - h[1]).ravel(), dim=0)
    assert found.motion_cosine == pytest.approx(float(cosine))


def test_motions_of_a_cycle_and_of_a_state_at_rest():
    turned = np.radians(120)
    rotation = torch.tensor([[np.cos(turned), -np.sin(turned)], [np.sin(turned), np.cos(turned)]])
    layer, x = RecurrentLayer(Linear(rotation), 3), torch.zeros(2, 2, dtype=torch.float64)
    with torch.no_grad():
        cycle, rest = (sample_stability(layer, x, h, 0) for h in (x + 1, x))
    assert cycle.motion_quotient == pytest.approx(1) and cycle.motion_cosine == pytest.approx(-0.5)
    assert np.isnan(rest.motion_quotient) and np.isnan(rest.motion_cosine)


@pytest.mark.parametrize("size", [8, 80])
def test_complex_pair_on_which_power_iteration_oscillates(size):
    rng = np.random.default_rng(0)
    basis = rng.normal(size=(size, size))
    core = np.diag(rng.uniform(-0.5, 0.5, size))
    angle = 1.1
    core[:2, :2] = 1.3 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = basis @ core @ np.linalg.inv(basis)
    x = torch.zeros(1, size, dtype=torch.float64)
    operator, transpose = sample_jacobian(Linear(matrix), x, x, 0)
    assert spectral_radius(operator, 1e-10) == pytest.approx(1.3, rel=1e-6)
    assert largest_singular_value(operator, 1e-10) == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-6)
    v = rng.normal(size=size)
    np.testing.assert_allclose(operator.matvec(v), matrix @ v)
    np.testing.assert_allclose(operator.rmatvec(v), matrix.T @ v)
    np.testing.assert_allclose(transpose(torch.as_tensor(v)).detach().numpy(), matrix.T @ v)


def test_E10_cancelling_signs_are_in_the_blind_spot():
    layer = RecurrentLayer(Linear([[2.0, -2.0], [-2.0, 2.0]]), 1)
    layer.cell.state_channels = 2
    x = torch.ones(1, 2, dtype=torch.float64)
    found = sample_stability(layer, x, x, 0)
    assert found.spectral_radius == pytest.approx(4) and found.singular_value == pytest.approx(4)
    assert found.lcp == 0 and found.largest_column_sum == pytest.approx(0)
    summary = summarise([found, found._replace(lcp=0.2)])
    assert summary["unstable_share"] == 1 and summary["blind_share"] == 0.5


def test_neighbours_count_only_through_the_batch_norm():
    torch.manual_seed(0)
    x, h = torch.randn(2, 4, 5, 5).double(), torch.rand(2, 4, 5, 5).double()
    for cell, coupled in ((GALAHGRUCell(4, groups=2), False), (HGRUCell(4, 3), True)):
        cell.norm_inhibition.weight.data.fill_(1.0)
        cell.norm_excitation.weight.data.fill_(1.0)
        layer = RecurrentLayer(cell.double(), 3)
        with torch.no_grad():
            alone, beside = sample_stability(layer, x[:1], h[:1], 0), sample_stability(layer, x, h, 0)
        assert (abs(alone.largest_column_sum - beside.largest_column_sum) > 1e-3) == coupled


def test_zero_and_non_finite_steps():
    x = torch.zeros(1, 64, dtype=torch.float64)
    operator, _ = sample_jacobian(Linear(np.zeros((64, 64))), x, x, 0)
    assert spectral_radius(operator) == largest_singular_value(operator) == 0
    # a state of which a part is forgotten is no zero step
    partly, _ = sample_jacobian(Linear(np.diag(np.r_[np.zeros(32), np.linspace(0.1, 0.8, 32)])), x, x, 0)
    assert spectral_radius(partly) == pytest.approx(0.8) and largest_singular_value(partly) == pytest.approx(0.8)
    layer = RecurrentLayer(Linear(np.eye(64)), 1)
    assert np.isnan(sample_stability(layer, x + float("nan"), x, 0).spectral_radius)
    assert summarise([sample_stability(layer, x + float("inf"), x, 0)])["unanswered"] == 1


class Root(torch.nn.Module):
    """Finite states, of which those at 0 have a slope that is not."""

    def forward(self, x, h):
        return (x + h).sqrt() / 2


@pytest.mark.parametrize("size", [16, 64])
def test_a_jacobian_that_is_not_finite_is_no_answer(size):
    x, h = torch.zeros(1, size, dtype=torch.float64), torch.ones(1, size, dtype=torch.float64)
    h[0, 0] = 0
    found = sample_stability(RecurrentLayer(Root(), 1), x, h, 0)
    assert np.isnan(found.spectral_radius) and np.isnan(found.singular_value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_refused_in_one_line(dtype):
    layer, x = RecurrentLayer(HGRUCell(4, 3).to(dtype), 3), torch.zeros(2, 4, 5, 5, dtype=dtype)
    with pytest.raises(ValueError, match=f"needs states of float32 or float64, got {dtype}: convert model, drive and states"):
        sample_stability(layer, x, x, 1)
