"""Dataset dicts of any registered set, with the checks that Detectron2's own loaders leave out."""

import logging
import os

import numpy as np
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.structures import BoxMode

from rfpn.data.annotations import is_polygon, read_instances_json, read_panoptic_json
from rfpn.data.check import PREPARE_COMMAND
from rfpn.data.files import first_few
from rfpn.data.images import upright_size
from rfpn.data.rle import fits

logger = logging.getLogger(__name__)


def load_records(dataset_name: str) -> list:
    """Detectron2 dataset dicts of one set, all of whose files are there.

    Raises:
        OSError, ValueError: naming the data set or file at fault, whichever loader it was registered with.
    """
    try:
        records = DatasetCatalog.get(dataset_name)
    except (AssertionError, AttributeError, IndexError, KeyError, TypeError) as error:  # Detectron2's loaders
        _check_annotation_files(dataset_name)
        raise ValueError(
            f"dataset '{dataset_name}' cannot be loaded ({type(error).__name__}: {error}); "
            f"if it is panoptic, check it with {PREPARE_COMMAND}"
        ) from error
    if not len(records):
        raise ValueError(f"dataset '{dataset_name}' has no images")
    check_pictures(records)
    return records


def check_pictures(records: list) -> None:
    """Every picture that records name must be there; folders are listed once rather than files asked one by one.

    Raises:
        FileNotFoundError: naming the first five with their images' ids.
    """
    listings = {}
    missing = []
    for number, record in enumerate(records):
        for key in ("file_name", "pan_seg_file_name", "sem_seg_file_name"):
            path = record.get(key)
            if path is None or "://" in str(path):
                continue
            folder, file = os.path.split(path)
            if folder not in listings:
                listings[folder] = _files_in(folder or ".")
            if file not in listings[folder]:
                missing.append(f"image {record.get('image_id', number)}: {path}")
    if missing:
        raise FileNotFoundError(f"missing files: {first_few(missing)}. Check the set with {PREPARE_COMMAND}")


def check_picture_sizes(records: list) -> None:
    """Every picture has, once EXIF orientation has turned it, the size that its record gives.

    Raises:
        ValueError: naming the first that has not. FileNotFoundError: it is missing.
    """
    for record in records:
        path, wanted = record["file_name"], (record.get("width"), record.get("height"))
        if None in wanted or "://" in str(path):
            continue
        size = upright_size(path)
        if size != wanted:
            raise ValueError(
                f"{path}: the picture is {size[0]}x{size[1]} pixels where image {record.get('image_id')} has "
                f"{wanted[0]}x{wanted[1]}; if it is its EXIF orientation that turns it, "
                "annotate it as it is shown, or remove the orientation"
            )


def _files_in(folder: str) -> set[str]:
    if not os.path.isdir(folder):
        return set()
    with os.scandir(folder) as entries:
        # a link may lead nowhere
        return {entry.name for entry in entries if not entry.is_symlink() or os.path.exists(entry.path)}


def check_label_maps(dataset_name: str, records: list) -> None:
    """Every record names a label map, as Panoptic FPN needs.

    Raises:
        ValueError: Detectron2's "standard" panoptic form, which has none, or another set without them.
    """
    without = [record for record in records if record.get("sem_seg_file_name") is None]
    if without:
        raise ValueError(
            f"dataset '{dataset_name}': {len(without)} of {len(records)} images have no label map (sem_seg_file_name); "
            "name the set with '_separated' at its end, or register it with rfpn.data.panoptic.register_panoptic"
        )


def check_scored_panoptic(dataset_name: str, records: list, content: dict) -> None:
    """Every annotation of a set's panoptic JSON, whose ``content`` this is, has its PNG and one of the set's ``records``.

    Raises:
        ValueError: naming the first image that the set's loader leaves out. FileNotFoundError: naming the PNGs.
    """
    metadata, given = MetadataCatalog.get(dataset_name), {record["image_id"] for record in records}
    left_out = [annotation["image_id"] for annotation in content["annotations"] if annotation["image_id"] not in given]
    if left_out:
        raise ValueError(
            f"dataset '{dataset_name}': {len(left_out)} annotated images of {metadata.panoptic_json} are not among its "
            f"records, the first is image {left_out[0]}; scoring needs them: give the set a panoptic JSON without them"
        )
    paths = [(a["image_id"], os.path.join(metadata.panoptic_root, a["file_name"])) for a in content["annotations"]]
    check_pictures([{"image_id": image_id, "pan_seg_file_name": path} for image_id, path in paths])


def check_masks(records: list) -> None:
    """Every polygon is one, and every RLE mask compressed and whole, as scoring needs it; see :mod:`rfpn.data.rle`.

    Raises:
        ValueError: naming the picture.
    """
    for record in records:
        for annotation in record.get("annotations", ()):
            mask = annotation.get("segmentation")
            _check_rle(mask, record)
            _check_polygons(mask, record)


def _check_rle(mask, record: dict) -> None:
    if not isinstance(mask, dict):
        return
    size = record.get("height"), record.get("width")
    if None in size:
        raise ValueError(f"{record['file_name']}: its record has masks, but no height and width; give it both")
    if not fits(mask, size):
        plain = isinstance(mask.get("counts"), list)
        what = "is not compressed; pycocotools.mask.frPyObjects does it" if plain else "is damaged"
        raise ValueError(f"{record['file_name']}: an RLE mask {what}")


