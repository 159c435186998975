"""Stability of a model's last step over images or RoIs: each sample's Jacobian, a summary, a figure."""

from typing import Iterable, Iterator

import numpy as np
import torch
from detectron2.evaluation import inference_context
from torch import nn
from tqdm import tqdm

from rfpn.analysis.jacobian import Stability, sample_stability
from rfpn.analysis.ranks import rank_correlation
from rfpn.analysis.unrolling import layer_drive, recurrent_layer
from rfpn.fixed_point import iterate
from rfpn.layers.checks import COUNT, check_setting


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
    for name, value in (("steps", steps), ("images", images), ("rois", rois)):
        check_setting(f"stability: {name}", value, COUNT)
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
    positive = penalties[(penalties > 0) & np.isfinite(penalties)]
    if len(positive) and positive.max() > 100 * positive.min():
        decade = 10.0 ** np.floor(np.log10(positive.min()))
        axes[2].set_xscale("symlog", linthresh=decade)
        # penalties are never negative, but 0 has a place on the axis; symlog leaves no room beside the largest
        axes[2].set_xlim(-0.3 * decade, 2 * positive.max())
    else:
        axes[2].ticklabel_format(axis="x", style="sci", scilimits=(-2, 2))
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=100)
