"""Detached scalars that say how a pass of a recurrent layer went; none where torch.func transforms the pass."""

from torch import Tensor

from rfpn.fixed_point import LinearSolution, NeumannSum, unconverged
from rfpn.layers.modes import is_transformed


def forward_diagnostics(residual: Tensor, penalty: Tensor, tolerance: float) -> dict[str, Tensor]:
    """``residual`` (mean of (R,)), ``unconverged_share`` (of residuals above the tolerance, 0 for 0.01) and ``penalty``."""
    if is_transformed(residual):
        return {}
    # shape[0], since torch.export would take len() for a constant
    samples = max(residual.shape[0], 1)
    share = unconverged(residual, tolerance).sum() / samples
    # a copy of the penalty, with which callers may do anything in place
    return {"residual": residual.sum() / samples, "unconverged_share": share, "penalty": penalty.detach().clone()}


def backward_diagnostics(solution: NeumannSum | LinearSolution, adjoint: str) -> dict[str, Tensor]:
    """``truncated_share``, the mean length under the adjoint's name, and of a linear solution ``solve_residual``, a mean."""
    if is_transformed(solution.total):
        return {}
    samples = max(len(solution.length), 1)
    found = {"truncated_share": solution.truncated.sum() / samples, f"{adjoint}_length": solution.length.sum() / samples}
    if isinstance(solution, LinearSolution):
        found["solve_residual"] = solution.residual.sum() / samples
    return found
