"""What every look at dynamics starts from: a model's recurrent layer, its drive for some inputs, its steps."""

from typing import Iterable, Iterator

from detectron2.config import CfgNode
from detectron2.modeling import ROI_MASK_HEAD_REGISTRY
from detectron2.structures import Boxes, Instances
from torch import Tensor, nn

from rfpn.data.architectures import is_pathfinder
from rfpn.layers import RecurrentLayer
from rfpn.modeling import HGRUMaskHead, PathfinderNet


def has_recurrent_layer(cfg: CfgNode) -> bool:
    """Whether :func:`recurrent_layer` will find one in the model of a configuration; the model is not built.

    Raises:
        KeyError: the configuration names a class that is not registered.
    """
    if is_pathfinder(cfg):
        return cfg.MODEL.PATHFINDER.LAYER == "recurrent"
    return cfg.MODEL.MASK_ON and issubclass(ROI_MASK_HEAD_REGISTRY.get(cfg.MODEL.ROI_MASK_HEAD.NAME), HGRUMaskHead)


def trained_steps(cfg: CfgNode) -> range:
    """Numbers of steps of processing that training draws from: ``STEPS``, and up to ``EXTRA_STEPS`` more."""
    least = cfg.MODEL.RECURRENT.STEPS
    return range(least, least + cfg.MODEL.RECURRENT.EXTRA_STEPS + 1)


def find_recurrent_layer(model: nn.Module) -> RecurrentLayer | None:
    """The recurrent layer of a Pathfinder model, or of a panoptic FPN's mask head; None if there is none."""
    head = getattr(getattr(model, "roi_heads", None), "mask_head", None)
    layer = model.layer if isinstance(model, PathfinderNet) else getattr(head, "recurrent", None)
    return layer if isinstance(layer, RecurrentLayer) else None


def recurrent_layer(model: nn.Module) -> RecurrentLayer:
    """What :func:`find_recurrent_layer` finds.

    Raises:
        ValueError: the model has no recurrent layer.
    """
    layer = find_recurrent_layer(model)
    if layer is None:
        raise ValueError(f"{type(model).__name__} has no recurrent layer: neither a recurrent mask head nor Pathfinder's")
    return layer


def layer_drive(model: nn.Module, inputs: list[dict]) -> tuple[Tensor, list[int]]:
    """Drive (R, C, H, W) of the recurrent layer and, for each sample, the index of its input.

    Samples are the N images of a Pathfinder model, or the RoIs of a panoptic FPN's predicted boxes.
    """
    if isinstance(model, PathfinderNet):
        return model.drive(inputs), list(range(len(inputs)))
    features, instances = detect(model, inputs)
    pooled = pool_masks(model, features, [found.pred_boxes for found in instances])
    return pooled, [index for index, found in enumerate(instances) for _ in range(len(found))]


def detect(model: nn.Module, inputs: list[dict]) -> tuple[dict[str, Tensor], list[Instances]]:
    """Features of a panoptic FPN and, for each input, its predicted boxes, classes and scores in its own pixels."""
    images = model.preprocess_image(inputs)
    features = model.backbone(images.tensor)
    proposals, _ = model.proposal_generator(images, features, None)
    # StandardROIHeads' own box branch: its forward would run the mask head too
    return features, model.roi_heads._forward_box(features, proposals)


def pool_masks(model: nn.Module, features: dict[str, Tensor], boxes: list[Boxes]) -> Tensor:
    """Drive (R, C, H, W) of the mask head: features of all boxes, those of the first image first."""
    heads = model.roi_heads
    return heads.mask_pooler([features[name] for name in heads.mask_in_features], boxes)


def first_batches(loader: Iterable[list[dict]], images: int) -> Iterator[list[dict]]:
    """Whole batches until ``images`` have come, all where it is 0; batch norms need batches left whole."""
    seen = 0
    for batch in loader:
        yield batch
        seen += len(batch)
        if 0 < images <= seen:
            return
