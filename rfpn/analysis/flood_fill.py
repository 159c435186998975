"""Does a model fill objects as a flood fill would? Its per-step masks beside an idealised flood fill (P-Fig. 5).

An object's ground-truth mask is tessellated into Voronoi cells; the flood starts in one of them and takes a step to
reach the neighbours. The score is Spearman's rank correlation between the step at which the flood and the model reach
each cell. The flood starts where the model does, so that cell itself is left out of the score.
"""

from typing import NamedTuple

import numpy as np
from scipy.ndimage import binary_dilation, distance_transform_edt, label
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import shortest_path
from scipy.spatial import KDTree
from scipy.stats import wilcoxon
from sklearn.cluster import KMeans

from rfpn.analysis.contour_growth import joining_steps
from rfpn.analysis.ranks import rank_correlation

# fewer cells have no ranks to speak of; fewer pixels a cell are noise
_LEAST_CELLS, _LEAST_PIXELS = 5, 4
_SHUFFLES = 20
# pictures in a row of the figure
_FRAMES = 6


class Tessellation(NamedTuple):
    """Voronoi cells of a mask and the way between them.

    cells: (H, W) int, cell of each pixel, −1 outside. mask: (H, W) bool, the object without bridges.
    distances: (K, K) steps from cell to cell through neighbours, inf where there is no way.
    """

    cells: np.ndarray
    mask: np.ndarray
    distances: np.ndarray


class Similarity(NamedTuple):
    """Rank correlations of one object's times with other orders of its cells; NaN where an order has ties only.

    Cells that the model never reaches have no time: they count in ``reached`` alone.

    correlation: with a flood from the cell that the model reaches first. shuffled: of shuffled times, mean.
    other_starts: with floods from all other cells, mean; tells whether the place of the start matters.
    edge: with the depth of a cell within the object, deepest first, as a mask gives that merely sharpens inside out.
    partial: the correlation with the flood that the edge does not explain (Spearman's partial correlation).
    cells: K. reached: share of cells that the model reaches. start: the first one, -1 where there is none.
    """

    correlation: float
    shuffled: float
    other_starts: float
    edge: float
    partial: float
    cells: int
    reached: float
    start: int


