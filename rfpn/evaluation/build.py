"""The one place that builds evaluators."""

import os

import numpy as np
from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.evaluation import DatasetEvaluator, DatasetEvaluators, SemSegEvaluator

from rfpn.data.images import read_label_map
from rfpn.evaluation.convergence import ConvergenceEvaluator
from rfpn.evaluation.instances import InstanceEvaluator
from rfpn.evaluation.panoptic import PanopticEvaluator
from rfpn.evaluation.pathfinder import PathfinderEvaluator


def build_evaluator(cfg: CfgNode, dataset_name: str, output_folder: str | None = None) -> DatasetEvaluator:
    """Evaluators for a data set by its ``evaluator_type``.

    ``coco_panoptic_seg``: semantic mIoU, box and mask AP, PQ, and of generated scenes PQ and false detections with and
    without a conflict of textures; ``sem_seg`` and ``coco``: the first, the second;
    ``pathfinder``: IoU of the target contour. Recurrent models: also how far they settled.

    Raises:
        ValueError: naming the data set whose type is unknown.
    """
    # predictions of several sets would overwrite each other: their files bear the same names
    own = [dataset_name] if len(cfg.DATASETS.TEST) > 1 else []
    folder = output_folder or os.path.join(cfg.OUTPUT_DIR, "inference", *own)
    metadata = MetadataCatalog.get(dataset_name)
    kind = metadata.evaluator_type
    convergence = ConvergenceEvaluator(_tolerance(cfg.MODEL.RECURRENT))
    if kind == "pathfinder":
        return DatasetEvaluators([PathfinderEvaluator(dataset_name), convergence])
    evaluators = []
    if kind in ("sem_seg", "coco_panoptic_seg") and cfg.MODEL.META_ARCHITECTURE != "GeneralizedRCNN":
        evaluators.append(SemSegEvaluator(dataset_name, distributed=True, output_dir=folder))
        # upstream's main branch reads label maps in a way that NumPy 2 refuses; 0.6 does not look at this attribute
        evaluators[-1].sem_seg_loading_fn = _read_labels
    # a set of stuff alone has no instances to score
    if kind in ("coco", "coco_panoptic_seg") and metadata.get("thing_classes") != []:
        tasks = ("bbox", "segm") if cfg.MODEL.MASK_ON else ("bbox",)
        evaluators.append(InstanceEvaluator(dataset_name, tasks, folder))
    if kind == "coco_panoptic_seg" and cfg.MODEL.META_ARCHITECTURE != "GeneralizedRCNN":
        workers, flags = cfg.TEST.PQ_WORKERS, ("texture_conflict",)
        evaluators.append(PanopticEvaluator(dataset_name, folder, workers=workers, flags=flags))
    if not evaluators:
        raise ValueError(f"data set {dataset_name}: no evaluator for evaluator_type {kind!r}")
    return DatasetEvaluators([*evaluators, convergence])


def _tolerance(recurrent: CfgNode) -> float:
    """Residual at which a recurrent layer stops in evaluation; 0 for never."""
    return recurrent.TEST_TOLERANCE or (recurrent.SOLVER_TOLERANCE if recurrent.SOLVER == "anderson" else 0.0)


def _read_labels(path: str, dtype: type) -> np.ndarray:
    return read_label_map(path).astype(dtype)
