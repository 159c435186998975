"""Pictures of how an answer grows over the steps of processing."""

import os

import numpy as np
import torch
from torch import nn
from tqdm import tqdm


def contour_growth(model: nn.Module, inputs: list[dict], steps: int) -> np.ndarray:
    """Probability of the target after each step, (T, N, H, W) in 0..1.

    Args:
        model: a Pathfinder model. inputs: its inputs, one batch. steps: T.
    """
    course = tqdm(model.time_course(inputs, steps), total=steps, desc="contours", unit="step", disable=None)
    return torch.stack([logits.softmax(1)[:, 1].cpu() for logits in course]).float().numpy()


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
    """Draw a row for each image: image, truth, then the target's probability after each of ``steps``.

    Args:
        path: PNG file. inputs: with ``image`` (1, H, W) and ``sem_seg`` (H, W).
        growth: (T, N, H, W), as :func:`contour_growth` gives it. steps: those to draw, from 1 to T.
    """
    panels = {f"step {step}": growth[step - 1] for step in steps}
    figure, _ = _sheet(inputs, panels, {"cmap": "gray", "vmin": 0, "vmax": 1})
    _save(figure, path)


def draw_joining_steps(path: str, inputs: list[dict], joined: dict[str, np.ndarray], steps: int) -> None:
    """Draw a row for each image: image, truth, then for each model the step at which each pixel joined, as colour.

    Args:
        path: PNG file. inputs: with ``image`` (1, H, W) and ``sem_seg`` (H, W).
        joined: (N, H, W) by model, as :func:`joining_steps` gives it. steps: T, end of the colour scale.
    """
    figure, heat = _sheet(inputs, joined, {"cmap": "turbo", "vmin": 1, "vmax": steps, "interpolation": "nearest"})
    figure.colorbar(heat, ax=figure.axes, label="step at which a pixel joined", aspect=40, pad=0.01)
    _save(figure, path)


def _sheet(inputs: list[dict], panels: dict[str, np.ndarray], style: dict):
    """Figure with a row for each image: image, truth, and its part of every panel (N, H, W); and the last panel."""
    from matplotlib.figure import Figure

    columns = ["image", "truth", *panels]
    figure = Figure(figsize=(1.2 * len(columns) + 0.6, 1.2 * len(inputs) + 0.3), layout="constrained")
    axes = figure.subplots(len(inputs), len(columns), squeeze=False)
    for row, record in enumerate(inputs):
        axes[row, 0].imshow(record["image"][0].numpy(), cmap="gray", vmin=0, vmax=255)
        axes[row, 1].imshow(record["sem_seg"].numpy(), cmap="gray", vmin=0, vmax=1)
        for column, panel in enumerate(panels.values(), start=2):
            # seen where pixels have no value
            axes[row, column].set_facecolor("0.9")
            last = axes[row, column].imshow(panel[row], **style)
        for axis in axes[row]:
            axis.set(xticks=[], yticks=[])
    for column, title in enumerate(columns):
        axes[0, column].set_title(title, fontsize="small")
    return figure, last


def _save(figure, path: str) -> None:
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    figure.savefig(path, dpi=120)