def tessellate(mask: np.ndarray, cells: int, seed: int = 0, bridge: int = 0) -> Tessellation | None:
    """Centroidal Voronoi tessellation (k-means of the pixels), its parts split where they do not hang together.

    Args:
        mask: (H, W) bool. cells: number at most; a cell has 4 pixels or more on average.
        seed: of k-means. bridge: pixels by which the mask is widened first, so that gaps of twice as many are crossed.

    Returns:
        None where the mask is too small for 5 cells.
    """
    mask = np.asarray(mask, dtype=bool)
    pixels = np.argwhere(mask)
    count = min(cells, len(pixels) // _LEAST_PIXELS)
    if count < _LEAST_CELLS:
        return None
    centres = KMeans(count, n_init=1, random_state=seed).fit(pixels).cluster_centers_
    region = binary_dilation(mask, iterations=bridge) if bridge else mask
    nearest = np.full(mask.shape, -1)
    nearest[region] = KDTree(centres).query(np.argwhere(region))[1]
    connected, total = np.full(mask.shape, -1), 0
    for cell in range(count):
        parts, found = label(nearest == cell)
        connected[parts > 0] = parts[parts > 0] - 1 + total
        total += found
    return Tessellation(connected, mask, _distances(connected, total))


def cell_times(tessellation: Tessellation, growth: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    """Step, from 1, at which the mean of each cell's probabilities first exceeds ``threshold``.

    Args:
        growth: (T, H, W) probabilities by step.

    Returns:
        (K,) float, NaN for cells that are never reached, and for cells of bridges alone.
    """
    return joining_steps(_cell_means(tessellation, growth), threshold)


def similarity(tessellation: Tessellation, growth: np.ndarray, threshold: float = 0.5, seed: int = 0) -> Similarity:
    """Compare a model's growth (T, H, W) with floods over a tessellation; see :class:`Similarity`."""
    # a state that is not finite reaches nothing
    means = _cell_means(tessellation, np.nan_to_num(growth))
    times = joining_steps(means, threshold)
    inside = ~np.isnan(means[0])
    reached = float((~np.isnan(times))[inside].mean())
    nan = float("nan")
    if not reached:
        return Similarity(nan, nan, nan, nan, nan, int(inside.sum()), reached, -1)
    first = np.nanmin(times)
    # of the cells reached first, the one the model is surest of
    start = int(np.nanargmax(np.where(times == first, means[int(first) - 1], nan)))
    flood = tessellation.distances[start]
    others = np.flatnonzero(np.isfinite(flood) & ~np.isnan(times))
    others = others[others != start]
    own = rank_correlation(times[others], flood[others])
    rng = np.random.default_rng(seed)
    shuffled = [rank_correlation(rng.permutation(times[others]), flood[others]) for _ in range(_SHUFFLES)]
    elsewhere = []
    for cell in others:
        rest = others[others != cell]
        elsewhere.append(rank_correlation(times[rest], tessellation.distances[cell, rest]))
    # a mask cut to its box ends where the array does
    inner = distance_transform_edt(np.pad(tessellation.mask, 1))[1:-1, 1:-1]
    # cells of the same shape are equally deep, in whatever order their pixels were added
    depth = _cell_means(tessellation, inner[None])[0].round(9)
    edge = rank_correlation(times[others], -depth[others])
    partial = _partial(own, edge, rank_correlation(flood[others], -depth[others]))
    return Similarity(own, _mean(shuffled), _mean(elsewhere), edge, partial, int(inside.sum()), reached, start)


def summarise(found: list[Similarity]) -> dict[str, float]:
    """Means and standard deviations over objects, and one-sided Wilcoxon tests of the score against its controls."""
    defined = [row for row in found if not np.isnan(row.correlation)]
    summary = {"objects": len(found), "undefined": len(found) - len(defined)}
    columns = {name: np.array([getattr(row, name) for row in defined]) for name in Similarity._fields[:5]}
    for name, values in columns.items():
        known = values[~np.isnan(values)]
        summary[f"mean_{name}"] = _mean(known)
        summary[f"sd_{name}"] = float(known.std()) if len(known) else float("nan")
    for control in ("shuffled", "other_starts", "edge"):
        gain = columns["correlation"] - columns[control]
        gain = gain[~np.isnan(gain)]
        enough = len(gain) > 1 and np.any(gain)
        summary[f"p_{control}"] = float(wilcoxon(gain, alternative="greater").pvalue) if enough else float("nan")
    return summary | {"mean_reached": _mean([row.reached for row in found])}


def draw_flood_fill(
    path: str,
    objects: list[tuple[str, Tessellation, np.ndarray, Similarity]],
    threshold: float = 0.5,
) -> None:
    """Draw two rows for each object: the flood over its tessellation, and the model's probabilities.

    The last column has the flood's distance and the model's step at which each cell is reached, as colour. The flood's
    frames are spread over its whole way and the model's over its T steps, none twice; places left over stay empty.

    Args:
        path: PNG file. objects: title, tessellation, growth (T, H, W), similarity with a start.
        threshold: as of the similarity.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.1 * (_FRAMES + 2), 2.5 * len(objects)), layout="constrained")
    for part, (title, *compared) in zip(np.atleast_1d(figure.subfigures(len(objects), 1)), objects):
        part.suptitle(title, fontsize="small")
        _draw_object(part.subplots(2, _FRAMES + 2), threshold, *compared)
    figure.savefig(path, dpi=90)


def _draw_object(
    axes: np.ndarray, threshold: float, tessellation: Tessellation, growth: np.ndarray, found: Similarity
) -> None:
    flood, times = tessellation.distances[found.start], cell_times(tessellation, growth, threshold)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    axes[0, 0].imshow(_paint(tessellation, np.arange(len(flood)) * 7 % 20), cmap="tab20", interpolation="nearest")
    axes[0, 0].set_ylabel("flood", fontsize="small")
    axes[1, 0].imshow(tessellation.mask, cmap="gray", vmin=0, vmax=1)
    axes[1, 0].set_ylabel("model", fontsize="small")
    farthest, places = int(flood[np.isfinite(flood)].max()), axes.shape[1] - 2
    floods = [(f"distance {d}", np.nan_to_num(_paint(tessellation, flood <= d))) for d in _spread(0, farthest, places)]
    masks = [(f"step {step}", growth[step - 1]) for step in _spread(1, len(growth), places)]
    for row, frames in zip(axes[:, 1:-1], (floods, masks)):
        for axis, (title, picture) in zip(row, frames):
            axis.imshow(picture, cmap="gray", vmin=0, vmax=1)
            axis.set_title(title, fontsize="x-small")
        for axis in row[len(frames) :]:
            axis.axis("off")
    scales = (flood, 0, farthest, "distance"), (times, 1, len(growth), "step reached")
    for axis, (values, least, most, label) in zip(axes[:, -1], scales):
        # white: outside the object, or never reached
        heat = axis.imshow(_paint(tessellation, values), cmap="turbo", vmin=least, vmax=most, interpolation="nearest")
        bar = axis.figure.colorbar(heat, ax=axis, ticks=sorted({least, most}))
        bar.set_label(label, fontsize="x-small")
        bar.ax.tick_params(labelsize="x-small")
    axes[0, -1].set_title(f"ρ = {found.correlation:.2f}", fontsize="x-small")


def draw_scores(path: str, models: dict[str, list[Similarity]]) -> None:
    """Draw the distribution over objects of the score and of its three controls, a panel for each model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(models), 3), layout="constrained")
    axes = figure.subplots(1, len(models), squeeze=False)[0]
    names = {"correlation": "flood from first cell", "other_starts": "floods from others"}
    names |= {control: control for control in ("edge", "shuffled")}
    for axis, (model, found) in zip(axes, models.items()):
        for field, text in names.items():
            values = [value for row in found if not np.isnan(value := getattr(row, field))]
            if values:
                axis.hist(values, bins=np.linspace(-1, 1, 41), histtype="step", linewidth=1.5, label=text)
        axis.axvline(0, color="grey", linewidth=1)
        axis.set(xlabel="rank correlation of times", ylabel="objects", title=model)
        if axis.patches:
            axis.legend(fontsize="xx-small", loc="upper left")
    figure.savefig(path, dpi=100)


