"""The autograd function of recurrent back-propagation: same value forward, another cotangent backward."""

from typing import Callable

import torch
from torch import Tensor

from rfpn.fixed_point.linear_solve import LinearSolution
from rfpn.fixed_point.neumann import NeumannSum, neumann_series


class _SolveCotangent(torch.autograd.Function):
    """The node behind :func:`replace_cotangent`."""

    @staticmethod
    def forward(ctx, h, solve):
        """h (R, ...), as it is; ``solve`` waits for the backward pass."""
        ctx.solve = solve
        return h.view_as(h)

    @staticmethod
    def backward(ctx, cotangent):
        """u = solve(g), (R, ...), in the place of the cotangent g; RuntimeError with create_graph."""
        # create_graph: u's dependence on h would be missing from every second derivative, without a word
        if torch.is_grad_enabled():
            raise RuntimeError("the gradient of a fixed point cannot be differentiated again: use gradient 'bptt'")
        return ctx.solve(cotangent), None


def replace_cotangent(h: Tensor, solve: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ``h`` unchanged; in the backward pass its cotangent g becomes ``solve(g)``. RuntimeError with create_graph.

    ``solve`` is kept by the returned tensor's graph alone. It may hold ``h``, which lies upstream of that graph, so
    no reference cycle arises and an output that is dropped without backward frees everything at once.
    """
    return _SolveCotangent.apply(h, solve)


def implicit_gradient(
    h: Tensor,
    h_previous: Tensor | None,
    terms: int,
    growth_limit: float = 2.0,
    tolerance: float = 0.0,
    report: Callable[[NeumannSum | LinearSolution], None] | None = None,
    adjoint: Callable[..., NeumannSum | LinearSolution] = neumann_series,
    transpose: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Give h_T = F(x, h_{T−1}; w) the gradient of the fixed point instead of the gradient of one step (P-Eq 4).

    Backward replaces g by u = Σ_{k≤K} (Jᵀ)^k g ≈ (I − Jᵀ)⁻¹ g with J = ∂h_T/∂h_{T−1}; u then flows through the one
    recorded step to w and x. Memory is that of one step, whatever T is.

    Args:
        h: (R, ...) last state, recorded by autograd as a function of ``h_previous``.
        h_previous: (R, ...) the state before; a leaf that requires grad. Not used where ``transpose`` is given.
        terms, growth_limit, tolerance: of ``adjoint``.
        report: called in the backward pass with what ``adjoint`` returned.
        adjoint: how u is found, :func:`neumann_series` or :func:`rfpn.fixed_point.linear_solve`.
        transpose: v (R, ...) -> Jᵀv where something faster than autograd knows it.

    Raises:
        ValueError: ``h_previous`` is no leaf that requires grad, though ``h`` does and there is no ``transpose``.
    """
    # u would also flow through the steps before, of which its series is the sum already
    leaf = h_previous is not None and h_previous.is_leaf and h_previous.requires_grad
    if transpose is None and h.requires_grad and not leaf:
        raise ValueError("h_previous must be a leaf that requires grad: pass h_previous.detach().requires_grad_() to the step")

    def product(vector: Tensor) -> Tensor:
        # zeros, not an error, from an update that ignores its state
        return torch.autograd.grad(h, h_previous, vector.to(h.dtype), retain_graph=True, materialize_grads=True)[0]

    def solve(cotangent: Tensor) -> Tensor:
        """u = (I − Jᵀ)⁻¹g, (R, ...), as far as ``terms`` go."""
        solution = adjoint(transpose or product, cotangent, terms, growth_limit, tolerance)
        if report is not None:
            report(solution)
        return solution.total.to(cotangent.dtype)

    return replace_cotangent(h, solve)
