"""Toy recurrent cells with known fixed points and Jacobians, in float64, and helpers to compare with them."""

import torch
from torch import Tensor, nn


class LinearCell(nn.Module):
    """h ← W h + U x. Fixed point (I − W)⁻¹ U x, Jacobian W; states and drives (R, D)."""

    def __init__(self, size: int = 6, radius: float = 0.5, seed: int = 0, symmetric: bool = False):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(size, size, dtype=torch.float64, generator=generator)
        weight = (weight + weight.mT) / 2 if symmetric else weight
        weight *= radius / torch.linalg.eigvals(weight).abs().max()
        self.weight = nn.Parameter(weight)
        self.drive = nn.Parameter(torch.randn(size, size, dtype=torch.float64, generator=generator))

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return h @ self.weight.mT + x @ self.drive.mT

    def fixed_point(self, x: Tensor) -> Tensor:
        """h* of every sample, (R, D)."""
        return torch.linalg.solve(self.resolvent(), (x @ self.drive.mT).mT).mT.detach()

    def resolvent(self) -> Tensor:
        """I − W."""
        return torch.eye(len(self.weight), dtype=self.weight.dtype) - self.weight.detach()

    def exact_gradients(self, x: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
        """Gradients of Σ g⊙h* by dense solve, for ``weight``, ``drive`` and ``x``."""
        u = torch.linalg.solve(self.resolvent().mT, cotangent.mT).mT
        return {
            "weight": u.mT @ self.fixed_point(x),
            "drive": u.mT @ x.detach(),
            "x": u @ self.drive.detach(),
        }


class TanhCell(LinearCell):
    """h ← tanh(W h + U x), a contraction where ‖W‖ < 1."""

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(super().forward(x, h))


class GainCell(nn.Module):
    """h ← a Q h + V x with Q orthogonal, V = 1 at first and the gain a of every sample in its first drive channel.

    Every singular value of the Jacobian is a: samples with a > 1 diverge.
    """

    def __init__(self, size: int = 6, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        q, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))
        self.weight = nn.Parameter(q)
        self.drive = nn.Parameter(torch.eye(size, dtype=torch.float64))

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return x[:, :1].detach() * (h @ self.weight.mT) + x @ self.drive.mT

    @staticmethod
    def input(gains: list[float], size: int = 6) -> Tensor:
        """Drive (R, D) whose samples have these gains."""
        x = random((len(gains), size), seed=1)
        x[:, 0] = torch.tensor(gains, dtype=torch.float64)
        return x


class NaNCell(LinearCell):
    """A LinearCell that gives NaN to samples whose first drive channel is negative."""

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return super().forward(x, h) * torch.where(x[:, :1] < 0, float("nan"), 1.0)


class ConvCell(nn.Module):
    """h ← tanh(W ∗ h + x), float32; states and drives (R, C, H, W). Under autocast its state comes out in half precision."""

    def __init__(self, channels: int = 4, gain: float = 0.3, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv.weight.data = torch.randn(self.conv.weight.shape, generator=generator) * gain / (3 * channels**0.5)
        self.conv.bias.data.zero_()

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        z = self.conv(h)
        return torch.tanh(z + x.to(z.dtype))


def transpose_of(jacobian: Tensor):
    """v (R, D) -> Jᵀv, for every sample, of one dense J (D, D)."""
    return lambda vector: vector @ jacobian


def dense_solve(jacobian: Tensor, g: Tensor) -> Tensor:
    """u (R, D) with (I − Jᵀ) u = g for every sample."""
    return torch.linalg.solve((torch.eye(len(jacobian), dtype=g.dtype) - jacobian).mT, g.mT).mT


def random(shape, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers from a seed of their own."""
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def gradients(loss: Tensor, module: nn.Module, x: Tensor | None = None) -> dict[str, Tensor]:
    """Gradients of a scalar for every parameter and, as ``x``, for an input; a missing one is an error."""
    names, tensors = zip(*module.named_parameters())
    if x is not None:
        names, tensors = (*names, "x"), (*tensors, x)
    return dict(zip(names, torch.autograd.grad(loss, tensors)))


def relative_error(value: Tensor, wanted: Tensor) -> float:
    """‖value − wanted‖ / ‖wanted‖ over all elements; the absolute error where wanted is 0."""
    difference = torch.linalg.vector_norm((value - wanted).detach().double())
    return float(difference / (torch.linalg.vector_norm(wanted.detach().double()) or 1.0))


def assert_close(values: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> None:
    """Every entry of ``wanted`` is met to a relative error; the failing ones are named."""
    errors = {name: relative_error(values[name], wanted[name]) for name in wanted}
    wrong = {name: error for name, error in errors.items() if not error <= tolerance}
    assert not wrong, f"relative errors above {tolerance}: {wrong}"
