"""Predictions drawn over their images, for Pathfinder models, R-FPN and every other model of Detectron2."""

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.data import Metadata, MetadataCatalog
from detectron2.data import transforms as T
from detectron2.data.detection_utils import convert_PIL_to_numpy
from detectron2.evaluation import inference_context
from PIL import Image
from torch import nn

from rfpn.analysis.figures import draw_contour, draw_instances, draw_panoptic, draw_proposals, draw_semantic
from rfpn.analysis.time_course import step_outputs
from rfpn.analysis.unrolling import find_recurrent_layer, has_recurrent_layer, trained_steps
from rfpn.data.architectures import is_pathfinder
from rfpn.data.build import evaluation_batch
from rfpn.data.images import to_tensor
from rfpn.data.pathfinder.mapper import resize
from rfpn.evaluation.panoptic import scored_segments

# images that a Pathfinder model takes at a time, at most
_BATCH = 32
# longer side of a picture, pixels: memory is lost beyond
LARGEST_SIDE = 4096


def build_overlay(model: nn.Module, cfg: CfgNode) -> "Overlay":
    """What predicts and draws with ``model``, built from ``cfg`` and on its device."""
    kind = ContourOverlay if is_pathfinder(cfg) else SegmentationOverlay
    return kind(model, cfg)


class Overlay:
    """Predicts images (H, W, 3), RGB uint8, and draws what it predicts.

    ``title``: the model in a few words. ``batch_size``: images that are best predicted together.
    ``recurrent``: whether predictions by step can be had.
    """

    batch_size = 1

    def __init__(self, model: nn.Module, cfg: CfgNode):
        self.model = model
        self.cfg = cfg
        self.title = model_title(cfg)
        # steps of a mask head are read out through panoptic fusion
        readable = is_pathfinder(cfg) or hasattr(model, "sem_seg_head")
        self.recurrent = readable and find_recurrent_layer(model) is not None

    def predict(self, images: list[np.ndarray]) -> list[dict]:
        """The model's outputs.

        Raises:
            ValueError: an image is not (H, W, 3) uint8.
        """
        with inference_context(self.model), torch.no_grad():
            return self.model(self._inputs(images))

    def predict_steps(self, images: list[np.ndarray], steps: list[int]) -> dict[int, list[dict]]:
        """The model's outputs after each of ``steps``, in ascending order, from one unrolling.

        Raises:
            ValueError: an image is not (H, W, 3) uint8, or the model has no recurrent layer whose steps could be read out.
        """
        with inference_context(self.model), torch.no_grad():
            return dict(step_outputs(self.model, self._inputs(images), steps))

    def _inputs(self, images: list[np.ndarray]) -> list[dict]:
        for image in images:
            if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
                raise ValueError(f"an image must be (H, W, 3) uint8, RGB; got {image.shape} {image.dtype}")
        return [self.prepare(image) for image in images]

    def prepare(self, image: np.ndarray) -> dict:
        """The model's input for one image."""
        raise NotImplementedError

    def draw(self, image: np.ndarray, output: dict, scale: float = 1.0) -> np.ndarray:
        """An output over its image: (scale·H, scale·W, 3) RGB uint8."""
        raise NotImplementedError


class SegmentationOverlay(Overlay):
    """Panoptic segmentation; instances, proposals or semantic segmentation where the model gives only those."""

    def __init__(self, model: nn.Module, cfg: CfgNode):
        super().__init__(model, cfg)
        self._resize = T.ResizeShortestEdge(cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST)
        self.metadata = _class_names(cfg)

    def prepare(self, image: np.ndarray) -> dict:
        """Resized as ``INPUT.{MIN,MAX}_SIZE_TEST`` say, in ``INPUT.FORMAT``. ValueError for an image too thin for that."""
        height, width = image.shape[:2]
        image = _in_format(image, self.cfg.INPUT.FORMAT)
        try:
            resized = self._resize.get_transform(image).apply_image(np.ascontiguousarray(image))
        except ValueError as error:  # Pillow's
            raise ValueError(f"{width}x{height} pixels cannot be resized as INPUT says ({error})") from error
        return {
            "image": to_tensor(resized),
            "height": height,
            "width": width,
        }

    def draw(self, image: np.ndarray, output: dict, scale: float = 1.0) -> np.ndarray:
        """See :meth:`Overlay.draw`."""
        if "panoptic_seg" in output:
            segments, records = scored_segments(*output["panoptic_seg"], self.metadata, "prediction")
            return draw_panoptic(image, segments.cpu().numpy(), records, self.metadata, scale)
        if "instances" in output:
            return draw_instances(image, output["instances"].to("cpu"), self.metadata, scale)
        if "proposals" in output:
            return draw_proposals(image, output["proposals"].to("cpu"), self.metadata, scale)
        return draw_semantic(image, output["sem_seg"].argmax(dim=0).cpu().numpy(), self.metadata, scale)


