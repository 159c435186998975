"""What the keys of a configuration may be, as far as nothing else sees to it."""

import logging
import math
import sys
from numbers import Real

from detectron2.config import CfgNode
from detectron2.evaluation import verify_results

from rfpn.analysis.unrolling import has_recurrent_layer
from rfpn.config import flatten, get_cfg
from rfpn.data.architectures import descends, given_outputs
from rfpn.engine.optimizer import OPTIMIZERS
from rfpn.engine.step import DTYPES
from rfpn.evaluation import TASKS
from rfpn.layers.checks import COUNT, Range, check_setting
from rfpn.modeling.norms import check_norm_names
from rfpn.modeling.pathfinder import FEEDFORWARD_LAYERS
from rfpn.modeling.recurrent import recurrent_options

_PIXELS = Range(1, 100_000, whole=True)
_SHARE = Range(0, 1)
# scores must exceed it: one below 0 keeps those of 0 too
_SCORE_THRESHOLD = Range(-math.inf, 1)
_NOT_NEGATIVE = Range(0, sys.float_info.max)
_LAYERS = Range(0, 1000, whole=True)
_PIXELS_OR_AS_IS = Range(0, 100_000, whole=True)  # 0: no resizing
_BOX_LOSSES = ("smooth_l1", "giou", "diou", "ciou")
# keys on which Detectron2 stumbles late, without naming them or without a word (a threshold in percent, which nothing
# passes; a loss that is made worse; a box head of no channels), or with which a slip of the keyboard would fill the memory
_RULES = {
    # numpy takes 32 bits, and each process adds its number
    "SEED": Range(-math.inf, 2**32 - 2**16, whole=True),
    "DATALOADER.NUM_WORKERS": Range(0, 1024, whole=True),
    "DATALOADER.REPEAT_THRESHOLD": _SHARE,
    "INPUT.CROP.TYPE": ("relative_range", "relative", "absolute", "absolute_range"),
    "INPUT.FORMAT": ("BGR", "RGB", "L", "YUV-BT.601"),
    "INPUT.MAX_SIZE_TEST": _PIXELS,
    "INPUT.MAX_SIZE_TRAIN": _PIXELS,
    "INPUT.MIN_SIZE_TEST": _PIXELS_OR_AS_IS,
    "INPUT.MIN_SIZE_TRAIN_SAMPLING": ("choice", "range"),
    "INPUT.PATHFINDER_SIZE": Range(1, 4096, whole=True),
    "INPUT.RANDOM_FLIP": ("horizontal", "vertical", "none"),
    "MODEL.FPN.FUSE_TYPE": ("sum", "avg"),
    "MODEL.PANOPTIC_FPN.COMBINE.INSTANCES_CONFIDENCE_THRESH": _SHARE,
    "MODEL.PANOPTIC_FPN.COMBINE.OVERLAP_THRESH": _SHARE,
    "MODEL.PANOPTIC_FPN.INSTANCE_LOSS_WEIGHT": _NOT_NEGATIVE,
    "MODEL.PATHFINDER.FEEDFORWARD_LAYERS": FEEDFORWARD_LAYERS,
    "MODEL.RETINANET.BBOX_REG_LOSS_TYPE": _BOX_LOSSES,
    "MODEL.RETINANET.NMS_THRESH_TEST": _SHARE,
    "MODEL.RETINANET.SCORE_THRESH_TEST": _SCORE_THRESHOLD,
    "MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_TYPE": _BOX_LOSSES,
    "MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_WEIGHT": _NOT_NEGATIVE,
    "MODEL.ROI_BOX_HEAD.CONV_DIM": COUNT,
    "MODEL.ROI_BOX_HEAD.FC_DIM": COUNT,
    "MODEL.ROI_BOX_HEAD.NUM_CONV": _LAYERS,
    "MODEL.ROI_BOX_HEAD.NUM_FC": _LAYERS,
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": COUNT,
    "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": COUNT,
    "MODEL.ROI_HEADS.NMS_THRESH_TEST": _SHARE,
    "MODEL.ROI_HEADS.POSITIVE_FRACTION": _SHARE,
    "MODEL.ROI_HEADS.SCORE_THRESH_TEST": _SCORE_THRESHOLD,
    "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": COUNT,
    "MODEL.RPN.BATCH_SIZE_PER_IMAGE": COUNT,
    "MODEL.RPN.BBOX_REG_LOSS_TYPE": _BOX_LOSSES,
    "MODEL.RPN.BBOX_REG_LOSS_WEIGHT": _NOT_NEGATIVE,
    "MODEL.RPN.LOSS_WEIGHT": _NOT_NEGATIVE,
    "MODEL.RPN.NMS_THRESH": _SHARE,
    "MODEL.RPN.POSITIVE_FRACTION": _SHARE,
    "MODEL.RPN.POST_NMS_TOPK_TEST": COUNT,
    "MODEL.RPN.POST_NMS_TOPK_TRAIN": COUNT,
    "MODEL.RPN.PRE_NMS_TOPK_TEST": COUNT,
    "MODEL.RPN.PRE_NMS_TOPK_TRAIN": COUNT,
    "MODEL.SEM_SEG_HEAD.COMMON_STRIDE": (1, 2, 4, 8, 16, 32, 64, 128),
    "MODEL.SEM_SEG_HEAD.CONVS_DIM": COUNT,
    "MODEL.SEM_SEG_HEAD.LOSS_WEIGHT": _NOT_NEGATIVE,
    "SOLVER.ACCUMULATE": Range(1, 10_000, whole=True),
    "SOLVER.AMP.DTYPE": tuple(DTYPES),
    "SOLVER.BASE_LR": _NOT_NEGATIVE,
    "SOLVER.BIAS_LR_FACTOR": _NOT_NEGATIVE,
    "SOLVER.CHECKPOINT_PERIOD": COUNT,
    "SOLVER.CLIP_GRADIENTS.CLIP_TYPE": ("value", "norm"),
    "SOLVER.GAMMA": _NOT_NEGATIVE,
    "SOLVER.IMS_PER_BATCH": COUNT,
    "SOLVER.MAX_ITER": COUNT,
    "SOLVER.MOMENTUM": _NOT_NEGATIVE,
    "SOLVER.OPTIMIZER": OPTIMIZERS,
    "SOLVER.REFERENCE_WORLD_SIZE": Range(0, math.inf, whole=True),
    "SOLVER.SKIP_NONFINITE": Range(0, math.inf, whole=True),
    "SOLVER.WARMUP_FACTOR": _NOT_NEGATIVE,
    "SOLVER.WARMUP_ITERS": Range(0, math.inf, whole=True),
    "SOLVER.WARMUP_METHOD": ("linear", "constant"),
    "SOLVER.WEIGHT_DECAY": _NOT_NEGATIVE,
    "SOLVER.WEIGHT_DECAY_NORM": _NOT_NEGATIVE,
    "TEST.LOG_IMAGES": Range(0, 10_000, whole=True),
    "TEST.PRECISE_BN.NUM_ITER": COUNT,
    "TEST.PQ_WORKERS": Range(1, 1024, whole=True),
}
# switches of Detectron2 for what none of the models here has
_OFF = {"MODEL.KEYPOINT_ON": "keypoints", "TEST.AUG.ENABLED": "test-time augmentation"}
# those of TASKS that an evaluation of a Pathfinder model gives
_PATHFINDER_TASKS = ("pathfinder", "convergence")
# what a model must give for each of the other tasks; a task that is not listed needs nothing
_NEEDED = {
    "panoptic_seg": "panoptic_seg",
    "texture_conflict": "panoptic_seg",
    "no_texture_conflict": "panoptic_seg",
    "segm": "masks",
    "bbox": "instances",
    "sem_seg": "sem_seg",
}


