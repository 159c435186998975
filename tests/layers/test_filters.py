"""The input filter bank."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rfpn.layers.filters import pathfinder_filter_bank

REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference" / "pathfinder_input_filters.npy"


def test_gabors_have_zero_mean_and_unit_norm_and_the_disc_has_mean_one():
    bank = pathfinder_filter_bank()
    assert bank.shape == (25, 1, 7, 7)
    torch.testing.assert_close(bank[:24].mean(dim=(1, 2, 3)), torch.zeros(24), atol=1e-7, rtol=0)
    torch.testing.assert_close(bank[:24].flatten(1).norm(dim=1), torch.ones(24))
    assert bank[24].mean().item() == pytest.approx(1)
    assert (bank[24] > 0).sum() == 29


def test_orientations_are_30_degrees_apart_every_second_filter():
    bank = pathfinder_filter_bank()
    torch.testing.assert_close(bank[6, 0], bank[0, 0].T)  # 90 degrees
    assert bank[0, 0, 3].std() < 0.01  # stripes along the row
    similarity = bank[:12].flatten(1) @ bank[:12].flatten(1).T
    assert (similarity - torch.eye(12)).max() < 0.95  # twelve different ones


@pytest.mark.parametrize("index, angle, phase", [(1, np.pi / 12, 0.0), (16, np.pi / 3, 90.0)])
def test_gabors_by_hand(index, angle, phase):
    row, column = np.mgrid[-3:4, -3:4]
    across, along = row * np.cos(angle) + column * np.sin(angle), column * np.cos(angle) - row * np.sin(angle)
    wanted = np.exp(-(across**2 + 0.3**2 * along**2) / (2 * 2.8**2)) * np.cos(2 * np.pi / 3.5 * across + phase)
    wanted = np.where(row**2 + column**2 <= 9, wanted, 0)
    wanted -= wanted.mean()
    np.testing.assert_allclose(pathfinder_filter_bank()[index, 0].numpy(), wanted / np.linalg.norm(wanted), atol=1e-6)


@pytest.mark.skipif(not REFERENCE.is_file(), reason="no reference arrays beside the checkout")
def test_matches_the_released_filters():
    np.testing.assert_allclose(pathfinder_filter_bank().numpy(), np.load(REFERENCE), atol=2e-6)
