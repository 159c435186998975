"""Start values of the Pathfinder models' input filters: a bank of Gabor filters in Serre's HMAX form and a disc."""

import math

import torch
from torch import Tensor

SIZE = 7  # side of a filter, pixels
ORIENTATIONS = 12  # over 180 degrees
WAVELENGTH = 3.5  # λ, pixels
SIGMA = 2.8  # of the envelope across the stripes, pixels
ASPECT = 0.3  # γ, envelope across over along the stripes
# The released bank's second phase is "90" taken as radians (2.035 modulo 2π), not a quarter of a turn.
PHASES = (0.0, 90.0)


def pathfinder_filter_bank() -> Tensor:
    """Input filters as released, (25, 1, 7, 7): 12 orientations at each of 2 phases, then one disc.

    Gabor filters: zero mean, unit norm. The disc has mean 1; the paper calls it a difference of Gaussians.
    """
    angles = [math.pi * k / ORIENTATIONS for k in range(ORIENTATIONS)]
    gabors = [gabor(angle, phase) for phase in PHASES for angle in angles]
    disc = _aperture().double()
    return torch.stack([*gabors, disc / disc.mean()]).unsqueeze(1).float()


def gabor(angle: float, phase: float) -> Tensor:
    """G = exp(−(X² + γ²Y²) / 2σ²) cos(2πX/λ + phase) inside a round aperture, minus its mean, over its 2-norm.

    X = row·cos(angle) + column·sin(angle), Y across it, both from the centre (Serre et al., 2007).

    Args:
        angle: radians; 0 gives horizontal stripes. phase: radians.

    Returns:
        (7, 7), float64.
    """
    offset = torch.arange(SIZE, dtype=torch.float64) - SIZE // 2
    row, column = torch.meshgrid(offset, offset, indexing="ij")
    x = row * math.cos(angle) + column * math.sin(angle)
    y = column * math.cos(angle) - row * math.sin(angle)
    envelope = torch.exp(-(x.square() + ASPECT**2 * y.square()) / (2 * SIGMA**2))
    filter_ = envelope * torch.cos(2 * math.pi * x / WAVELENGTH + phase) * _aperture()
    filter_ = filter_ - filter_.mean()
    return filter_ / filter_.norm()


def _aperture() -> Tensor:
    offset = torch.arange(SIZE) - SIZE // 2
    return offset.square()[:, None] + offset.square() <= (SIZE // 2) ** 2
