"""Pictures for people: panoptic segmentations beside their image and ground truth."""

import os

import cv2
import numpy as np
import torch
from detectron2.utils.visualizer import ColorMode, Visualizer

from rfpn.data.annotations import read_panoptic_json
from rfpn.data.panoptic_png import read_panoptic_png

_GAP = 6


def draw_panoptic(image: np.ndarray, segments: np.ndarray, segments_info: list[dict], metadata, scale: float = 1.0):
    """Overlay of a panoptic segmentation.

    Args:
        image: (H, W, 3) RGB uint8. segments: (H, W) segment ids, 0 for void.
        segments_info: Detectron2's records: ``id``, ``category_id`` (contiguous), ``isthing``.
        metadata: names and colours of the data set's classes.
        scale: of the picture against the image.

    Returns:
        (scale·H, scale·W, 3) RGB uint8.
    """
    drawer = Visualizer(image, metadata, scale=scale, instance_mode=ColorMode.IMAGE)
    drawn = drawer.draw_panoptic_seg(torch.as_tensor(segments.astype(np.int64)), segments_info, area_threshold=0)
    return _fit(drawn.get_image(), image, scale)


class PanopticTruth:
    """The ground truth of a registered panoptic set, as :func:`draw_panoptic` takes it."""

    def __init__(self, metadata):
        """``metadata``: of the data set, with ``panoptic_json`` and ``panoptic_root``."""
        truth = read_panoptic_json(metadata.panoptic_json)
        self._root = metadata.panoptic_root
        self._annotations = {annotation["image_id"]: annotation for annotation in truth["annotations"]}
        self._things = metadata.thing_dataset_id_to_contiguous_id
        self._stuff = metadata.stuff_dataset_id_to_contiguous_id

    def __call__(self, image_id: int) -> tuple[np.ndarray, list[dict]]:
        """Segment ids (H, W) and records of one image."""
        annotation = self._annotations[image_id]
        records = []
        for segment in annotation["segments_info"]:
            isthing = segment["category_id"] in self._things
            classes = self._things if isthing else self._stuff
            records.append({"id": segment["id"], "category_id": classes[segment["category_id"]], "isthing": isthing})
        return read_panoptic_png(os.path.join(self._root, annotation["file_name"])), records


def side_by_side(panels: list[np.ndarray], titles: list[str]) -> np.ndarray:
    """Panels (H, W, 3) of one size in a row, each under its title."""
    bar = 18
    height, width = panels[0].shape[:2]
    sheet = np.full((height + bar, len(panels) * (width + _GAP) - _GAP, 3), 255, np.uint8)
    for index, (panel, title) in enumerate(zip(panels, titles)):
        left = index * (width + _GAP)
        sheet[bar:, left : left + width] = panel
        cv2.putText(sheet, title, (left + 2, bar - 5), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (0, 0, 0), 1, cv2.LINE_AA)
    return sheet


def enlarge(image: np.ndarray, scale: float) -> np.ndarray:
    """The image itself at a picture's scale."""
    return cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)


def write_picture(path: str, picture: np.ndarray) -> None:
    """Write an RGB picture. Raises OSError naming the path that cannot be written."""
    if not cv2.imwrite(path, np.ascontiguousarray(picture[..., ::-1])):
        raise OSError(f"{path}: could not be written")


def _fit(picture: np.ndarray, image: np.ndarray, scale: float) -> np.ndarray:
    size = (round(image.shape[1] * scale), round(image.shape[0] * scale))
    return cv2.resize(np.ascontiguousarray(picture), size, interpolation=cv2.INTER_AREA)
