"""Pictures of how a Pathfinder model's answer grows over the steps of processing."""

import os

import numpy as np
import torch
from torch import nn


def contour_growth(model: nn.Module, inputs: list[dict], steps: int) -> np.ndarray:
    """Probability of the target after each step, (T, N, H, W) in 0..1.

    Args:
        model: a Pathfinder model. inputs: its inputs, one batch. steps: T.
    """
    return torch.stack([logits.softmax(1)[:, 1].cpu() for logits in model.time_course(inputs, steps)]).float().numpy()


def draw_contour_growth(path: str, inputs: list[dict], growth: np.ndarray, steps: list[int]) -> None:
    """Draw a row for each image: image, truth, then the target's probability after each of ``steps``.

    Args:
        path: PNG file. inputs: with ``image`` (1, H, W) and ``sem_seg`` (H, W).
        growth: (T, N, H, W), as :func:`contour_growth` gives it. steps: those to draw, from 1 to T.
    """
    from matplotlib.figure import Figure

    columns = ["image", "truth", *(f"step {step}" for step in steps)]
    figure = Figure(figsize=(1.2 * len(columns), 1.2 * len(inputs) + 0.3), layout="constrained")
    axes = figure.subplots(len(inputs), len(columns), squeeze=False)
    for row, (record, of_image) in enumerate(zip(inputs, growth.swapaxes(0, 1))):
        pictures = [record["image"][0].numpy() / 255, record["sem_seg"].numpy(), *(of_image[t - 1] for t in steps)]
        for column, picture in enumerate(pictures):
            axes[row, column].imshow(picture, cmap="gray", vmin=0, vmax=1)
            axes[row, column].set_axis_off()
    for column, title in enumerate(columns):
        axes[0, column].set_title(title, fontsize="small")
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    figure.savefig(path, dpi=120)
