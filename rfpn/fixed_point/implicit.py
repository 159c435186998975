"""The autograd function of recurrent back-propagation: same value forward, another cotangent backward."""

from typing import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rfpn.fixed_point.neumann import NeumannSum, neumann_series


class _SolveCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, solve):
        ctx.solve = solve
        return h.view_as(h)

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        return ctx.solve(cotangent), None


def replace_cotangent(h: Tensor, solve: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ``h`` unchanged; in the backward pass its cotangent g becomes ``solve(g)``.

    ``solve`` is kept by the returned tensor's graph alone. It may hold ``h``, which lies upstream of that graph, so
    no reference cycle arises and an output that is dropped without backward frees everything at once.
    """
    return _SolveCotangent.apply(h, solve)


def implicit_gradient(
    h: Tensor,
    h_previous: Tensor,
    terms: int,
    growth_limit: float = 2.0,
    tolerance: float = 0.0,
    report: Callable[[NeumannSum], None] | None = None,
) -> Tensor:
    """Give h_T = F(x, h_{T−1}; w) the gradient of the fixed point instead of the gradient of one step (P-Eq 4).

    Backward replaces g by u = Σ_{k≤K} (Jᵀ)^k g with J = ∂h_T/∂h_{T−1}; u then flows through the one recorded step to
    w and x. Memory is that of one step, whatever T is.

    Args:
        h: (R, ...) last state, recorded by autograd as a function of ``h_previous``.
        h_previous: (R, ...) the state before; a leaf that requires grad.
        terms, growth_limit, tolerance: see :func:`neumann_series`.
        report: called in the backward pass with the finished series.
    """

    def transpose(vector: Tensor) -> Tensor:
        (product,) = torch.autograd.grad(h, h_previous, vector.to(h.dtype), retain_graph=True)
        return product

    def solve(cotangent: Tensor) -> Tensor:
        series = neumann_series(transpose, cotangent, terms, growth_limit, tolerance)
        if report is not None:
            report(series)
        return series.total.to(cotangent.dtype)

    return replace_cotangent(h, solve)