def check_values(cfg: CfgNode) -> None:
    """Check each key by itself, and keys that must go together. Raises ValueError naming the key."""
    values, defaults = flatten(cfg), flatten(get_cfg())
    for key, value in values.items():
        # yacs lets None through whatever the type
        if value is None and defaults.get(key) is not None:
            raise ValueError(f"{key} must not be None")
    for key, rule in _RULES.items():
        check_setting(key, values[key], rule)
    for key, what in _OFF.items():
        if values[key]:
            raise ValueError(f"{key} must be False: Detectron2's {what} serves none of the models here")
    _check_solver(cfg.SOLVER)
    _check_pictures(cfg.INPUT)
    _check_model(cfg)


def _check_model(cfg: CfgNode) -> None:
    """Keys below MODEL that must go together."""
    check_norm_names(cfg)
    # checked even where the model reads none of them
    recurrent_options(cfg)
    architecture = cfg.MODEL.META_ARCHITECTURE
    if descends(architecture, "PathfinderNet") and cfg.TEST.PRECISE_BN.ENABLED:
        raise ValueError(f"TEST.PRECISE_BN.ENABLED must be False with {architecture}, whose norms keep no running statistics")
    if descends(architecture, "PanopticFPN") and not cfg.MODEL.MASK_ON:
        raise ValueError(f"MODEL.MASK_ON must be True with MODEL.META_ARCHITECTURE {architecture!r}, which pastes masks")
    head = cfg.MODEL.SEM_SEG_HEAD
    if not head.IGNORE_VALUE >= head.NUM_CLASSES:
        raise ValueError(
            f"MODEL.SEM_SEG_HEAD.IGNORE_VALUE must be none of the MODEL.SEM_SEG_HEAD.NUM_CLASSES {head.NUM_CLASSES} classes, "
            f"such as 255, got {head.IGNORE_VALUE}"
        )
    _check_box_weights(cfg.MODEL)
    for key in ("RPN.IOU_THRESHOLDS", "ROI_HEADS.IOU_THRESHOLDS", "ROI_BOX_CASCADE_HEAD.IOUS", "RETINANET.IOU_THRESHOLDS"):
        part, name = key.split(".")
        for threshold in cfg.MODEL[part][name]:
            check_setting(f"MODEL.{key}: a threshold", threshold, _SHARE)
    if cfg.MODEL.PROPOSAL_GENERATOR.NAME == "PrecomputedProposals":
        raise ValueError("MODEL.PROPOSAL_GENERATOR.NAME must not be PrecomputedProposals, which serve none of the models here")
    channels = 1 if cfg.INPUT.FORMAT == "L" else 3
    for key, value in (("PIXEL_MEAN", cfg.MODEL.PIXEL_MEAN), ("PIXEL_STD", cfg.MODEL.PIXEL_STD)):
        if len(value) != channels:
            raise ValueError(f"MODEL.{key} must have {channels} value(s) with INPUT.FORMAT {cfg.INPUT.FORMAT}, got {value}")
        for number in value:
            check_setting(f"MODEL.{key}: a value", number, Range(-sys.float_info.max, sys.float_info.max))
    if 0 in cfg.MODEL.PIXEL_STD:
        raise ValueError(f"MODEL.PIXEL_STD, by which pictures are divided, must not be 0, got {cfg.MODEL.PIXEL_STD}")