def _check_polygons(mask, record: dict) -> None:
    # on other values pycocotools fills the memory or ends the process
    if isinstance(mask, list) and not all(is_polygon(list(p) if isinstance(p, (tuple, np.ndarray)) else p) for p in mask):
        raise ValueError(f"an instance of {record['file_name']} has a polygon that is no list of coordinates in pixels")


def trained_on(record: dict) -> list[dict]:
    """The annotations of a record that are trained on: all but crowd regions."""
    return [annotation for annotation in record.get("annotations", ()) if not annotation.get("iscrowd", 0)]


def check_classes(records: list, classes: int, key: str) -> None:
    """Every object that is trained on is of one of ``classes`` classes, which ``key`` counts.

    Raises:
        ValueError: naming the first record with another, or with what is no class.
    """
    for record in records:
        for annotation in trained_on(record):
            found = annotation.get("category_id")
            whole = isinstance(found, (int, np.integer)) and not isinstance(found, bool)
            # Detectron2 takes a negative one for a region to leave out
            if not (whole and 0 <= found < classes):
                raise ValueError(
                    f"{record['file_name']}: has an instance of class {found!r:.80}, but {key} is {classes}: "
                    f"category_id is a whole number from 0 to {classes - 1}"
                )


def check_boxes(records: list) -> None:
    """Every object that is trained on has a box.

    Raises:
        ValueError: naming the first record with an object that has none, or one of other than four finite numbers, five of a
            rotated one.
    """
    for record in records:
        for annotation in trained_on(record):
            if fault := box_fault(annotation):
                raise ValueError(f"an instance of {record['file_name']} has {fault}")


def box_fault(annotation: dict) -> str:
    """What an annotation has in the place of a box; empty if it has one."""
    # Detectron2's mappers train on what is around a rotated box
    size = 5 if annotation.get("bbox_mode") == BoxMode.XYWHA_ABS else 4
    box = annotation.get("bbox")
    wanted = f"'bbox' of {'four' if size == 4 else 'five'} finite numbers"
    return "" if _are_finite(box, size) else f"no {wanted}, but {box!r:.80}"


def _are_finite(value, size: int) -> bool:
    """Whether a loader's value is a sequence of so many finite numbers."""
    # loaders may give tuples, NumPy's numbers, or integers beyond all floats
    try:
        numbers = np.asarray(value, dtype=float)
    except (TypeError, ValueError, OverflowError):
        return False
    return numbers.shape == (size,) and bool(np.isfinite(numbers).all())


def check_mask_format(records: list, mask_format: str) -> None:
    """Every object has a mask, which can be had in the format that training takes.

    Args:
        mask_format: ``INPUT.MASK_FORMAT``; a bitmask is made of RLE and polygons alike, polygons are not made of RLE.

    Raises:
        ValueError: naming the key, and the first record with an object without a mask, or an RLE mask for polygons.
    """
    if mask_format not in ("bitmask", "polygon"):
        raise ValueError(f"INPUT.MASK_FORMAT must be 'bitmask' or 'polygon', got {mask_format!r}")
    for record in records:
        masks = [annotation.get("segmentation") for annotation in trained_on(record)]
        if any(isinstance(mask, np.ndarray) for mask in masks):
            raise ValueError(f"an instance of {record['file_name']} has an array for a mask; pycocotools.mask.encode makes RLE")
        if not all(masks):
            raise ValueError(f"an instance of {record['file_name']} has no mask; give it one, or set MODEL.MASK_ON False")
        for mask in masks:
            _check_polygons(mask, record)
        if mask_format == "polygon" and any(isinstance(mask, dict) for mask in masks):
            raise ValueError(f"the instances of {record['file_name']} are RLE masks; set INPUT.MASK_FORMAT to 'bitmask'")


def training_records(dataset_name: str, *, filter_empty: bool) -> list:
    """:func:`load_records` for training; logs how many instances are kept and how many crowd regions dropped.

    Args:
        filter_empty: leave out images without instances (``DATALOADER.FILTER_EMPTY_ANNOTATIONS``).

    Raises:
        ValueError: there are crowd regions only, so nothing can be learned (often an exporter flagged RLE masks as
            crowds), or ``filter_empty`` leaves no image.
    """
    records = load_records(dataset_name)
    if not any("annotations" in record for record in records):
        return records
    crowds = [sum(a.get("iscrowd", 0) for a in r.get("annotations", ())) for r in records]
    instances = [len(r.get("annotations", ())) - crowd for r, crowd in zip(records, crowds)]
    counts = f"{sum(instances)} instances kept, {sum(crowds)} crowd regions dropped"
    logger.info(f"{dataset_name}: {len(records)} images, {counts}, {instances.count(0)} images without instances")
    if any(crowds) and not any(instances):
        raise ValueError(
            f"dataset '{dataset_name}': {counts} because 'iscrowd' is 1; set it to 0 where the mask covers a single object"
        )
    if not filter_empty:
        return records
    if not any(instances):
        raise ValueError(
            f"dataset '{dataset_name}': none of {len(records)} images has an instance; "
            "set DATALOADER.FILTER_EMPTY_ANNOTATIONS False to train on stuff alone"
        )
    return [record for record, count in zip(records, instances) if count]


def _check_annotation_files(dataset_name: str) -> None:
    """Raises what is wrong with a set's JSONs, where that is why its loader failed."""
    metadata = MetadataCatalog.get(dataset_name)
    for key, read in (("json_file", read_instances_json), ("panoptic_json", read_panoptic_json)):
        if metadata.get(key):
            read(metadata.get(key))