class ContourOverlay(Overlay):
    """The contour that a Pathfinder model traces.

    Its norms take the statistics of the batch, so images are predicted up to 32 at a time, not one by one.
    """

    def __init__(self, model: nn.Module, cfg: CfgNode):
        super().__init__(model, cfg)
        self.batch_size = min(evaluation_batch(cfg), _BATCH)

    def prepare(self, image: np.ndarray) -> dict:
        """Grey, at ``INPUT.PATHFINDER_SIZE``, as :class:`rfpn.data.pathfinder.mapper.PathfinderMapper` reads it."""
        grey = resize(_in_format(image, "L")[..., 0], self.cfg.INPUT.PATHFINDER_SIZE)
        # Pillow's pixels cannot be written to, which PyTorch asks for
        return {"image": torch.from_numpy(np.array(grey[None]))}

    def draw(self, image: np.ndarray, output: dict, scale: float = 1.0) -> np.ndarray:
        """See :meth:`Overlay.draw`."""
        return draw_contour(image, output["sem_seg"].float().softmax(0)[1].cpu().numpy(), scale)


def model_title(cfg: CfgNode) -> str:
    """Architecture and, where it is recurrent, gradient method and steps of training, as "R-FPN, C-RBP 20 to 40"."""
    recurrent, pathfinder = cfg.MODEL.RECURRENT, is_pathfinder(cfg)
    if not has_recurrent_layer(cfg):
        if pathfinder:
            return f"feedforward, {cfg.MODEL.PATHFINDER.FEEDFORWARD_LAYERS} layers"
        return {"PanopticFPN": "FPN"}.get(cfg.MODEL.META_ARCHITECTURE, cfg.MODEL.META_ARCHITECTURE)
    name = {"hgru": "hGRU", "conv_lstm": "convLSTM"}.get(recurrent.CELL, recurrent.CELL) if pathfinder else "R-FPN"
    constrained = "C-" if recurrent.LIPSCHITZ.WEIGHT > 0 else ""
    steps = trained_steps(cfg)
    last = f" to {steps[-1]}" if len(steps) > 1 else ""
    return f"{name}, {constrained}{recurrent.GRADIENT.upper()} {steps[0]}{last}"


def enlargement(image: np.ndarray, side: int = 320) -> float:
    """Scale to a shorter side of ``side`` pixels and a longer one of at most ``LARGEST_SIDE``; never below 1."""
    height, width = image.shape[:2]
    return max(1.0, min(side / min(height, width), LARGEST_SIDE / max(height, width)))


def _in_format(image: np.ndarray, image_format: str) -> np.ndarray:
    """An RGB picture in the format that :func:`rfpn.data.images.read_image` would give it."""
    return convert_PIL_to_numpy(Image.fromarray(np.ascontiguousarray(image)), image_format)


def _class_names(cfg: CfgNode) -> Metadata:
    """Names and colours of ``DATASETS.TEST``'s classes; numbers where no such set is registered here."""
    found = MetadataCatalog.get(cfg.DATASETS.TEST[0]) if cfg.DATASETS.TEST else Metadata()
    if found.get("thing_classes") is not None or found.get("stuff_classes") is not None:
        return found
    return Metadata(
        thing_classes=[f"thing {i}" for i in range(cfg.MODEL.ROI_HEADS.NUM_CLASSES)],
        stuff_classes=["things", *(f"stuff {i}" for i in range(1, cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES))],
    )
