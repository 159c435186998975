"""Data loaders with the mapper of a data set's kind, and the checks that come before any of them."""

from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, MetadataCatalog, build_detection_test_loader, build_detection_train_loader

from rfpn.data.check import check_class_counts, check_files, check_metadata
from rfpn.data.mapper import PanopticMapper
from rfpn.data.pathfinder.loader import build_pathfinder_test_loader
from rfpn.data.pathfinder.mapper import PathfinderMapper


def check_datasets(cfg: CfgNode) -> None:
    """Check every data set of a config before anything is built.

    Raises:
        KeyError, ValueError, OSError: naming the data set and what it lacks.
    """
    if not cfg.DATASETS.TRAIN:
        raise ValueError("DATASETS.TRAIN names no data set")
    evaluated = set(cfg.DATASETS.TEST)
    for name in dict.fromkeys((*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST)):
        kind = _kind(name)
        if kind == "pathfinder":
            continue
        check_files(name)
        if kind == "coco_panoptic_seg" or cfg.MODEL.META_ARCHITECTURE == "PanopticFPN":
            check_metadata(name, needs_panoptic=name in evaluated)
            check_class_counts(
                name,
                thing_classes=cfg.MODEL.ROI_HEADS.NUM_CLASSES,
                sem_seg_classes=cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES,
            )


def build_train_loader(cfg: CfgNode):
    """Endless training loader over ``DATASETS.TRAIN``."""
    return build_detection_train_loader(cfg, mapper=build_mapper(cfg, cfg.DATASETS.TRAIN[0], is_train=True))


def build_test_loader(cfg: CfgNode, dataset_name: str):
    """Loader over one data set for evaluation."""
    if _kind(dataset_name) == "pathfinder":
        return build_pathfinder_test_loader(cfg, dataset_name)
    return build_detection_test_loader(cfg, dataset_name, mapper=build_mapper(cfg, dataset_name, is_train=False))


def build_mapper(cfg: CfgNode, dataset_name: str, is_train: bool):
    """The mapper of a data set's kind."""
    if _kind(dataset_name) == "pathfinder":
        return PathfinderMapper(cfg, is_train)
    return PanopticMapper(cfg, is_train)


def _kind(dataset_name: str) -> str:
    if dataset_name not in DatasetCatalog:
        raise KeyError(f"data set {dataset_name!r} is not registered (DATASETS.TRAIN, DATASETS.TEST)")
    return MetadataCatalog.get(dataset_name).get("evaluator_type")
