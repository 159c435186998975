"""Checks of registered datasets that fail before the first iteration, each with one line that says what to do."""

import contextlib
import os

from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, MetadataCatalog

from rfpn.data.annotations import is_box, is_number, is_polygon, read_panoptic_json, split_categories
from rfpn.data.architectures import is_pathfinder
from rfpn.data.files import first_few, read_json
from rfpn.data.stamps import made_from, stamped

PREPARE_COMMAND = "`python datasets/prepare_coco_panoptic.py --root <folder> --splits <split>`"

_THING_FIELDS = ("thing_classes", "thing_dataset_id_to_contiguous_id")
_PANOPTIC_FIELDS = _THING_FIELDS + (
    "stuff_classes",
    "stuff_dataset_id_to_contiguous_id",
    "panoptic_json",
    "panoptic_root",
    "ignore_label",
    "evaluator_type",
)
# evaluator_type of a set whose truth is not panoptic -> metadata that its evaluation reads
_SCORED_FIELDS = {"coco": ("thing_classes",), "sem_seg": ("stuff_classes", "ignore_label")}


def check_registered(dataset_name: str) -> None:
    """Raise KeyError where no data set has that name."""
    if dataset_name not in DatasetCatalog:
        raise KeyError(
            f"data set {dataset_name!r} is not registered (DATASETS.TRAIN, DATASETS.TEST); RFPN_IMPORT names modules that do"
        )


def check_kind(dataset: str, cfg: CfgNode) -> None:
    """Raise KeyError for a data set that is not registered, ValueError for a kind that the configured model cannot read."""
    check_registered(dataset)
    contours = MetadataCatalog.get(dataset).get("evaluator_type") == "pathfinder"
    if contours != is_pathfinder(cfg):
        kind = "a Pathfinder set" if contours else "no Pathfinder set"
        raise ValueError(f"{dataset} is {kind}, which {cfg.MODEL.META_ARCHITECTURE} cannot read")


def check_scored_metadata(dataset_name: str) -> None:
    """A loaded set of instances or of label maps has the metadata that Detectron2's evaluators read.

    Raises:
        ValueError: naming what the set lacks.
    """
    metadata = MetadataCatalog.get(dataset_name)
    missing = [field for field in _SCORED_FIELDS.get(metadata.evaluator_type, ()) if metadata.get(field) is None]
    if missing:
        raise ValueError(f"dataset '{dataset_name}' lacks the metadata {', '.join(missing)}, which its evaluation needs")


def check_scored_instances(dataset_name: str, records: list, *, masks: bool) -> None:
    """The instances JSON of a set has what its scoring needs.

    Args:
        records: of the set. masks: masks are scored too.

    Raises:
        ValueError: naming the file and the first image that is not in it, or annotation without a box or mask, or with a
            wrong one.
    """
    path = MetadataCatalog.get(dataset_name).get("json_file")
    if not path or not os.path.isfile(path):
        return
    content = read_json(path)
    known = {image["id"] for image in content["images"]}
    for record in records:
        if record["image_id"] not in known:
            image = f"image {record['image_id']} of '{dataset_name}'"
            raise ValueError(f"{path}: {image} is not among its images; scoring needs it")
    # a set whose truth is kept back has no annotations
    for annotation in content.get("annotations", ()):
        where = f"{path}: annotation {annotation.get('id')}"
        if not is_box(annotation.get("bbox")):
            raise ValueError(f"{where} has no 'bbox' of four finite numbers; scoring needs it")
        if not is_number(annotation.get("area", 0)):
            raise ValueError(f"{where}: 'area' must be a finite number of pixels, got {annotation['area']!r:.80}")
        mask = annotation.get("segmentation")
        polygons = mask if isinstance(mask, list) else ()
        # a polygon needs three points, so six numbers
        if masks and not (mask and all(is_polygon(polygon) and len(polygon) >= 6 for polygon in polygons)):
            raise ValueError(
                f"{where} has no mask, or a polygon of fewer than three points or that is no list of coordinates in pixels; "
                "give it one, or set MODEL.MASK_ON False"
            )


def check_metadata(dataset_name: str, *, needs_panoptic: bool = True) -> None:
    """Checks that training and evaluation will find the metadata they need.

    Call it before the first iteration: Detectron2 fills in the thing side on loading, but never the stuff side, and
    its evaluators miss that only after training.

    Args:
        needs_panoptic: the fields that panoptic evaluation needs are asked for; else only those of instances.

    Raises:
        KeyError: no dataset has that name.
        ValueError: names the missing fields, or maps whose ids don't fit the class names.
    """
    check_registered(dataset_name)
    fields = _PANOPTIC_FIELDS if needs_panoptic else _THING_FIELDS
    metadata = MetadataCatalog.get(dataset_name)
    if any(metadata.get(field) is None for field in _THING_FIELDS):
        with contextlib.suppress(Exception):  # what stops a loader is said when records are loaded
            DatasetCatalog.get(dataset_name)  # Detectron2's loader of "separated" sets fills in the thing side
    missing = [field for field in fields if metadata.get(field) is None]
    if missing:
        raise ValueError(
            f"dataset '{dataset_name}' lacks the metadata {', '.join(missing)}; "
            "register it with rfpn.data.panoptic.register_panoptic, which derives them from the JSON"
        )
    for kind in ("thing", "stuff") if needs_panoptic else ("thing",):
        classes = getattr(metadata, f"{kind}_classes")
        id_map = getattr(metadata, f"{kind}_dataset_id_to_contiguous_id")
        if not isinstance(classes, (list, tuple)) or not isinstance(id_map, dict):
            raise ValueError(f"dataset '{dataset_name}': {kind}_classes must be a list, and its id map a dict")
        ids, allowed = set(id_map.values()), set(range(len(classes)))
        # A separated set may leave out semantic id 0, "things": no dataset category has it.
        onto = ids <= allowed and allowed - ids <= ({0} if kind == "stuff" else set())
        if not onto or len(ids) < len(id_map):
            raise ValueError(
                f"dataset '{dataset_name}': {kind}_dataset_id_to_contiguous_id does not map one to one onto "
                f"0..{len(classes) - 1}, the {len(classes)} {kind}_classes"
            )


