"""What keys may be: a value that cannot work is named before anything starts."""

import math
from pathlib import Path

import pytest

from rfpn.engine.rules import check_expected_results, verify_expected_results
from rfpn.engine.setup import load_cfg

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["MODEL.MASK_ON", "False"], "MODEL.MASK_ON must be True"),
        (["MODEL.PIXEL_MEAN", "[1.0, 2.0]"], "MODEL.PIXEL_MEAN must have 3 value.s. with INPUT.FORMAT BGR"),
        (["INPUT.FORMAT", "L"], "MODEL.PIXEL_MEAN must have 1 value.s. with INPUT.FORMAT L"),
        (["TEST.AUG.ENABLED", "True"], "TEST.AUG.ENABLED must be False"),
        (["MODEL.PROPOSAL_GENERATOR.NAME", "PrecomputedProposals"], "MODEL.PROPOSAL_GENERATOR.NAME must not be Precomputed"),
        (["MODEL.PIXEL_MEAN", "['a', 1.0, 1.0]"], "MODEL.PIXEL_MEAN: a value must be a number, got 'a'"),
        (["MODEL.PIXEL_STD", "[1.0, 1.0, 'a']"], "MODEL.PIXEL_STD: a value must be a number, got 'a'"),
        (["MODEL.PIXEL_STD", "[1.0]"], "MODEL.PIXEL_STD must have 3 value"),
        (["MODEL.SEM_SEG_HEAD.IGNORE_VALUE", "3"], "MODEL.SEM_SEG_HEAD.IGNORE_VALUE must be none of .* 54 classes"),
        (["MODEL.SEM_SEG_HEAD.IGNORE_VALUE", "-1"], "MODEL.SEM_SEG_HEAD.IGNORE_VALUE must be none of"),
        (["INPUT.MIN_SIZE_TRAIN", "(8,)", "INPUT.MIN_SIZE_TRAIN_SAMPLING", "range"], "MIN_SIZE_TRAIN must be the least"),
        (["INPUT.MIN_SIZE_TRAIN", "(9, 8)", "INPUT.MIN_SIZE_TRAIN_SAMPLING", "range"], "MIN_SIZE_TRAIN must be the least"),
        (["INPUT.CROP.TYPE", "absolute", "INPUT.CROP.SIZE", "[0.5, 64]"], "INPUT.CROP.SIZE must be a whole number"),
    ],
)
def test_keys_that_cannot_go_together_are_named(overrides, words):
    config = CONFIGS / "COCO-PanopticSegmentation" / "rfpn_R_50_1x.yaml"
    with pytest.raises(ValueError, match=words):
        load_cfg(str(config), overrides)


