"""State space of recurrent models: where their hidden states go before and after the steps of training (P-SI§3.3)."""

import itertools
import logging
from typing import Iterable, NamedTuple

import numpy as np
import torch
from detectron2.evaluation import inference_context
from scipy.ndimage import gaussian_filter
from scipy.stats import ks_2samp
from sklearn.decomposition import PCA
from torch import nn
from tqdm import tqdm

from rfpn.analysis.unrolling import layer_drive, recurrent_layer

_BINS = 60
# contours enclose these shares of the states
_MASSES = (0.9, 0.7, 0.5, 0.3)


class StateSpace(NamedTuple):
    """States of one model, and what is left of them on the principal components of its first N steps.

    states: (S, T, C) of S samples (images or RoIs). projected: (S, T, D), D the rank of those steps, at least 1: later
    steps may leave these axes.
    explained: (D,) share of the fitted steps' variance. trained_steps: N. dropped: samples with states not finite.
    """

    states: np.ndarray
    projected: np.ndarray
    explained: np.ndarray
    trained_steps: int
    dropped: int


class Distances(NamedTuple):
    """Distances in state space, one of each kind for each sample (S,).

    before: from t = 1 to N. after: from N to T. path_before, path_after: mean distance of consecutive states in
    t = 1..N and N..T.
    """

    before: np.ndarray
    after: np.ndarray
    path_before: np.ndarray
    path_after: np.ndarray


def collect_states(model: nn.Module, loader: Iterable[list[dict]], steps: int) -> np.ndarray:
    """Hidden states averaged over space, (S, T, C) float32, S images or RoIs.

    Args:
        model: a Pathfinder model or a panoptic FPN with a recurrent mask head (samples are RoIs of predicted boxes).
        loader: batches of inputs. steps: T.

    Raises:
        ValueError: the model has no recurrent layer, or there was no sample.
    """
    layer, collected = recurrent_layer(model), []
    with inference_context(model), torch.no_grad():
        for inputs in tqdm(loader, desc="states", disable=None):
            drive, _ = layer_drive(model, inputs)
            course = tqdm(layer.unroll(drive, steps), total=steps, desc="steps", leave=False, disable=None)
            states = [hidden.mean(dim=(2, 3)).float().cpu() for hidden, _ in course]
            collected.append(torch.stack(states, dim=1).numpy())
    if not sum(len(part) for part in collected):
        raise ValueError("no states: the data set is empty, or nothing was detected in it")
    return np.concatenate(collected)


def project(states: np.ndarray, trained_steps: int) -> StateSpace:
    """Fit a PCA on the task-optimised steps 1..N of states (S, T, C) and project all steps.

    Raises:
        ValueError: N is not in 1..T − 1, or no sample has finite states.
    """
    steps = states.shape[1]
    if not 1 <= trained_steps < steps:
        raise ValueError(f"{steps} steps do not go beyond the {trained_steps} steps of training")
    finite = np.isfinite(states).all(axis=(1, 2))
    dropped = int((~finite).sum())
    if dropped:
        logging.getLogger("rfpn").warning("%d of %d samples have states that are not finite: left out", dropped, len(states))
    if dropped == len(states):
        raise ValueError("no sample has finite states")
    states = states[finite].astype(np.float64)
    pca = PCA().fit(states[:, :trained_steps].reshape(-1, states.shape[2]))
    projected = pca.transform(states.reshape(-1, states.shape[2])).reshape(*states.shape[:2], -1)
    # states that never differ have no variance to explain; an axis without any is rounding, onto which later steps project
    explained = np.nan_to_num(pca.explained_variance_ratio_)
    rank = max(1, int((explained > 1e-12).sum()))
    return StateSpace(states, projected[..., :rank], explained[:rank], trained_steps, dropped)


def distances(space: StateSpace, components: int = 0) -> Distances:
    """Euclidean distances of states, or where ``components`` is not 0 on so many of the first axes of the PCA."""
    points = space.projected[..., :components] if components else space.states
    now = space.trained_steps - 1
    stride = np.linalg.norm(np.diff(points, axis=1), axis=2)
    # from the first state to itself there is no way
    path_before = stride[:, :now].mean(axis=1) if now else np.full(len(stride), np.nan)
    return Distances(
        np.linalg.norm(points[:, now] - points[:, 0], axis=1) if now else path_before,
        np.linalg.norm(points[:, -1] - points[:, now], axis=1),
        path_before,
        stride[:, now:].mean(axis=1),
    )


