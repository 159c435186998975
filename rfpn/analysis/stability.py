"""Spectral radius and largest singular value of a step's Jacobian, beside what the Lipschitz penalty sees of it.

J = ∂h_T/∂h_{T−1} is never formed: ARPACK (Arnoldi for the spectral radius, Lanczos on JᵀJ for the singular value) asks
for products Jv and Jᵀv. Plain power iteration would not do: it oscillates where the largest eigenvalues are a complex
pair.

J is that of one sample: how its own state acts on its own next state. Samples of cells without batch statistics do not
meet, so that is all there is. Where batch norm couples images, the neighbours stay in the batch with their states held
fixed: the block of the batch's Jacobian that belongs to the image. Ways through other images are not in it.
"""

from functools import partial
from typing import Callable, Iterable, Iterator, NamedTuple

import numpy as np
import torch
from detectron2.evaluation import inference_context
from scipy.sparse.linalg import ArpackError, LinearOperator, eigs, svds
from torch import Tensor, nn
from tqdm import tqdm

from rfpn.analysis.ranks import rank_correlation
from rfpn.analysis.unrolling import layer_drive, recurrent_layer
from rfpn.fixed_point import iterate, relative_residual
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


def analyse(
    model: nn.Module, loader: Iterable[list[dict]], steps: int, images: int, rois: int = 1
) -> Iterator[tuple[int, Stability]]:
    """Yield (image, stability) for the first ``rois`` samples of each of the first ``images`` images.

    Args:
        model: a Pathfinder model (one sample an image) or a panoptic FPN with a recurrent mask head (samples are RoIs
            of predicted boxes, best first).
        loader: batches of inputs. steps: T.

    Raises:
        ValueError: the model has no recurrent layer, or a number is below 1.
    """
    for name, value in (("--steps", steps), ("--images", images), ("--rois", rois)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    layer, first = recurrent_layer(model), 0
    with inference_context(model), torch.no_grad(), tqdm(total=images, desc="stability", disable=None) as bar:
        for inputs in loader:
            drive, owners = layer_drive(model, inputs)
            previous = iterate(layer.step, drive, layer.initial_state(drive), steps - 1)
            for image in range(min(len(inputs), images - first)):
                chosen = [sample for sample, owner in enumerate(owners) if owner == image][:rois]
                for sample in chosen:
                    yield first + image, sample_stability(layer, drive, previous, sample)
                bar.update()
            first += len(inputs)
            if first >= images:
                return


@torch.no_grad()
def sample_stability(
    layer: RecurrentLayer, drive: Tensor, previous: Tensor, sample: int, tolerance: float = 1e-3
) -> Stability:
    """Stability of one sample of drive (R, C, H, W) at the step from the states ``previous`` (R, ...)."""
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
    """
    own = h[sample].detach()

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
    """What ``dense`` says of a small matrix, or the magnitude that ``solve`` (eigs, svds) finds; 0 where its start maps to 0."""
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


def summarise(rows: list[Stability]) -> dict[str, float]:
    """What a model's samples show together.

    ``unstable_share``: of samples whose spectral radius is known, those above 1. ``blind_share``: of these, those with no
    penalty.
    ``rank_*``: Spearman correlation of the penalty with spectral radius and singular value, NaN where one is constant.
    """
    table = np.array(rows, dtype=float).reshape(-1, len(Stability._fields))
    columns = dict(zip(Stability._fields, table.T))
    radius, norm, lcp = (columns[name] for name in ("spectral_radius", "singular_value", "lcp"))
    unstable = radius > 1
    summary = {"samples": len(rows), "unanswered": int((np.isnan(radius) | np.isnan(norm)).sum())}
    for name, values in columns.items():
        known = values[~np.isnan(values)]
        summary[f"mean_{name}"] = float(known.mean()) if len(known) else float("nan")
        summary[f"max_{name}"] = float(known.max()) if len(known) else float("nan")
    answered = ~np.isnan(radius)
    summary["unstable_share"] = float(unstable[answered].mean()) if answered.any() else float("nan")
    summary["blind_share"] = float((lcp[unstable] == 0).mean()) if unstable.any() else float("nan")
    return summary | {"rank_radius": rank_correlation(lcp, radius), "rank_singular_value": rank_correlation(lcp, norm)}


def draw_stability(path: str, models: dict[str, list[Stability]], coefficients: dict[str, float]) -> None:
    """Draw spectral radius and singular value against the largest column sum, and the radius against the penalty.

    Args:
        path: PNG file. models: rows by model. coefficients: λ by model, below which column sums are not penalised.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    axes = figure.subplots(1, 3)
    titles = {
        "spectral_radius": "spectral radius of J",
        "singular_value": "largest singular value of J",
        "largest_column_sum": "largest column sum 1$^T$J",
        "lcp": "penalty of ones (LCP, unweighted)",
    }
    pairs = ("largest_column_sum", "spectral_radius"), ("largest_column_sum", "singular_value"), ("lcp", "spectral_radius")
    for axis, (across, up) in zip(axes, pairs):
        for name, rows in models.items():
            points = [(getattr(row, across), getattr(row, up)) for row in rows]
            axis.plot(*zip(*points), ".", alpha=0.7, label=name)
        axis.axhline(1, color="grey", linewidth=1)
        axis.set(xlabel=titles[across], ylabel=titles[up])
    for axis in axes[:2]:
        limit = min(coefficients.values())
        axis.axvline(limit, color="grey", linestyle=":", linewidth=1, label=f"λ = {limit:g}")
        # unpenalised and expanding: what the column sums do not see
        left, top = min(axis.get_xlim()[0], 0), max(axis.get_ylim()[1], 1.05)
        axis.fill_between([left, limit], 1, top, color="tab:red", alpha=0.08, linewidth=0, label="blind spot")
        axis.set(xlim=(left, None), ylim=(None, top))
    penalties = np.array([row.lcp for rows in models.values() for row in rows])
    positive = penalties[penalties > 0]
    if len(positive) and positive.max() > 100 * positive.min():
        decade = 10.0 ** np.floor(np.log10(positive.min()))
        axes[2].set_xscale("symlog", linthresh=decade)
        # penalties are never negative, but 0 has a place on the axis
        axes[2].set_xlim(left=-0.3 * decade)
    else:
        axes[2].ticklabel_format(axis="x", style="sci", scilimits=(-2, 2))
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=100)


def _exact_convolutions():
    # TF32's three digits are too few for ARPACK to see that it has converged
    settings = torch.backends.cudnn
    return settings.flags(settings.enabled, settings.benchmark, deterministic=settings.deterministic, allow_tf32=False)


def _dense_radius(matrix: np.ndarray) -> float:
    return np.abs(np.linalg.eigvals(matrix)).max()


def _start(operator: LinearOperator) -> np.ndarray:
    # random, not ones: ones are the vector whose blind spot is looked for
    return np.random.default_rng(0).normal(size=operator.shape[0]).astype(operator.dtype)