def _check_box_weights(node: CfgNode) -> None:
    """Weights of box regressions: Detectron2 unpacks them at the first box, and divides by them without a look."""
    rows = [(f"MODEL.{key}.BBOX_REG_WEIGHTS", node[key].BBOX_REG_WEIGHTS) for key in ("RPN", "ROI_BOX_HEAD", "RETINANET")]
    rows += [("MODEL.ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS: a row", row) for row in node.ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS]
    for name, row in rows:
        numbers = row if isinstance(row, (list, tuple)) else ()
        if len(numbers) not in (4, 5) or not all(isinstance(number, Real) and 0 < number < math.inf for number in numbers):
            raise ValueError(f"{name} must be 4 finite numbers above 0 (5 for rotated boxes), got {row!r}")


def _check_solver(node: CfgNode) -> None:
    """Schedule, rates and gradients' limits."""
    # newer versions of Detectron2 have a third schedule, and its keys
    schedules = ("WarmupMultiStepLR", "WarmupCosineLR", *["WarmupStepWithFixedGammaLR"] * ("NUM_DECAYS" in node))
    check_setting("SOLVER.LR_SCHEDULER_NAME", node.LR_SCHEDULER_NAME, schedules)
    for step in node.STEPS:
        check_setting("SOLVER.STEPS: an iteration", step, COUNT)
    rising = list(node.STEPS) == sorted(set(node.STEPS)) and node.MAX_ITER not in node.STEPS
    if node.LR_SCHEDULER_NAME == "WarmupMultiStepLR" and not rising:
        raise ValueError(f"SOLVER.STEPS must rise, and none be SOLVER.MAX_ITER {node.MAX_ITER}, got {tuple(node.STEPS)}")
    for pair in node.LR_FACTORS:
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str)):
            raise ValueError(f"SOLVER.LR_FACTORS must be pairs of a module's name and a number, got {pair!r} in it")
        check_setting("SOLVER.LR_FACTORS: a factor", pair[1], _NOT_NEGATIVE)
    for name in node.TRAIN_ONLY:
        if not isinstance(name, str):
            raise ValueError(f"SOLVER.TRAIN_ONLY must be names of modules, got {name!r} in it")
    if node.WEIGHT_DECAY_BIAS is not None:
        check_setting("SOLVER.WEIGHT_DECAY_BIAS", node.WEIGHT_DECAY_BIAS, _NOT_NEGATIVE)
    if node.NESTEROV and node.OPTIMIZER == "SGD" and node.MOMENTUM <= 0:
        raise ValueError(f"SOLVER.NESTEROV needs a SOLVER.MOMENTUM above 0, got {node.MOMENTUM}")
    clip = node.CLIP_GRADIENTS
    if clip.ENABLED and not 0 < clip.CLIP_VALUE < math.inf:
        raise ValueError(f"SOLVER.CLIP_GRADIENTS.CLIP_VALUE must be above 0, got {clip.CLIP_VALUE}")
    if clip.ENABLED and not clip.NORM_TYPE > 0:
        raise ValueError(f"SOLVER.CLIP_GRADIENTS.NORM_TYPE must be above 0, such as 2, got {clip.NORM_TYPE}")


