"""Checks of registered datasets that fail before the first iteration, each with one line that says what to do."""

import contextlib
import logging
import os

from detectron2.data import DatasetCatalog, MetadataCatalog

logger = logging.getLogger(__name__)

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


def check_metadata(dataset_name: str, *, needs_panoptic: bool = True) -> None:
    """Checks that training and evaluation will find the metadata they need.

    Call it before the first iteration: Detectron2 fills in the thing side on loading, but never the stuff side, and
    its evaluators miss that only after training.

    Args:
        needs_panoptic: the fields of panoptic evaluation are due; else only those of instances.

    Raises:
        KeyError: no dataset has that name.
        ValueError: names the missing fields, or maps whose ids don't fit the class names.
    """
    if dataset_name not in DatasetCatalog:
        raise KeyError(f"dataset '{dataset_name}' is not registered (DATASETS.TRAIN, DATASETS.TEST)")
    fields = _PANOPTIC_FIELDS if needs_panoptic else _THING_FIELDS
    metadata = MetadataCatalog.get(dataset_name)
    if any(metadata.get(field) is None for field in _THING_FIELDS):
        with contextlib.suppress(KeyError):  # its loader of "standard" sets stops where maps are missing
            DatasetCatalog.get(dataset_name)  # its loader of "separated" sets fills in the thing side
    missing = [field for field in fields if metadata.get(field) is None]
    if missing:
        raise ValueError(
            f"dataset '{dataset_name}' lacks the metadata {', '.join(missing)}; "
            "register it with rfpn.data.panoptic.register_panoptic, which derives them from the JSON"
        )
    for kind in ("thing", "stuff") if needs_panoptic else ("thing",):
        classes = getattr(metadata, f"{kind}_classes")
        ids = set(getattr(metadata, f"{kind}_dataset_id_to_contiguous_id").values())
        allowed = set(range(len(classes)))
        # A separated set may leave out semantic id 0, "things": no dataset category has it.
        if not (ids <= allowed and allowed - ids <= ({0} if kind == "stuff" else set())):
            raise ValueError(
                f"dataset '{dataset_name}': {kind}_dataset_id_to_contiguous_id does not map onto "
                f"0..{len(classes) - 1}, the {len(classes)} {kind}_classes"
            )


def check_class_counts(dataset_name: str, *, thing_classes: int, sem_seg_classes: int) -> None:
    """Checks MODEL.ROI_HEADS.NUM_CLASSES and MODEL.SEM_SEG_HEAD.NUM_CLASSES against a separated panoptic set.

    Raises:
        ValueError: the counts differ. A set without things may keep any ROI_HEADS.NUM_CLASSES.
    """
    metadata = MetadataCatalog.get(dataset_name)
    if metadata.get("stuff_classes") is None:
        raise ValueError(
            f"dataset '{dataset_name}' lacks the metadata stuff_classes; register it with register_panoptic"
        )
    things, stuff = len(metadata.thing_classes), len(metadata.stuff_classes)
    if things and thing_classes != things:
        raise ValueError(
            f"MODEL.ROI_HEADS.NUM_CLASSES is {thing_classes}, but '{dataset_name}' has {things} thing classes"
        )
    if sem_seg_classes != stuff:
        raise ValueError(
            f"MODEL.SEM_SEG_HEAD.NUM_CLASSES is {sem_seg_classes}, but '{dataset_name}' needs {stuff}: "
            f"{stuff - 1} stuff classes and class 0 for things"
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


def check_instances(dataset_name: str, dataset_dicts: list) -> None:
    """Logs how many instances are kept and how many crowd regions dropped.

    Raises:
        ValueError: there are crowd regions only, so nothing can be learned; often an exporter flagged RLE masks as
            crowds.
    """
    crowd = sum(a.get("iscrowd", 0) for d in dataset_dicts for a in d.get("annotations", ()))
    kept = sum(len(d.get("annotations", ())) for d in dataset_dicts) - crowd
    logger.info(f"{dataset_name}: {len(dataset_dicts)} images, {kept} instances kept, {crowd} crowd regions dropped")
    if crowd and not kept:
        raise ValueError(
            f"dataset '{dataset_name}': 0 instances kept, {crowd} dropped because 'iscrowd' is 1; "
            "set it to 0 where the mask is of one object"
        )