def _spread(least: int, most: int, places: int) -> list[int]:
    """Integers from ``least`` to ``most``, ends included, evenly spread: as many as there are places, or all of them."""
    return [round(value) for value in np.linspace(least, most, min(places, most - least + 1))]


def _paint(tessellation: Tessellation, values: np.ndarray) -> np.ndarray:
    """Values (K,) of cells as a picture (H, W), NaN outside the object."""
    picture = np.where(tessellation.cells >= 0, np.asarray(values, float)[tessellation.cells], np.nan)
    picture[np.isinf(picture)] = np.nan
    return picture


def _cell_means(tessellation: Tessellation, growth: np.ndarray) -> np.ndarray:
    """Mean over each cell's pixels on the object: (T, H, W) -> (T, K), NaN for a cell without any."""
    cells, count = tessellation.cells[tessellation.mask], len(tessellation.distances)
    sizes = np.bincount(cells, minlength=count)
    sums = np.stack([np.bincount(cells, step[tessellation.mask], minlength=count) for step in growth])
    return np.where(sizes > 0, sums / np.maximum(sizes, 1), np.nan)


def _distances(cells: np.ndarray, count: int) -> np.ndarray:
    """Steps between cells (H, W) that share a side of a pixel: (K, K)."""
    pairs = [(cells[1:], cells[:-1]), (cells[:, 1:], cells[:, :-1])]
    first, second = (np.concatenate([pair[side].ravel() for pair in pairs]) for side in (0, 1))
    touching = (first != second) & (first >= 0) & (second >= 0)
    graph = coo_matrix((np.ones(touching.sum()), (first[touching], second[touching])), shape=(count, count))
    return shortest_path(graph.tocsr(), directed=False, unweighted=True)


def _partial(xy: float, xz: float, yz: float) -> float:
    """Correlation of x and y without what z explains of either; ``xy`` itself where z is constant."""
    if np.isnan(xz) or np.isnan(yz):
        return xy
    left = (1 - xz**2) * (1 - yz**2)
    return float((xy - xz * yz) / np.sqrt(left)) if left > 1e-9 else float("nan")


def _mean(values) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")