def _check_pictures(node: CfgNode) -> None:
    """Sizes of training pictures and of what is cut out of them."""
    sizes, sampling = node.MIN_SIZE_TRAIN, node.MIN_SIZE_TRAIN_SAMPLING
    for size in sizes:
        check_setting("INPUT.MIN_SIZE_TRAIN", size, _PIXELS_OR_AS_IS)
    if not sizes or (sampling == "range" and not (len(sizes) == 2 and sizes[0] <= sizes[1])):
        wanted = "the least and the largest size" if sampling == "range" else "one size or more"
        raise ValueError(f"INPUT.MIN_SIZE_TRAIN must be {wanted} with INPUT.MIN_SIZE_TRAIN_SAMPLING {sampling!r}, got {sizes}")
    crop = node.CROP
    if len(crop.SIZE) != 2:
        raise ValueError(f"INPUT.CROP.SIZE must be two numbers, got {crop.SIZE}")
    for size in crop.SIZE:
        if crop.TYPE.startswith("absolute"):
            check_setting("INPUT.CROP.SIZE", size, _PIXELS)
        elif not (isinstance(size, Real) and 0 < size <= 1):
            raise ValueError(f"INPUT.CROP.SIZE must lie in (0, 1] with INPUT.CROP.TYPE {crop.TYPE!r}, got {size!r}")


def check_scaling(cfg: CfgNode) -> None:
    """Raise ValueError where a training's batch cannot be scaled to the number of processes."""
    images, processes = cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.REFERENCE_WORLD_SIZE
    if processes and images % processes:
        raise ValueError(
            f"SOLVER.IMS_PER_BATCH {images} is no multiple of the {processes} processes of SOLVER.REFERENCE_WORLD_SIZE; set "
            "that to 0 to take batch size, learning rate and schedule as they are written"
        )


def check_expected_results(cfg: CfgNode) -> None:
    """Raise ValueError where the scores of an evaluation could not be compared with TEST.EXPECTED_RESULTS."""
    expected = cfg.TEST.EXPECTED_RESULTS
    architecture = cfg.MODEL.META_ARCHITECTURE
    given = {None, *given_outputs(architecture)}
    if not cfg.MODEL.MASK_ON:
        given.discard("masks")
    # its boxes have no classes, and so a recall ("box_proposals") but no AP
    if descends(architecture, "ProposalNetwork"):
        given.discard("instances")
    tasks = tuple(task for task in TASKS if task != "pathfinder" and _NEEDED.get(task) in given)
    if descends(architecture, "PathfinderNet"):
        tasks = _PATHFINDER_TASKS
    # other architectures may have a recurrent layer of their own
    if descends(architecture, "PathfinderNet", "GeneralizedRCNN") and not has_recurrent_layer(cfg):
        tasks = tuple(task for task in tasks if task != "convergence")
    for row in expected:
        if not (isinstance(row, (list, tuple)) and len(row) == 4 and isinstance(row[1], str)):
            raise ValueError(f"TEST.EXPECTED_RESULTS must be a list of [task, metric, score, tolerance], got {row!r} in it")
        check_setting("TEST.EXPECTED_RESULTS: a task", row[0], tasks)
        for name, value in zip(("score", "tolerance"), row[2:]):
            check_setting(f"TEST.EXPECTED_RESULTS: a {name}", value, Range(-math.inf, math.inf))
    if expected and len(cfg.DATASETS.TEST) != 1:
        raise ValueError(
            f"TEST.EXPECTED_RESULTS is for one data set, but DATASETS.TEST is {cfg.DATASETS.TEST}; set the former to []"
        )


def verify_expected_results(cfg: CfgNode, results: dict) -> None:
    """Compare the scores of an evaluation with TEST.EXPECTED_RESULTS; SystemExit where they are others.

    Raises:
        ValueError: naming a task or a metric that the evaluation did not give.
    """
    for task, metric, *_ in cfg.TEST.EXPECTED_RESULTS:
        for kind, name, given in (("task", task, results), ("metric", metric, results.get(task, {}))):
            if name not in given:
                found = ", ".join(given) or "none"
                lacks = f"has the {kind} {name}, which the evaluation did not give"
                raise ValueError(f"TEST.EXPECTED_RESULTS {lacks}; it gave {found}")
    try:
        verify_results(cfg, results)
    except SystemExit:
        logging.getLogger("rfpn").error(
            "these are not the scores in TEST.EXPECTED_RESULTS; on another data set, or with another batch, set it to []"
        )
        raise
