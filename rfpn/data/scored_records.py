"""What records of a set without a JSON must hold for AP: Detectron2 makes them into one, and fails only after training."""

import numpy as np
from detectron2.structures import BoxMode

from rfpn.data.annotations import is_polygon
from rfpn.data.records import box_fault

_BOX_MODES = (BoxMode.XYXY_ABS, BoxMode.XYWH_ABS, BoxMode.XYWHA_ABS)


def check_convertible(records: list, *, masks: bool) -> None:
    """Every record can be made into COCO's JSON, and is told from the others by its ``image_id``.

    Args:
        masks: masks are scored too, so that every object needs one.

    Raises:
        ValueError: naming the first picture whose record or instance lacks something, or holds what no JSON can.
    """
    bearers = {}
    for record in records:
        path, image_id = record["file_name"], record.get("image_id")
        if type(image_id) not in (int, str):
            words = "to be scored its record must have an image_id, an integer or a string"
            raise ValueError(f"{path}: {words}, got {image_id!r}")
        if None in (record.get("width"), record.get("height")):
            raise ValueError(f"{path}: its record has no width and height; scoring needs both")
        if image_id in bearers:
            words = f"its image_id {image_id} is that of {bearers[image_id]} too"
            raise ValueError(f"{path}: {words}; scoring tells pictures apart by it")
        bearers[image_id] = path
        for annotation in record.get("annotations", ()):
            if fault := box_fault(annotation) or _mode_fault(annotation) or _mask_fault(annotation.get("segmentation"), masks):
                raise ValueError(f"an instance of {path} has {fault}; scoring needs it")


def _mode_fault(annotation: dict) -> str:
    mode = annotation.get("bbox_mode")
    return "" if mode in _BOX_MODES else f"no 'bbox_mode' among {', '.join(m.name for m in _BOX_MODES)}, but {mode!r}"


def _mask_fault(mask, due: bool) -> str:
    """What is wrong with a mask in the sight of Detectron2 and JSON; RLE is looked at by ``rfpn.data.records.check_masks``."""
    if isinstance(mask, np.ndarray) or not isinstance(mask or [], (list, dict)):
        return f"a mask of type {type(mask).__name__}, not polygons or RLE (pycocotools.mask.encode makes it)"
    if not mask:
        return "no mask" if due else ""
    if isinstance(mask, list) and not all(map(_is_plain, mask)):
        return "a polygon that is no list of three points or more in Python's own numbers (an array's tolist() has them)"
    return ""


def _is_plain(polygon) -> bool:
    # JSON knows no NumPy; Detectron2 asks for three points
    numbers = isinstance(polygon, (list, tuple)) and all(isinstance(v, (int, float)) for v in polygon)
    return numbers and len(polygon) >= 6 and len(polygon) % 2 == 0 and is_polygon(list(polygon))
