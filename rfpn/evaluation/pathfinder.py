"""Scores of contour segmentation on Pathfinder."""

import logging

import numpy as np
import torch
from detectron2.evaluation import DatasetEvaluator
from detectron2.utils import comm
from torch import Tensor


class PathfinderEvaluator(DatasetEvaluator):
    """Compares the larger of two logits per pixel with the target; all scores lie in 0..1.

    ``IoU``: of target pixels, counted over the whole set. ``IoU_published``: the paper's score, F/(2 − F) of the mean
    over batches of F counted over a batch. ``IoU_image``: mean over images of an image's IoU.
    ``precision``, ``recall``, ``F``, ``balanced_accuracy``: of pixels over the whole set.
    ``target_share``: target pixels among all.
    """

    def __init__(self, dataset_name: str):
        """
        Args:
            dataset_name: for messages.
        """
        self._dataset_name = dataset_name
        self.reset()

    def reset(self):
        """Forget all images."""
        self._batches: list[Tensor] = []
        self._damaged: list[Tensor] = []

    def process(self, inputs: list[dict], outputs: list[dict]):
        """Count one batch.

        Args:
            inputs: dicts with ``sem_seg`` (H, W), 1 on the target. outputs: dicts with ``sem_seg`` (2, H, W), logits.
        """
        if not inputs:
            return
        logits = torch.stack([output["sem_seg"] for output in outputs])
        target = torch.stack([x["sem_seg"] for x in inputs]).to(logits.device)
        self.add(logits, target)

    def add(self, logits: Tensor, target: Tensor):
        """Count one batch: logits (N, 2, H, W), target (N, H, W), 1 on the target."""
        self._batches.append(confusion_counts(logits, target))
        self._damaged.append((~logits.isfinite()).flatten(1).any(1).sum())

    def evaluate(self) -> dict | None:
        """``{"pathfinder": scores}`` on the main process, None on the others, ``{}`` if nothing was processed."""
        gathered = comm.gather(([batch.cpu().numpy() for batch in self._batches], int(sum(self._damaged))))
        if not comm.is_main_process():
            return None
        batches, damaged = [batch for some, _ in gathered for batch in some], sum(count for _, count in gathered)
        if damaged:
            # a pixel with NaN counts as background: neither logit is the larger one
            logging.getLogger(__name__).warning("%s: logits of %d images are not finite", self._dataset_name, damaged)
        if not batches:
            logging.getLogger(__name__).warning("%s: no predictions to score", self._dataset_name)
            return {}
        return {"pathfinder": scores(batches)}


def confusion_counts(logits: Tensor, target: Tensor) -> Tensor:
    """Hits, false, missed and rejected pixels of every image: logits (N, 2, H, W), target (N, H, W) -> (N, 4) int64."""
    predicted, target = (logits[:, 1] > logits[:, 0]).flatten(1), (target == 1).flatten(1)
    hits, positives, targets = (mask.sum(1) for mask in (predicted & target, predicted, target))
    return torch.stack([hits, positives - hits, targets - hits, target.shape[1] - positives - targets + hits], dim=1)


def scores(batches: list[np.ndarray]) -> dict[str, float]:
    """Scores of :class:`PathfinderEvaluator` from the counts (N, 4) of one or more batches.

    A ratio without any pixel in its denominator is 0; an image without target and without prediction has IoU 1.
    """
    images = np.concatenate(batches).astype(np.float64)
    hits, false, missed, rejected = images.sum(0)
    precision, recall = _ratio(hits, hits + false), _ratio(hits, hits + missed)
    batch_f = np.mean([_f(batch.sum(0)) for batch in batches])
    union = images[:, :3].sum(1)
    image_iou = np.where(union > 0, images[:, 0] / np.maximum(union, 1), 1.0)
    return {
        "IoU": _ratio(hits, hits + false + missed),
        "IoU_published": float(batch_f / (2 - batch_f)),
        "IoU_image": float(image_iou.mean()),
        "precision": precision,
        "recall": recall,
        "F": _f(images.sum(0)),
        "balanced_accuracy": (recall + _ratio(rejected, rejected + false)) / 2,
        "target_share": float((hits + missed) / images.sum()),
    }


def _f(counts: np.ndarray) -> float:
    hits, false, missed = counts[:3]
    return _ratio(2 * hits, 2 * hits + false + missed)


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