def distance_table(spaces: dict[str, StateSpace], components: int = 0) -> list[dict]:
    """A row for each model: mean μ and standard deviation σ over samples of each distance, and KS tests within it.

    ``ks``, ``p``: two-sample Kolmogorov–Smirnov statistic and p-value of the distances 1→N against N→T;
    ``path_ks``, ``path_p``: of the mean distances of consecutive states, so that samples stay independent.
    """
    rows = []
    for name, space in spaces.items():
        found = distances(space, components)
        row = {"model": name, "samples": len(space.projected), "dropped": space.dropped}
        row |= {"N": space.trained_steps, "T": space.projected.shape[1]}
        row["explained_2"] = float(space.explained[:2].sum())
        for field, values in found._asdict().items():
            row |= {f"mu_{field}": float(values.mean()), f"sigma_{field}": float(values.std())}
        ends, path = ks_2samp(found.before, found.after), ks_2samp(found.path_before, found.path_after)
        row |= {"ks": float(ends.statistic), "p": float(ends.pvalue)}
        rows.append(row | {"path_ks": float(path.statistic), "path_p": float(path.pvalue)})
    return rows


def pair_table(spaces: dict[str, StateSpace], components: int = 0) -> list[dict]:
    """A row for each pair of models: two-sample KS test of their distances from t = N to T (P§3.2)."""
    after = {name: distances(space, components).after for name, space in spaces.items()}
    rows = []
    for first, second in itertools.combinations(after, 2):
        test = ks_2samp(after[first], after[second])
        row = {"first": first, "second": second, "mu_first": float(after[first].mean())}
        row |= {"mu_second": float(after[second].mean()), "ks": float(test.statistic), "p": float(test.pvalue)}
        rows.append(row)
    return rows


def draw_state_space(path: str, spaces: dict[str, StateSpace], components: int = 0, sample: int = 0) -> None:
    """Draw each model's states on its first two components, and the distributions of the distances N→T.

    Grey: histogram of all states; red and blue contours: density of t ≤ N and t > N; yellow: one sample's way.

    Args:
        path: PNG file. components: of the distances. sample: index of the one whose way is drawn,
            below the number of samples of every model.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    columns = len(spaces) + 1
    figure = Figure(figsize=(3.2 * columns, 3.2), layout="constrained")
    axes = figure.subplots(1, columns)
    for axis, (name, space) in zip(axes, spaces.items()):
        _draw_model(axis, space, sample)
        axis.set_title(f"{name} (N = {space.trained_steps}, T = {space.projected.shape[1]})", fontsize="small")
        axes[-1].ecdf(distances(space, components).after, label=name)
    lines = [line.get_xdata()[1:] for line in axes[-1].lines]
    wide = max(line.max() for line in lines) > 20 * max(min(np.median(line) for line in lines), 1e-9)
    axes[-1].set(xlabel="distance from t = N to T", ylabel="share of samples")
    if wide:
        axes[-1].set_xscale("log")
        axes[-1].xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes[-1].xaxis.set_major_formatter("{x:g}")
        axes[-1].xaxis.set_minor_locator(NullLocator())
    axes[-1].legend(fontsize="small")
    figure.savefig(path, dpi=100)


def _draw_model(axis, space: StateSpace, sample: int) -> None:
    points = space.projected[..., :2]
    if points.shape[2] < 2:
        points = np.concatenate([points, np.zeros_like(points)], axis=2)
    low, high = points.min(axis=(0, 1)), points.max(axis=(0, 1))
    margin = 0.1 * (high - low) + 1e-9
    bounds = np.stack([low - margin, high + margin], axis=1)
    axis.hist2d(*points.reshape(-1, 2).T, bins=_BINS, range=bounds, cmap="Greys", norm="log")
    parts = (points[:, : space.trained_steps], "tab:red", "t ≤ N"), (points[:, space.trained_steps :], "tab:blue", "t > N")
    for part, colour, label in parts:
        counts, *edges = np.histogram2d(*part.reshape(-1, 2).T, bins=_BINS, range=bounds)
        density = gaussian_filter(counts, 1.5)
        centres = [(edge[1:] + edge[:-1]) / 2 for edge in edges]
        axis.contour(*centres, density.T, levels=_levels(density), colors=colour, linewidths=1)
        axis.plot([], [], color=colour, label=label)
    way = points[sample]
    axis.plot(*way.T, ".-", color="gold", markersize=4, linewidth=1.5, label="one sample")
    axis.plot(*way[0], "o", color="gold", markeredgecolor="black")
    axis.plot(*way[space.trained_steps - 1], "s", color="gold", markeredgecolor="black")
    axis.set(xlabel=f"component 1 ({space.explained[0]:.1%})")
    axis.set(ylabel=f"component 2 ({space.explained[1]:.1%})" if len(space.explained) > 1 else "")
    axis.legend(fontsize="x-small")


def _levels(density: np.ndarray) -> list[float]:
    """Ascending densities whose superlevel sets hold the shares ``_MASSES`` of the whole."""
    ordered = np.sort(density.ravel())[::-1]
    mass = np.cumsum(ordered) / ordered.sum()
    return np.unique([ordered[min(np.searchsorted(mass, share), len(ordered) - 1)] for share in _MASSES]).tolist()