def check_categories(dataset_name: str) -> dict:
    """Reads the panoptic JSON of a set and checks that the id maps of its metadata hold the JSON's categories.

    Returns:
        What the JSON holds.

    Raises:
        OSError, ValueError: the JSON is wrong, or naming the category that the metadata lack or number otherwise.
    """
    metadata = MetadataCatalog.get(dataset_name)
    path = metadata.panoptic_json
    content = read_panoptic_json(path)
    split = split_categories(content["categories"], path)
    for kind in ("thing", "stuff"):
        key = f"{kind}_dataset_id_to_contiguous_id"
        # 0 is no category: it stands for "things" in Detectron2's own COCO metadata
        known, listed = {i: to for i, to in getattr(metadata, key).items() if i != 0}, getattr(split, f"{kind}_ids")()
        if known.keys() != listed.keys():
            raise ValueError(
                f"dataset '{dataset_name}': {key} has the category ids {_some(known.keys() - listed)} that the {kind} "
                f"categories of {path} lack, and lacks {_some(listed.keys() - known)}"
            )
        # label maps of other programs may number stuff in their own way
        own = kind == "thing" or metadata.get("made_on_use") or stamped(metadata.sem_seg_root)
        for category, number in listed.items():
            if own and known[category] != number:
                raise ValueError(
                    f"dataset '{dataset_name}': {key} numbers the category {category} {known[category]}, not {number}: "
                    f"numbers follow the ids of {path} in ascending order" + (", from 1" if kind == "stuff" else "")
                )
    return content


def check_same_classes(dataset_names: tuple, things: bool = True) -> None:
    """Checks that sets which are trained on or evaluated together number their classes alike.

    Args:
        things: the model tells classes of things apart; else those of stuff alone are compared.

    Raises:
        ValueError: naming two sets that differ.
    """
    first = {}
    for name in dataset_names:
        metadata = MetadataCatalog.get(name)
        for key in ("thing_classes", "stuff_classes") if things else ("stuff_classes",):
            value = metadata.get(key)
            other = first.setdefault(key, name) if value is not None else name
            if MetadataCatalog.get(other).get(key) != value:
                raise ValueError(f"datasets '{other}' and '{name}' differ in {key}; a model serves one list of classes")


def _some(ids: set) -> str:
    return first_few(sorted(ids, key=str)) or "none"


def check_up_to_date(dataset_name: str) -> None:
    """Checks that the label maps of a set were made of its panoptic JSON as it is now, where a stamp beside them tells.

    Raises:
        ValueError: they were made of another, or not all of them. OSError: the JSON cannot be read.
    """
    metadata = MetadataCatalog.get(dataset_name)
    maps, path = metadata.get("sem_seg_root"), metadata.get("panoptic_json")
    if maps and path and made_from(maps, path) is False:
        raise ValueError(
            f"{maps} is out of date: made from another {path}, or not finished; make it anew with {PREPARE_COMMAND}"
        )


def check_files(dataset_name: str) -> None:
    """Checks that the folders and JSONs of a registered set exist, Detectron2's own ``coco_2017_*`` sets included.

    Label maps and instances JSON may be missing where they are made at first use (metadata ``made_on_use``).

    Raises:
        FileNotFoundError: names every missing path and the command or variable that mends it.
    """
    metadata = MetadataCatalog.get(dataset_name)
    given = [metadata.get(key) for key in ("image_root", "panoptic_root", "panoptic_json")]
    missing = [path for path in given if path and not os.path.exists(path)]
    if missing:
        raise FileNotFoundError(
            f"dataset '{dataset_name}': missing {', '.join(missing)}; set DETECTRON2_DATASETS "
            f"(now {os.getenv('DETECTRON2_DATASETS', 'datasets')}) or see datasets/README.md"
        )
    made = [metadata.get(key) for key in ("sem_seg_root", "json_file")]
    missing = [path for path in made if path and not os.path.exists(path)]
    if missing and not metadata.get("made_on_use"):
        raise FileNotFoundError(
            f"dataset '{dataset_name}': missing {', '.join(missing)}; make it with {PREPARE_COMMAND}"
        )
