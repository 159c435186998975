"""Pictures of how an answer grows over the steps of processing."""

from typing import Iterable

import numpy as np
import torch
from scipy.ndimage import maximum_filter
from torch import nn
from tqdm import tqdm

from rfpn.analysis.unrolling import first_batches

# pixels around the strokes of an image
_MARGIN = 4
# least side, in pixels, of images whose strokes are drawn thicker
_FINE = 80


def contour_growth(model: nn.Module, inputs: list[dict], steps: int) -> np.ndarray:
    """Probability of the target after each step, (T, N, H, W) in 0..1.

    Args:
        model: a Pathfinder model. inputs: its inputs, one batch. steps: T.
    """
    course = tqdm(model.time_course(inputs, steps), total=steps, desc="contours", unit="step", disable=None)
    return torch.stack([logits.softmax(1)[:, 1].cpu() for logits, _ in course]).float().numpy()


def first_images(model: nn.Module, loader: Iterable[list[dict]], images: int, steps: int) -> tuple[list[dict], np.ndarray]:
    """Inputs of the first N images and the target's probability after each step, (T, N, H, W); fewer in a smaller set.

    Args:
        model: a Pathfinder model. loader: its batches, each unrolled whole, as in evaluation. images: N. steps: T.
    """
    inputs, parts = [], []
    for batch in first_batches(loader, images):
        parts.append(contour_growth(model, batch, steps))
        inputs += batch
    return inputs[:images], np.concatenate(parts, axis=1)[:, :images]


def joining_steps(growth: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    """Step, from 1, at which each element first exceeds ``threshold``: (T, ...) -> (...) float, NaN where none does."""
    joined = growth > threshold
    return np.where(joined.any(axis=0), joined.argmax(axis=0) + 1.0, np.nan)


def joining_counts(joined: np.ndarray, target: np.ndarray, steps: int) -> list[dict]:
    """For each step the pixels that joined then: on the target, and elsewhere.

    Args:
        joined: (H, W), as :func:`joining_steps` gives it. target: (H, W), 1 on the target. steps: T.
    """
    return [
        {
            "step": step,
            "joined_target": int(((joined == step) & (target == 1)).sum()),
            "joined_elsewhere": int(((joined == step) & (target != 1)).sum()),
        }
        for step in range(1, steps + 1)
    ]


def draw_contour_growth(path: str, inputs: list[dict], growth: np.ndarray, steps: list[int]) -> None:
    """Draw a row for each image, cut to its strokes: image, truth, then the target's probability after each of ``steps``.

    Black is 0, pale yellow 1.

    Args:
        path: PNG file. inputs: with ``image`` (1, H, W) and ``sem_seg`` (H, W).
        growth: (T, N, H, W), as :func:`contour_growth` gives it. steps: those to draw, from 1 to T.
    """
    panels = {f"step {step}": growth[step - 1] for step in steps}
    figure, _ = _sheet(inputs, panels, {"cmap": "magma", "vmin": 0, "vmax": 1})
    figure.savefig(path, dpi=120)


def draw_joining_steps(path: str, inputs: list[dict], joined: dict[str, np.ndarray], steps: int) -> None:
    """Draw a row for each image, cut to its strokes: image, truth, then by model each pixel's joining step, as colour.

    Args:
        path: PNG file. inputs: with ``image`` (1, H, W) and ``sem_seg`` (H, W).
        joined: (N, H, W) by model, as :func:`joining_steps` gives it. steps: T, end of the colour scale.
    """
    from matplotlib.ticker import MaxNLocator

    figure, heat = _sheet(inputs, joined, {"cmap": "turbo", "vmin": 1, "vmax": steps})
    ticks = MaxNLocator(integer=True, min_n_ticks=1)
    # the label is no longer than a single row is high
    figure.colorbar(heat, ax=figure.axes, label="joining step", aspect=40, pad=0.01, ticks=ticks)
    figure.savefig(path, dpi=120)


def _sheet(inputs: list[dict], panels: dict[str, np.ndarray], style: dict):
    """Figure with a row for each image: image, truth, and its part of every panel (N, H, W); and the last panel."""
    from matplotlib.figure import Figure

    columns = ["image", "truth", *panels]
    figure = Figure(figsize=(1.5 * len(columns) + 0.6, 1.5 * len(inputs) + 0.3), layout="constrained")
    axes = figure.subplots(len(inputs), len(columns), squeeze=False)
    for row, record in enumerate(inputs):
        image = record["image"][0].numpy()
        window = _strokes(image)
        axes[row, 0].imshow(_thick(image[window]), cmap="gray", vmin=0, vmax=255)
        axes[row, 1].imshow(_thick(record["sem_seg"].numpy()[window]), cmap="gray", vmin=0, vmax=1)
        for column, panel in enumerate(panels.values(), start=2):
            # shows where pixels have no value
            axes[row, column].set_facecolor("0.9")
            last = axes[row, column].imshow(_thick(panel[row][window]), interpolation="nearest", **style)
        for axis in axes[row]:
            axis.set(xticks=[], yticks=[])
    for column, title in enumerate(columns):
        axes[0, column].set_title(title, fontsize="small")
    return figure, last


def _strokes(image: np.ndarray) -> tuple[slice, slice]:
    """The least square of an image (H, W) that holds all that is bright, with a margin; most of an image is empty."""
    bright = np.argwhere(image > image.max() / 2)
    if not len(bright):
        return slice(None), slice(None)
    least, most = bright.min(axis=0) - _MARGIN, bright.max(axis=0) + 1 + _MARGIN
    side = min((most - least).max(), *image.shape)
    starts = np.clip((least + most - side) // 2, 0, np.array(image.shape) - side)
    return tuple(slice(start, start + side) for start in starts)


def _thick(panel: np.ndarray) -> np.ndarray:
    """Strokes of (H, W) a pixel wider on all sides, by the highest value there: one pixel is lost in a picture drawn small."""
    if min(panel.shape) < _FINE:
        return panel
    empty = np.isnan(panel)
    thick = maximum_filter(np.where(empty, -np.inf, panel), 3)
    if empty.any():
        # where pixels have no value, those that have one keep it
        thick = np.where(empty, np.where(np.isinf(thick), np.nan, thick), panel)
    return thick
