"""Spectral radius and largest singular value of a step's Jacobian, beside what the Lipschitz penalty sees of it, of any layer.

J = ∂h_T/∂h_{T−1} is never formed: ARPACK (Arnoldi for the spectral radius, Lanczos on JᵀJ for the singular value) asks
for products Jv and Jᵀv. Plain power iteration would not do: it oscillates where the largest eigenvalues are a complex
pair.

J is that of one sample: how its own state acts on its own next state. Samples of cells without batch statistics do not
meet, so that is all there is. Where batch norm couples images, the neighbours stay in the batch with their states held
fixed: the block of the batch's Jacobian that belongs to the image. Ways through other images are not in it.
"""

from functools import partial
from typing import Callable, NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import ArpackError, LinearOperator, eigs, svds
from torch import Tensor

from rfpn.fixed_point import relative_residual
from rfpn.layers import RecurrentLayer

# below this size the whole matrix is cheap, and ARPACK needs more rows than vectors
_DENSE = 32
_RESTARTS = 100


class Stability(NamedTuple):
    """One sample's step from h_{T−1} to h_T; NaN where the state is not finite or ARPACK found no answer.

    spectral_radius: largest |eigenvalue| of J, below 1 where the step contracts in the long run.
    singular_value: largest one of J, below 1 where it contracts at once.
    largest_column_sum, mean_column_sum, smallest_column_sum: of 1ᵀJ. share_above: share of column sums above λ, with
    ``two_sided`` also of those below −λ. lcp: the paper's penalty of these sums, unweighted, with the layer's λ, reduction
    and sides, whatever its probe is. residual: ‖h_T − h_{T−1}‖/‖h_T‖.
    motion_quotient: ‖h_{T+1} − h_T‖ / ‖h_T − h_{T−1}‖, around 1 where the state goes on moving. motion_cosine: of the angle
    between the two, −1 where it alternates, −0.5 in a cycle of three; both NaN for a state at rest.
    """

    spectral_radius: float
    singular_value: float
    largest_column_sum: float
    mean_column_sum: float
    smallest_column_sum: float
    share_above: float
    lcp: float
    residual: float
    motion_quotient: float
    motion_cosine: float


@torch.no_grad()
def sample_stability(
    layer: RecurrentLayer, drive: Tensor, previous: Tensor, sample: int, tolerance: float = 1e-3
) -> Stability:
    """Stability of one sample of drive (R, C, H, W) at the step from the states ``previous`` (R, ...).

    Raises ValueError for states in half precision.
    """
    coupled = getattr(layer.cell, "batch_statistics", False)
    if not coupled:
        drive, previous, sample = drive[sample : sample + 1], previous[sample : sample + 1], 0
    states = layer.step(drive, previous)
    new = states[sample]
    if not torch.isfinite(new).all():
        return Stability(*[float("nan")] * len(Stability._fields))
    with _exact_convolutions():
        operator, transpose = sample_jacobian(layer.step, drive, previous, sample)
        sums = transpose(torch.ones_like(new))
        radius, norm = spectral_radius(operator, tolerance), largest_singular_value(operator, tolerance)
    return Stability(
        radius,
        norm,
        float(sums.max()),
        float(sums.mean()),
        float(sums.min()),
        float(((sums.abs() if layer.two_sided else sums) > layer.coefficient).double().mean()),
        float(layer.penalty_of_sums(sums)),
        float(relative_residual(new[None], previous[sample][None])),
        *_turn((new - previous[sample]).ravel(), (layer.step(drive, states)[sample] - new).ravel()),
    )


def _turn(before: Tensor, after: Tensor) -> tuple[float, float]:
    """Quotient of the lengths of two motions (n,), and the cosine of the angle between them."""
    lengths = before.norm(), after.norm()
    return float(lengths[1] / lengths[0]), float(before @ after / (lengths[0] * lengths[1]))


def sample_jacobian(
    update: Callable[[Tensor, Tensor], Tensor], x: Tensor, h: Tensor, sample: int
) -> tuple[LinearOperator, Callable[[Tensor], Tensor]]:
    """J = ∂F(x, h)[sample]/∂h[sample], all other samples of h (R, ...) held fixed.

    Returns:
        J (n, n) for SciPy, n elements of a sample's state, and v -> Jᵀv on tensors shaped like the sample's state.

    Raises:
        ValueError: the states are neither float32 nor float64, which is all that ARPACK computes in.
    """
    own = h[sample].detach()
    if own.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"a Jacobian needs states of float32 or float64, got {own.dtype}: convert model, drive and states")

    def step(state: Tensor) -> Tensor:
        return update(x, torch.cat([h[:sample], state[None], h[sample + 1 :]]))[sample]

    _, pull = torch.func.vjp(step, own)

    def as_array(product: Callable[[Tensor], Tensor]) -> Callable[[np.ndarray], np.ndarray]:
        return lambda v: product(torch.as_tensor(v).to(own).reshape(own.shape)).detach().cpu().numpy().ravel()

    def push(v: Tensor) -> Tensor:
        return torch.func.jvp(step, (own,), (v,))[1]

    def transpose(v: Tensor) -> Tensor:
        return pull(v)[0]

    dtype = own.cpu().numpy().dtype
    operator = LinearOperator((own.numel(),) * 2, as_array(push), as_array(transpose), dtype=dtype)
    return operator, transpose


def spectral_radius(operator: LinearOperator, tolerance: float = 1e-3) -> float:
    """Largest |eigenvalue| of a real operator (n, n); NaN where it is not finite or ARPACK does not converge.

    tolerance: ‖Jv − μv‖/|μ| at which a value μ is taken. It may not be the largest where others are nearly as large.
    """
    return _largest(operator, tolerance, _dense_radius, partial(eigs, return_eigenvectors=False))


def largest_singular_value(operator: LinearOperator, tolerance: float = 1e-3) -> float:
    """Largest singular value of a real operator (n, n); NaN where it is not finite or ARPACK does not converge."""
    return _largest(operator, tolerance, partial(np.linalg.norm, ord=2), partial(svds, return_singular_vectors=False))


def _largest(operator: LinearOperator, tolerance: float, dense: Callable, solve: Callable) -> float:
    """What ``dense`` says of a small matrix, or the magnitude that ``solve`` finds; 0 where its start maps to 0."""
    if operator.shape[0] <= _DENSE:
        matrix = operator.matmat(np.eye(operator.shape[0], dtype=operator.dtype))
        return float(dense(matrix)) if np.isfinite(matrix).all() else float("nan")
    start = _start(operator)
    product = operator.matvec(start)
    if not np.isfinite(product).all():
        return float("nan")
    if not np.any(product):
        return 0.0
    try:
        values = solve(operator, 1, v0=start, tol=tolerance, maxiter=_RESTARTS)
    except ArpackError:
        return float("nan")
    return float(np.abs(values).max())


def _exact_convolutions():
    # TF32's three digits are too few for ARPACK to see that it has converged
    settings = torch.backends.cudnn
    return settings.flags(settings.enabled, settings.benchmark, deterministic=settings.deterministic, allow_tf32=False)


def _dense_radius(matrix: np.ndarray) -> float:
    return np.abs(np.linalg.eigvals(matrix)).max()


def _start(operator: LinearOperator) -> np.ndarray:
    # random, not ones: ones are the vector whose blind spot is looked for
    return np.random.default_rng(0).normal(size=operator.shape[0]).astype(operator.dtype)