@pytest.mark.parametrize(
    "key, value",
    [
        ("INPUT.CROP.SIZE", "[0.0, 0.5]"),
        ("INPUT.CROP.SIZE", "[0.5, 64]"),
        ("INPUT.CROP.SIZE", "[0.5]"),
        ("INPUT.CROP.SIZE", "['a', 0.5]"),
        ("INPUT.CROP.TYPE", "foo"),
        ("TEST.PRECISE_BN.NUM_ITER", -1),
        ("INPUT.MAX_SIZE_TEST", 0),
        ("INPUT.MAX_SIZE_TRAIN", 0),
        ("INPUT.MIN_SIZE_TEST", -5),
        ("INPUT.MIN_SIZE_TRAIN", "()"),
        ("INPUT.MIN_SIZE_TRAIN", "(64, -1)"),
        ("INPUT.MIN_SIZE_TRAIN", "('a',)"),
        ("INPUT.MIN_SIZE_TRAIN_SAMPLING", "foo"),
        ("INPUT.RANDOM_FLIP", "foo"),
        ("MODEL.FPN.NORM", "LN2"),
        ("MODEL.RETINANET.NORM", "LN2"),
        ("MODEL.KEYPOINT_ON", True),
        ("MODEL.WEIGHTS", None),
        ("OUTPUT_DIR", None),
        ("SEED", 5_000_000_000),
        ("SOLVER.LR_FACTORS", "('roi_heads.mask_head', 10.0)"),
        ("SOLVER.LR_FACTORS", "(('roi_heads.mask_head',),)"),
        ("SOLVER.LR_FACTORS", "((['roi_heads'], 10.0),)"),
        ("SOLVER.LR_FACTORS", "(('roi_heads.mask_head', -1.0),)"),
        ("SOLVER.LR_FACTORS", "(('roi_heads.mask_head', 'ten'),)"),
        ("INPUT.FORMAT", "foo"),
        ("MODEL.FPN.FUSE_TYPE", "foo"),
        ("MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION", 0),
        ("MODEL.PIXEL_STD", "[1.0, 0.0, 1.0]"),
        ("MODEL.PANOPTIC_FPN.COMBINE.INSTANCES_CONFIDENCE_THRESH", 50.0),
        ("MODEL.PANOPTIC_FPN.COMBINE.OVERLAP_THRESH", 50.0),
        ("MODEL.PANOPTIC_FPN.INSTANCE_LOSS_WEIGHT", -1.0),
        ("MODEL.RETINANET.BBOX_REG_WEIGHTS", "(1.0,)"),
        ("MODEL.RETINANET.NMS_THRESH_TEST", 50.0),
        ("MODEL.RETINANET.SCORE_THRESH_TEST", 50.0),
        ("MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_WEIGHT", -1.0),
        ("MODEL.ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS", "((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0))"),
        ("MODEL.ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS", "(10.0, 10.0, 5.0, 5.0)"),
        ("MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS", "(10.0, 10.0, 5.0)"),
        ("MODEL.RETINANET.BBOX_REG_LOSS_TYPE", "iou"),
        ("MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_TYPE", "iou"),
        ("MODEL.RPN.BBOX_REG_LOSS_TYPE", "l1"),
        ("MODEL.ROI_BOX_HEAD.NUM_CONV", -1),
        ("MODEL.ROI_BOX_HEAD.NUM_FC", -2),
        ("MODEL.ROI_BOX_HEAD.CONV_DIM", 0),
        ("MODEL.ROI_BOX_HEAD.FC_DIM", 0),
        ("MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS", "(10.0, 10.0, 5.0, 'x')"),
        ("MODEL.RPN.BBOX_REG_WEIGHTS", "(1.0, 1.0, 1.0, 0.0)"),
        ("MODEL.ROI_HEADS.NMS_THRESH_TEST", 50.0),
        ("MODEL.ROI_HEADS.SCORE_THRESH_TEST", 50.0),
        ("MODEL.RPN.BBOX_REG_LOSS_WEIGHT", -1.0),
        ("MODEL.RPN.LOSS_WEIGHT", -1.0),
        ("MODEL.RPN.NMS_THRESH", 70.0),
        ("MODEL.SEM_SEG_HEAD.LOSS_WEIGHT", -1.0),
        # no box is matched
        ("MODEL.RETINANET.IOU_THRESHOLDS", "[40, 50]"),
        ("MODEL.ROI_BOX_CASCADE_HEAD.IOUS", "(50, 60, 70)"),
        ("MODEL.ROI_HEADS.IOU_THRESHOLDS", "[50]"),
        ("MODEL.RPN.IOU_THRESHOLDS", "[30, 70]"),
        # no box is trained on
        ("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 0),
        ("MODEL.RPN.BATCH_SIZE_PER_IMAGE", 0),
        ("MODEL.RPN.POSITIVE_FRACTION", -0.5),
        ("MODEL.RPN.PRE_NMS_TOPK_TRAIN", -1),
        ("MODEL.SEM_SEG_HEAD.COMMON_STRIDE", 3),
        ("MODEL.SEM_SEG_HEAD.CONVS_DIM", 0),
        ("SOLVER.CLIP_GRADIENTS.CLIP_TYPE", "foo"),
        ("SOLVER.LR_SCHEDULER_NAME", "foo"),
        ("SOLVER.REFERENCE_WORLD_SIZE", -1),
        ("SOLVER.BIAS_LR_FACTOR", -1.0),
        ("SOLVER.MOMENTUM", -0.9),
        ("SOLVER.STEPS", "('x',)"),
        ("SOLVER.STEPS", "(0,)"),
        ("SOLVER.STEPS", "(30, 20)"),
        ("SOLVER.STEPS", "(20, 20)"),
        ("SOLVER.STEPS", "(40000,)"),
        ("SOLVER.LR_SCHEDULER_NAME", "WarmupStepWithFixedGammaLR"),
        ("SOLVER.TRAIN_ONLY", "([1],)"),
        ("SOLVER.WEIGHT_DECAY_BIAS", -5.0),
        ("TEST.LOG_IMAGES", -1),
        # where no model reads them
        ("MODEL.RECURRENT.GRADIENT", "rpb"),
        ("MODEL.RECURRENT.KERNEL_SIZE", 257),
        ("MODEL.RECURRENT.LIPSCHITZ.COEFFICIENT", 1.5),
        ("SOLVER.WARMUP_METHOD", "foo"),
        ("SOLVER.WEIGHT_DECAY", -1.0),
        ("SOLVER.WEIGHT_DECAY_NORM", -1.0),
        ("SOLVER.IMS_PER_BATCH", None),
    ],
)
def test_values_that_cannot_work_are_named(key, value):
    with pytest.raises(ValueError, match=key):
        load_cfg("", [key, value])


@pytest.mark.parametrize("value", [-0.05, 0.0, float("inf"), float("nan")])
def test_clipping_needs_a_limit_above_zero(value):
    """Clipping to a negative norm turns gradients around."""
    key = "SOLVER.CLIP_GRADIENTS.CLIP_VALUE"
    with pytest.raises(ValueError, match=key):
        load_cfg("", ["SOLVER.CLIP_GRADIENTS.ENABLED", True, key, value])
    load_cfg("", [key, value])


@pytest.mark.parametrize(
    "overrides, key",
    [
        ("SOLVER.CLIP_GRADIENTS.ENABLED True SOLVER.CLIP_GRADIENTS.NORM_TYPE 0.0", "SOLVER.CLIP_GRADIENTS.NORM_TYPE"),
        ("SOLVER.NESTEROV True SOLVER.MOMENTUM 0.0", "SOLVER.MOMENTUM"),
        ("MODEL.META_ARCHITECTURE PathfinderNet TEST.PRECISE_BN.ENABLED True", "TEST.PRECISE_BN.ENABLED"),
    ],
)
def test_values_that_cannot_work_together_are_named(overrides, key):
    with pytest.raises(ValueError, match=key):
        load_cfg("", overrides.split())


@pytest.mark.parametrize(
    "overrides",
    [
        "SEED -1 SOLVER.WEIGHT_DECAY_BIAS None INPUT.MIN_SIZE_TEST 0 INPUT.MIN_SIZE_TRAIN (0,)",
        "INPUT.MIN_SIZE_TRAIN (64,128) INPUT.MIN_SIZE_TRAIN_SAMPLING range INPUT.CROP.SIZE [1.0,0.1]",
        "INPUT.CROP.TYPE absolute_range INPUT.CROP.SIZE [32,64] SEED 4000000000",
        "SOLVER.LR_SCHEDULER_NAME WarmupCosineLR SOLVER.STEPS (30,20) SOLVER.MAX_ITER 20",
        "MODEL.RPN.BBOX_REG_WEIGHTS [1,1,1,1,1] MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS (10,10,5,5,1)",
        "MODEL.ROI_HEADS.SCORE_THRESH_TEST -1.0 MODEL.RETINANET.SCORE_THRESH_TEST -1.0 MODEL.RPN.NMS_THRESH 1.0",
    ],
)
def test_values_at_the_ends_are_taken(overrides):
    load_cfg("", overrides.split())


@pytest.mark.parametrize(
    "sets, expected",
    [
        (1, [["bbox", 50.0]]),
        (1, ["PQ"]),
        (2, [["bbox", "AP", 50.0, 1.0]]),
        (1, [["panoptic", "PQ", 50.0, 1.0]]),
        # the default architecture detects, and labels no stuff
        (1, [["panoptic_seg", "PQ", 50.0, 1.0]]),
        (1, [["sem_seg", "mIoU", 50.0, 1.0]]),
        (1, [["pathfinder", "IoU", 0.5, 0.1]]),
        (1, [["bbox", 3, 50.0, 1.0]]),
        (1, [["bbox", "AP", "50", 1.0]]),
        (1, [["bbox", "AP", 50.0, None]]),
        (1, [["bbox", "AP", math.nan, 1.0]]),
    ],
)
def test_expected_results_that_cannot_be_compared_are_refused(sets, expected):
    cfg = load_cfg("", ["DATASETS.TEST", ("one", "two")[:sets], "TEST.EXPECTED_RESULTS", expected])
    with pytest.raises(ValueError, match="TEST.EXPECTED_RESULTS"):
        check_expected_results(cfg)


@pytest.mark.parametrize("task", ["panoptic_seg", "segm", "bbox", "sem_seg", "texture_conflict", "convergence", "pathfinder"])
def test_expected_results_that_can_be_compared_are_taken(task):
    architecture = "PathfinderNet" if task == "pathfinder" else "PanopticFPN"
    overrides = ["MODEL.META_ARCHITECTURE", architecture, "MODEL.MASK_ON", True, "DATASETS.TEST", ("one",)]
    overrides += ["MODEL.ROI_MASK_HEAD.NAME", "HGRUMaskHead"]
    check_expected_results(load_cfg("", [*overrides, "TEST.EXPECTED_RESULTS", [[task, "PQ", 50, math.inf]]]))


@pytest.mark.parametrize(
    "architecture, masks, taken",
    [
        ("GeneralizedRCNN", True, ["segm", "bbox"]),
        ("GeneralizedRCNN", False, ["bbox"]),
        # its boxes have no classes
        ("ProposalNetwork", True, ["box_proposals"]),
    ],
)
def test_scores_that_the_evaluators_will_not_give_are_refused_before_training(architecture, masks, taken):
    model = ["MODEL.META_ARCHITECTURE", architecture, "MODEL.MASK_ON", masks, "DATASETS.TEST", ("one",)]
    for task in ("segm", "bbox", *taken):
        cfg = load_cfg("", [*model, "TEST.EXPECTED_RESULTS", [[task, "AP", 50.0, 1.0]]])
        if task in taken:
            check_expected_results(cfg)
            continue
        with pytest.raises(ValueError, match=f"TEST.EXPECTED_RESULTS: a task must be one of .*, got '{task}'"):
            check_expected_results(cfg)


@pytest.mark.parametrize(
    "overrides",
    [
        ["MODEL.META_ARCHITECTURE", "PathfinderNet", "MODEL.PATHFINDER.LAYER", "feedforward"],
        ["MODEL.META_ARCHITECTURE", "PanopticFPN", "MODEL.MASK_ON", True],
    ],
)
def test_convergence_is_expected_of_recurrent_layers_alone(overrides):
    expected = ["DATASETS.TEST", ("one",), "TEST.EXPECTED_RESULTS", [["convergence", "residual", 0.1, 0.1]]]
    with pytest.raises(ValueError, match="TEST.EXPECTED_RESULTS: a task must be one of .*, got 'convergence'"):
        check_expected_results(load_cfg("", [*overrides, *expected]))


def test_scores_are_compared_with_those_expected(caplog):
    cfg = load_cfg("", ["TEST.EXPECTED_RESULTS", [["bbox", "AP", 50.0, 1.0]]])
    verify_expected_results(cfg, {"bbox": {"AP": 50.5}})
    with pytest.raises(SystemExit):
        verify_expected_results(cfg, {"bbox": {"AP": 60.0}})
    assert "these are not the scores in TEST.EXPECTED_RESULTS" in caplog.text
    for results, given in (({}, "none"), ({"segm": {"AP": 50.0}}, "segm")):
        with pytest.raises(ValueError, match=f"has the task bbox, which the evaluation did not give; it gave {given}"):
            verify_expected_results(cfg, results)
    with pytest.raises(ValueError, match="has the metric AP, which the evaluation did not give; it gave AP50, AP-cat"):
        verify_expected_results(cfg, {"bbox": {"AP50": 50.0, "AP-cat": 50.0}})
