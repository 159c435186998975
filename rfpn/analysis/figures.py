"""Pictures for people: segmentations beside their image and ground truth."""

import os
from contextlib import contextmanager
from functools import lru_cache

import cv2
import numpy as np
import torch
from detectron2.utils.visualizer import ColorMode, Visualizer
from matplotlib.transforms import Bbox
from PIL import Image, ImageDraw, ImageFont

from rfpn.data.annotations import read_panoptic_json
from rfpn.data.panoptic_png import read_panoptic_png

_GAP = 6
_BAR = 24
_FONT_SIZE = 14
# pixels around a label's letters
_LABEL_PAD = 1
_CONTOUR_COLOR = (255, 90, 40)
# boxes of a picture: a thousand would hide it
_PROPOSALS = 20


def draw_panoptic(image: np.ndarray, segments: np.ndarray, segments_info: list[dict], metadata, scale: float = 1.0):
    """Overlay of a panoptic segmentation; the same segmentation always gets the same colours.

    Args:
        image: (H, W, 3) RGB uint8. segments: (H, W) segment ids, 0 for void.
        segments_info: Detectron2's records: ``id``, ``category_id`` (contiguous), ``isthing``.
        metadata: names and colours of the data set's classes.
        scale: of the picture against the image.

    Returns:
        (scale·H, scale·W, 3) RGB uint8.
    """
    segments = torch.as_tensor(segments.astype(np.int64))
    return _draw(image, metadata, scale, lambda d: d.draw_panoptic_seg(segments, segments_info, area_threshold=0))


def draw_instances(image: np.ndarray, instances, metadata, scale: float = 1.0) -> np.ndarray:
    """Overlay of Detectron2's ``Instances`` on the CPU; sizes as :func:`draw_panoptic`."""
    return _draw(image, metadata, scale, lambda drawer: drawer.draw_instance_predictions(instances))


def draw_proposals(image: np.ndarray, proposals, metadata, scale: float = 1.0) -> np.ndarray:
    """The 20 surest boxes of a proposal network's ``Instances`` on the CPU; sizes as :func:`draw_panoptic`."""
    # sorted by Detectron2
    boxes = proposals.proposal_boxes[:_PROPOSALS]
    return _draw(image, metadata, scale, lambda drawer: drawer.overlay_instances(boxes=boxes))


def draw_semantic(image: np.ndarray, labels: np.ndarray, metadata, scale: float = 1.0) -> np.ndarray:
    """Overlay of a label map (H, W); sizes as :func:`draw_panoptic`."""
    return _draw(image, metadata, scale, lambda drawer: drawer.draw_sem_seg(labels, area_threshold=0))


def draw_contour(image: np.ndarray, contour: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """A contour in colour over its darkened image.

    Args:
        image: (H, W, 3) RGB uint8. contour: (h, w), target or its probability in 0..1, drawn where above 0.5.
        scale: of the picture against the image.

    Returns:
        (scale·H, scale·W, 3) RGB uint8.
    """
    picture = enlarge(image, scale)
    mask = cv2.resize((contour > 0.5).astype(np.uint8), picture.shape[1::-1], interpolation=cv2.INTER_NEAREST_EXACT) > 0
    picture = (picture * 0.6).astype(np.uint8)
    picture[mask] = _CONTOUR_COLOR
    return picture


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
    """Panels (H, W, 3) of one size in a row, each under its title (shortened where it is wider than the panel)."""
    height, width = panels[0].shape[:2]
    sheet = Image.new("RGB", (len(panels) * (width + _GAP) - _GAP, height + _BAR), "white")
    draw = ImageDraw.Draw(sheet)
    for index, (panel, title) in enumerate(zip(panels, titles)):
        left = index * (width + _GAP)
        sheet.paste(Image.fromarray(np.ascontiguousarray(panel)), (left, _BAR))
        while title and _font().getlength(title) > width - 4:
            title = title[:-2].rstrip() + "…" if len(title) > 2 else ""
        draw.text((left + 2, _BAR / 2), title, fill="black", font=_font(), anchor="lm")
    return np.asarray(sheet)


def stack_rows(rows: list[np.ndarray]) -> np.ndarray:
    """Pictures (H, W, 3) one below the other on white, however wide each is."""
    width = max(row.shape[1] for row in rows)
    padded = [
        np.pad(row, ((0, _GAP * (i + 1 < len(rows))), (0, width - row.shape[1]), (0, 0)), constant_values=255)
        for i, row in enumerate(rows)
    ]
    return np.concatenate(padded)


def enlarge(image: np.ndarray, scale: float) -> np.ndarray:
    """The image itself at a picture's scale."""
    return cv2.resize(image, _size(image, scale), interpolation=cv2.INTER_CUBIC)


class _Drawer(Visualizer):
    """Visualizer whose labels stay within the picture and, where there is room, off one another."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._labels: list[Bbox] = []

    def draw_text(self, *args, **kwargs):
        """Detectron2's, then moved."""
        output = super().draw_text(*args, **kwargs)
        label, size = output.ax.texts[-1], np.array(output.canvas.get_width_height())
        box = label.get_window_extent(output.canvas.get_renderer()).padded(_LABEL_PAD)
        inside = _shifted(box, (0, 0), size)
        # the nearest place that no other has, up or down by heights of the label
        free = (_shifted(inside, (0, rows * box.height), size) for rows in (0, 1, -1, 2, -2))
        place = next((p for p in free if not any(p.fully_overlaps(other) for other in self._labels)), inside)
        self._labels.append(place)
        to_pixels = output.ax.transData
        anchor = to_pixels.transform(label.get_position()) + place.min - box.min
        label.set_position(to_pixels.inverted().transform(anchor))
        return output

    def _change_color_brightness(self, color, brightness_factor):
        # in Python 3.10 lightened colours pass 1 by rounding, and Matplotlib refuses them
        return tuple(np.clip(super()._change_color_brightness(color, brightness_factor), 0, 1))


def _shifted(box: Bbox, by: tuple[float, float], size: np.ndarray) -> Bbox:
    """The box moved, and then into a picture of ``size`` (width, height), its left end first where it is wider."""
    start = np.maximum(np.minimum(box.min + by, size - box.size), 0)
    return Bbox.from_bounds(*start, *box.size)


def _draw(image: np.ndarray, metadata, scale: float, draw) -> np.ndarray:
    with _fixed_colors():
        drawn = draw(_Drawer(image, metadata, scale=scale, instance_mode=ColorMode.IMAGE)).get_image()
    return cv2.resize(np.ascontiguousarray(drawn), _size(image, scale), interpolation=cv2.INTER_AREA)


@contextmanager
def _fixed_colors():
    """Visualizer varies colours by numpy's global random state, which is left here as it was found."""
    state = np.random.get_state()
    np.random.seed(0)
    try:
        yield
    finally:
        np.random.set_state(state)


def _size(image: np.ndarray, scale: float) -> tuple[int, int]:
    return round(image.shape[1] * scale), round(image.shape[0] * scale)


@lru_cache
def _font() -> ImageFont.FreeTypeFont:
    from matplotlib.font_manager import findfont

    return ImageFont.truetype(findfont("DejaVu Sans"), _FONT_SIZE)
