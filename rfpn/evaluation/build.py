"""Evaluators of a data set: all that suit it, or the one of its main score."""

import os

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.evaluation import DatasetEvaluator, DatasetEvaluators

from rfpn.data.architectures import scored_outputs
from rfpn.evaluation.convergence import ConvergenceEvaluator
from rfpn.evaluation.instances import InstanceEvaluator
from rfpn.evaluation.panoptic import PanopticEvaluator
from rfpn.evaluation.pathfinder import PathfinderEvaluator
from rfpn.evaluation.semantic import SemanticEvaluator
from rfpn.fixed_point import stopping_tolerance

# names of evaluators' results, in the order of a report
TASKS = ("panoptic_seg", "texture_conflict", "no_texture_conflict", "pathfinder", "segm", "bbox", "box_proposals", "sem_seg")
TASKS += ("convergence",)
# evaluator_type -> the score that a model is judged by
MAIN_SCORES = {"coco_panoptic_seg": "PQ", "pathfinder": "IoU"}


def build_evaluator(cfg: CfgNode, dataset_name: str, output_folder: str | None = None) -> DatasetEvaluator:
    """Evaluators for a data set by its ``evaluator_type``.

    ``coco_panoptic_seg``: semantic mIoU, box and mask AP, PQ, and of generated scenes PQ and false detections with and
    without a conflict of textures; ``sem_seg`` and ``coco``: the first, the second; each as far as the model gives
    what it scores. ``pathfinder``: IoU of the target contour. Recurrent models: also how far they settled.

    Raises:
        ValueError: naming the data set whose type is unknown, or of which the model gives nothing to score.
    """
    # predictions of several sets would overwrite each other: their files bear the same names
    own = [dataset_name] if len(cfg.DATASETS.TEST) > 1 else []
    folder = output_folder or os.path.join(cfg.OUTPUT_DIR, "inference", *own)
    outputs = scored_outputs(dataset_name, cfg.MODEL.META_ARCHITECTURE)
    recurrent = cfg.MODEL.RECURRENT
    tolerance = stopping_tolerance(recurrent.SOLVER, recurrent.SOLVER_TOLERANCE, recurrent.TEST_TOLERANCE)
    convergence = ConvergenceEvaluator(tolerance)
    if MetadataCatalog.get(dataset_name).evaluator_type == "pathfinder":
        return DatasetEvaluators([PathfinderEvaluator(dataset_name), convergence])
    evaluators = []
    if "sem_seg" in outputs:
        evaluators.append(SemanticEvaluator(dataset_name, folder))
    if "instances" in outputs:
        tasks = ("bbox", "segm") if cfg.MODEL.MASK_ON and "masks" in outputs else ("bbox",)
        evaluators.append(InstanceEvaluator(dataset_name, tasks, folder, cfg.TEST.DETECTIONS_PER_IMAGE))
    if "panoptic_seg" in outputs:
        workers, flags = cfg.TEST.PQ_WORKERS, ("texture_conflict",)
        evaluators.append(PanopticEvaluator(dataset_name, folder, workers=workers, flags=flags))
    return DatasetEvaluators([*evaluators, convergence])


def build_main_evaluator(cfg: CfgNode, dataset_name: str) -> DatasetEvaluator:
    """The evaluator of the score in ``MAIN_SCORES`` of a set's ``evaluator_type``; writes no files."""
    if MetadataCatalog.get(dataset_name).evaluator_type == "pathfinder":
        return PathfinderEvaluator(dataset_name)
    return PanopticEvaluator(dataset_name, workers=cfg.TEST.PQ_WORKERS)
