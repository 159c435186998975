"""Data loaders with the mapper of a data set's kind, and the checks that come before any of them."""

from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, DatasetFromList, MapDataset, MetadataCatalog
from detectron2.data.samplers import InferenceSampler
from detectron2.utils import comm
from torch.utils.data import DataLoader

from rfpn.data.architectures import (
    check_class_counts,
    check_ignore_value,
    descends,
    predicted_things,
    scored_outputs,
)
from rfpn.data.batches import build_positioned_loader
from rfpn.data.check import (
    check_categories,
    check_files,
    check_kind,
    check_metadata,
    check_registered,
    check_same_classes,
    check_scored_instances,
    check_scored_metadata,
    check_up_to_date,
)
from rfpn.data.mapper import PanopticMapper
from rfpn.data.packing import PackedLoader
from rfpn.data.pathfinder.mapper import PathfinderMapper
from rfpn.data.records import (
    check_boxes,
    check_classes,
    check_label_maps,
    check_mask_format,
    check_masks,
    check_picture_sizes,
    check_scored_panoptic,
    load_records,
    training_records,
)
from rfpn.data.scored_records import check_convertible


def check_datasets(cfg: CfgNode, own_evaluator: bool = False) -> None:
    """Check every data set of a config before anything is built; those of ``DATASETS.TEST`` are loaded once.

    Args:
        own_evaluator: evaluators are not this project's, and score sets of other kinds too.

    Raises:
        KeyError, ValueError, OSError: naming the data set and what it lacks.
    """
    if not cfg.DATASETS.TRAIN:
        raise ValueError("DATASETS.TRAIN names no data set")
    for name in cfg.DATASETS.TRAIN:
        _check_dataset(cfg, name, needs_panoptic=name in cfg.DATASETS.TEST)
        check_ignore_value(name, cfg)
    for name in cfg.DATASETS.TEST:
        _evaluated_records(cfg, name)
        if not own_evaluator:
            scored_outputs(name, cfg.MODEL.META_ARCHITECTURE)
    check_same_classes((*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST), predicted_things(cfg)[0] > 0)


def build_train_loader(cfg: CfgNode, seed: int) -> DataLoader:
    """Endless training loader over ``DATASETS.TRAIN``; its ``batch_sampler`` goes to any position of the stream.

    Args:
        seed: of the order of samples and of their augmentation; the same on all processes.

    Raises:
        KeyError, ValueError, OSError: naming the data set or key at fault.
    """
    mapper = build_mapper(cfg, cfg.DATASETS.TRAIN[0], is_train=True)
    return build_positioned_loader(cfg, _training_records(cfg), mapper, seed)


def _training_records(cfg: CfgNode) -> list:
    records, (things, key) = [], predicted_things(cfg)
    for name in cfg.DATASETS.TRAIN:
        some = training_records(name, filter_empty=cfg.DATALOADER.FILTER_EMPTY_ANNOTATIONS)
        if things and _kind(name) != "pathfinder":
            check_classes(some, things, key)
            check_boxes(some)
        if cfg.MODEL.MASK_ON:
            check_mask_format(some, cfg.INPUT.MASK_FORMAT)
        if descends(cfg.MODEL.META_ARCHITECTURE, "PanopticFPN", "SemanticSegmentor"):
            check_label_maps(name, some)
        records += some
    # again, now that all are loaded: Detectron2's own sets have their classes only from then on
    check_same_classes((*cfg.DATASETS.TRAIN, *(name for name in cfg.DATASETS.TEST if name in DatasetCatalog)), things > 0)
    return records


def build_test_loader(cfg: CfgNode, dataset_name: str):
    """Loader over one data set for evaluation, checked first.

    Raises:
        KeyError, ValueError, OSError: naming the data set and what it lacks.
    """
    records = _evaluated_records(cfg, dataset_name)
    mapper = build_mapper(cfg, dataset_name, is_train=False)
    return PackedLoader(
        MapDataset(DatasetFromList(records, copy=False), mapper),
        batch_size=evaluation_batch(cfg) if _kind(dataset_name) == "pathfinder" else 1,
        sampler=InferenceSampler(len(records)),
        num_workers=cfg.DATALOADER.NUM_WORKERS,
    )


def evaluation_batch(cfg: CfgNode) -> int:
    """Images of a Pathfinder set that are evaluated together: as many as a process trains on.

    Models whose norms take the batch's statistics score lower on single images.

    Raises:
        ValueError: SOLVER.IMS_PER_BATCH is less than one for each process.
    """
    images, processes = cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.REFERENCE_WORLD_SIZE or comm.get_world_size()
    if images < processes:
        raise ValueError(f"SOLVER.IMS_PER_BATCH {images} must be at least the {processes} processes")
    return images // processes


def _check_dataset(cfg: CfgNode, name: str, needs_panoptic: bool) -> None:
    check_kind(name, cfg)
    kind = _kind(name)
    if kind == "pathfinder":
        return
    check_files(name)
    # sets of register_panoptic have made_on_use, and their loader checks this itself: hashing a large JSON takes a while
    if MetadataCatalog.get(name).get("made_on_use") is None:
        check_up_to_date(name)
    if kind == "coco_panoptic_seg" or descends(cfg.MODEL.META_ARCHITECTURE, "PanopticFPN"):
        check_metadata(name, needs_panoptic=needs_panoptic)
        check_class_counts(name, cfg)


def _evaluated_records(cfg: CfgNode, name: str) -> list:
    """Records of a set, checked for all that its evaluation will need, so that no training ends with a failing one."""
    _check_dataset(cfg, name, needs_panoptic=True)
    records = load_records(name)
    kind, scored = _kind(name), set()
    if kind != "pathfinder":
        check_picture_sizes(records)
    check_masks(records)
    if kind in ("coco", "coco_panoptic_seg", "sem_seg"):
        check_scored_metadata(name)
        scored = scored_outputs(name, cfg.MODEL.META_ARCHITECTURE)
    # _check_dataset has counted those of panoptic sets
    if kind in ("coco", "sem_seg"):
        check_class_counts(name, cfg)
    if "instances" in scored:
        check_scored_instances(name, records, masks=cfg.MODEL.MASK_ON)
        # with a JSON, classes are scored by it, whatever the records have
        if MetadataCatalog.get(name).get("json_file") is None:
            things, key = predicted_things(cfg)
            if things:
                check_classes(records, things, key)
            check_convertible(records, masks=cfg.MODEL.MASK_ON and "masks" in scored)
    if kind == "coco_panoptic_seg":
        content = check_categories(name)
        if "panoptic_seg" in scored:
            check_scored_panoptic(name, records, content)
    if "sem_seg" in scored:
        check_label_maps(name, records)
    return records


def build_mapper(cfg: CfgNode, dataset_name: str, is_train: bool):
    """The mapper of a data set's kind."""
    if _kind(dataset_name) == "pathfinder":
        return PathfinderMapper(cfg, is_train)
    return PanopticMapper(cfg, is_train)


def _kind(dataset_name: str) -> str:
    check_registered(dataset_name)
    return MetadataCatalog.get(dataset_name).get("evaluator_type")
