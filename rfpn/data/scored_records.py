"""What records of a set without a JSON must hold for AP: Detectron2 makes them into one, and fails only after training."""

from detectron2.structures import BoxMode

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
        if not _is_id(image_id):
            words = "to be scored its record must have an image_id, an integer or a string"
            raise ValueError(f"{path}: {words}, got {image_id!r}")
        if None in (record.get("width"), record.get("height")):
            raise ValueError(f"{path}: its record has no width and height; scoring needs both")
        if isinstance(image_id, str) != isinstance(next(iter(bearers), image_id), str):
            words = "image_ids must be all integers or all strings, since scoring sorts them"
            raise ValueError(f"{path}: {words}, got {image_id!r}")
        if image_id in bearers:
            words = f"its image_id {image_id} is that of {bearers[image_id]} too"
            raise ValueError(f"{path}: {words}; scoring tells pictures apart by it")
        bearers[image_id] = path
        for annotation in record.get("annotations", ()):
            if fault := box_fault(annotation) or _mode_fault(annotation) or _mask_fault(annotation, masks):
                raise ValueError(f"an instance of {path} has {fault}; scoring needs it")


def _is_id(value) -> bool:
    """Whether JSON gives it back as it is: any string, and whole numbers but NumPy's integers."""
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _mode_fault(annotation: dict) -> str:
    mode = annotation.get("bbox_mode")
    return "" if mode in _BOX_MODES else f"no 'bbox_mode' among {', '.join(m.name for m in _BOX_MODES)}, but {mode!r}"


def _mask_fault(annotation: dict, due: bool) -> str:
    """What Detectron2 or JSON cannot take in a mask that ``rfpn.data.records.check_masks`` lets pass."""
    mask = annotation.get("segmentation", [])
    if not isinstance(mask, (list, dict)) and (mask is not None or not due):
        remedy = "leave 'segmentation' out" if mask is None else "pycocotools.mask.encode makes it"
        return f"a mask of type {type(mask).__name__}, not polygons or RLE ({remedy})"
    if not mask:
        return "no mask" if due else ""
    if isinstance(mask, dict):
        return "" if _is_plain(mask["size"]) else "an RLE mask whose 'size' is not of Python's own numbers"
    if not all(_is_plain(polygon) and len(polygon) >= 6 and len(polygon) % 2 == 0 for polygon in mask):
        return "a polygon that is no list of three points or more in Python's own numbers (an array's tolist() has them)"
    return ""


def _is_plain(numbers) -> bool:
    # JSON knows no NumPy; by types, of which there are few, since sets have millions of coordinates
    return isinstance(numbers, (list, tuple)) and all(issubclass(kind, (int, float)) for kind in set(map(type, numbers)))
