"""A model's answer step by step for each object of the ground truth."""

from typing import Iterable, Iterator, NamedTuple

import numpy as np
import torch
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.detection_utils import build_augmentation
from detectron2.evaluation import inference_context
from detectron2.structures import Boxes, pairwise_iou
from torch import Tensor, nn

from rfpn.analysis.contour_growth import contour_growth
from rfpn.analysis.unrolling import detect, first_batches, pool_masks, recurrent_layer
from rfpn.data.build import build_test_loader
from rfpn.data.mapper import PanopticMapper
from rfpn.modeling import PathfinderNet

_LEAST_OVERLAP = 0.5


class ObjectGrowth(NamedTuple):
    """One object and a model's answer to it.

    image: number of its image in the data set. name: its class. mask: (H, W) bool, ground truth.
    growth: (T, H, W) probabilities after each step.
    """

    image: int
    name: str
    mask: np.ndarray
    growth: np.ndarray


def object_growths(
    cfg, model: nn.Module, dataset: str, steps: int, images: int = 0, predicted: bool = False
) -> Iterator[ObjectGrowth]:
    """Yield the objects of at least the first ``images`` images (Pathfinder batches stay whole) of a data set, all for 0.

    Pathfinder models: the target contour in the pixels of the image. Panoptic FPN: each thing in the frame of its box,
    at the resolution of the mask head.

    Args:
        cfg: configuration of data and model. dataset: registered name. steps: T.
        predicted: take the predicted box of the object's class that overlaps it most, by 0.5 or more, and leave out
            objects without one; else the box of the ground truth. Panoptic FPN alone.

    Raises:
        ValueError: the model has no recurrent layer.
    """
    recurrent_layer(model)
    with inference_context(model), torch.no_grad():
        if isinstance(model, PathfinderNet):
            yield from _targets(model, first_batches(build_test_loader(cfg, dataset), images), steps)
            return
        names = MetadataCatalog.get(dataset).thing_classes
        # ground truth comes with training's mapper, the size of images with evaluation's resizing
        mapper = PanopticMapper(cfg, True, augmentations=build_augmentation(cfg, False))
        for image, record in enumerate(DatasetCatalog.get(dataset)[: images or None]):
            for kind, mask, growth in mask_growths(model, mapper(record), steps, predicted):
                yield ObjectGrowth(image, names[kind], mask, growth)


def _targets(model: PathfinderNet, batches: Iterable[list[dict]], steps: int) -> Iterator[ObjectGrowth]:
    image = 0
    for inputs in batches:
        growth = contour_growth(model, inputs, steps)
        for record, of_image in zip(inputs, growth.swapaxes(0, 1)):
            yield ObjectGrowth(image, "target", record["sem_seg"].numpy() == 1, of_image)
            image += 1


def mask_growths(model: nn.Module, record: dict, steps: int, predicted: bool) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """(class, mask (M, M), probabilities (T, M, M)) for each object of one mapped training record."""
    truth, head = record["instances"].to(model.device), model.roi_heads.mask_head
    if not len(truth):
        return []
    if predicted:
        features, (found,) = detect(model, [record])
        objects, boxes = _match(truth, found)
    else:
        features = model.backbone(model.preprocess_image([record]).tensor)
        objects, boxes = torch.arange(len(truth), device=model.device), truth.gt_boxes
    if not len(objects):
        return []
    classes = truth.gt_classes[objects]
    pooled = pool_masks(model, features, [boxes])
    growth = torch.stack([_masks(head.layers(hidden), classes) for hidden, _ in head.recurrent.unroll(pooled, steps)])
    masks = truth.gt_masks[objects].crop_and_resize(boxes.tensor, growth.shape[-1])
    return list(zip(classes.tolist(), masks.cpu().numpy(), growth.cpu().numpy().swapaxes(0, 1)))


def _match(truth, found) -> tuple[Tensor, Boxes]:
    """Indices of the objects that have a predicted box, and those boxes."""
    overlap = pairwise_iou(truth.gt_boxes, found.pred_boxes)
    overlap = overlap * (truth.gt_classes[:, None] == found.pred_classes[None])
    if not len(found):
        return torch.zeros(0, dtype=torch.int64, device=overlap.device), found.pred_boxes
    best, box = overlap.max(dim=1)
    objects = torch.nonzero(best >= _LEAST_OVERLAP).flatten()
    return objects, found.pred_boxes[box[objects]]


def _masks(logits: Tensor, classes: Tensor) -> Tensor:
    """Probability of each object's own class: (R, K, M, M) -> (R, M, M)."""
    own = torch.zeros_like(classes) if logits.shape[1] == 1 else classes
    return logits[torch.arange(len(logits), device=logits.device), own].sigmoid().float()
