"""Evaluators follow the data set's evaluator_type."""

import numpy as np
import pytest
import torch
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.evaluation import DatasetEvaluators
from detectron2.structures import Boxes, Instances

from rfpn.data.images import read_label_map
from rfpn.data.panoptic import register_panoptic_folder
from rfpn.data.scenes.dataset import write_scenes
from rfpn.data.scenes.render import SceneOptions
from rfpn.engine.setup import load_cfg
from rfpn.evaluation import build_evaluator
from rfpn.evaluation.convergence import ConvergenceEvaluator
from rfpn.evaluation.instances import InstanceEvaluator
from rfpn.evaluation.panoptic import PanopticEvaluator
from rfpn.evaluation.pathfinder import PathfinderEvaluator
from rfpn.evaluation.semantic import SemanticEvaluator
from tests.data.tiny_panoptic import CATEGORIES, mixed_layouts, write_set


@pytest.fixture
def cfg(tmp_path):
    cfg = load_cfg("", ["MODEL.META_ARCHITECTURE", "PanopticFPN", "MODEL.MASK_ON", "True", "MODEL.DEVICE", "cpu"])
    cfg.OUTPUT_DIR = str(tmp_path / "output")
    return cfg


def registered(root, categories, layouts):
    name = f"evaluators_{root.name}"
    write_set(root, layouts, categories)
    register_panoptic_folder(name, str(root), "train")
    DatasetCatalog.get(name)
    return name


def kinds(evaluator) -> list[type]:
    return [type(part) for part in evaluator._evaluators] if isinstance(evaluator, DatasetEvaluators) else [type(evaluator)]


def test_panoptic_sets_get_all_three(cfg, tmp_path, monkeypatch):
    monkeypatch.setenv("RFPN_DERIVED_DIR", str(tmp_path / "derived"))
    name = registered(tmp_path / "all", CATEGORIES, mixed_layouts())
    assert kinds(build_evaluator(cfg, name)) == [SemanticEvaluator, InstanceEvaluator, PanopticEvaluator, ConvergenceEvaluator]


@pytest.mark.parametrize("road_as, miou", [(2, 100), (1, 50)])
def test_semantic_scores_read_the_label_maps(cfg, tmp_path, monkeypatch, road_as, miou):
    """Perfect predictions, and ones that take road for sky: IoU of things 100, sky 50, road 0. Void does not count."""
    monkeypatch.setenv("RFPN_DERIVED_DIR", str(tmp_path / "derived"))
    layout = [(40, (0, 0, 64, 20), 0), (90, (0, 20, 64, 40), 0), (7, (0, 40, 32, 48), 0)]
    name = registered(tmp_path / f"semantic_{road_as}", CATEGORIES, [layout])
    evaluator = build_evaluator(cfg, name)._evaluators[0]
    evaluator.reset()
    (record,) = DatasetCatalog.get(name)
    labels = read_label_map(record["sem_seg_file_name"]).astype(np.int64)
    assert np.unique(labels).tolist() == [0, 1, 2, 255]
    predicted = np.choose(np.minimum(labels, 3), [0, 1, road_as, 0])
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(predicted), 3).permute(2, 0, 1)
    evaluator.process([record], [{"sem_seg": one_hot}])
    assert evaluator.evaluate()["sem_seg"]["mIoU"] == pytest.approx(miou)


def test_a_set_of_stuff_alone_has_no_instance_scores(cfg, tmp_path, monkeypatch):
    monkeypatch.setenv("RFPN_DERIVED_DIR", str(tmp_path / "derived"))
    stuff = [category for category in CATEGORIES if not category["isthing"]]
    layout = [(stuff[0]["id"], (0, 0, 64, 30), 0), (stuff[1]["id"], (0, 30, 64, 48), 0)]
    name = registered(tmp_path / "stuff", stuff, [layout, layout])
    assert kinds(build_evaluator(cfg, name)) == [SemanticEvaluator, PanopticEvaluator, ConvergenceEvaluator]


@pytest.mark.parametrize(
    "architecture, evaluators, tasks",
    [
        ("GeneralizedRCNN", [InstanceEvaluator], ("bbox", "segm")),
        ("RetinaNet", [InstanceEvaluator], ("bbox",)),
        ("ProposalNetwork", [InstanceEvaluator], ("bbox",)),
        ("SemanticSegmentor", [SemanticEvaluator], None),
        ("OneOfTheUsersOwn", [SemanticEvaluator, InstanceEvaluator, PanopticEvaluator], None),
    ],
)
def test_scores_are_of_what_the_model_gives(cfg, tmp_path, monkeypatch, architecture, evaluators, tasks):
    monkeypatch.setenv("RFPN_DERIVED_DIR", str(tmp_path / "derived"))
    name = registered(tmp_path / architecture, CATEGORIES, mixed_layouts())
    cfg.MODEL.META_ARCHITECTURE = architecture
    evaluator = build_evaluator(cfg, name)
    assert kinds(evaluator) == [*evaluators, ConvergenceEvaluator]
    assert tasks is None or evaluator._evaluators[0]._tasks == tasks


def test_masks_are_scored_where_the_model_has_them(cfg, tmp_path, monkeypatch):
    monkeypatch.setenv("RFPN_DERIVED_DIR", str(tmp_path / "derived"))
    name = registered(tmp_path / "boxes_alone", CATEGORIES, mixed_layouts())
    cfg.MODEL.META_ARCHITECTURE, cfg.MODEL.MASK_ON = "GeneralizedRCNN", False
    assert build_evaluator(cfg, name)._evaluators[0]._tasks == ("bbox",)


@pytest.mark.parametrize("configured, counted", [(30, 100), (100, 100), (400, 400)])
def test_as_many_detections_count_as_the_model_gives(cfg, tmp_path, monkeypatch, configured, counted):
    monkeypatch.setenv("RFPN_DERIVED_DIR", str(tmp_path / "derived"))
    name = registered(tmp_path / f"detections_{configured}", CATEGORIES, mixed_layouts())
    cfg.TEST.DETECTIONS_PER_IMAGE = configured
    assert build_evaluator(cfg, name)._evaluators[1]._max_dets_per_image == [1, 10, counted]


def test_proposals_are_scored(cfg, tmp_path, monkeypatch):
    monkeypatch.setenv("RFPN_DERIVED_DIR", str(tmp_path / "derived"))
    name = registered(tmp_path / "proposals", CATEGORIES, mixed_layouts())
    cfg.MODEL.META_ARCHITECTURE = "ProposalNetwork"
    evaluator = build_evaluator(cfg, name)
    evaluator.reset()
    records = DatasetCatalog.get(name)
    for record in records:
        boxes = torch.tensor([a["bbox"] for a in record["annotations"]], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        proposals = Instances((48, 64), proposal_boxes=Boxes(boxes), objectness_logits=torch.zeros(len(boxes)))
        evaluator.process([record], [{"proposals": proposals}])
    assert evaluator.evaluate()["box_proposals"]["AR@100"] == 100


def test_pathfinder(cfg):
    assert kinds(build_evaluator(cfg, "pathfinder_14_test")) == [PathfinderEvaluator, ConvergenceEvaluator]


@pytest.mark.parametrize(
    "options, expected", [({}, 0.01), ({"SOLVER": "anderson"}, 1e-4), ({"SOLVER": "anderson", "TEST_TOLERANCE": 0.05}, 0.05)]
)
def test_states_are_judged_by_the_tolerance_of_their_layer(cfg, options, expected):
    for key, value in options.items():
        cfg.MODEL.RECURRENT[key] = value
    evaluator = build_evaluator(cfg, "pathfinder_14_test")._evaluators[1]
    evaluator.process([], [{"residual": torch.tensor([expected * factor for factor in (0.5, 0.99, 1.01)])}])
    assert evaluator.evaluate()["convergence"]["unconverged_share"] == pytest.approx(1 / 3)


def test_predictions_of_several_sets_lie_apart(cfg, tmp_path, monkeypatch):
    monkeypatch.setenv("RFPN_DERIVED_DIR", str(tmp_path / "derived"))
    names = tuple(registered(tmp_path / folder, CATEGORIES, mixed_layouts()) for folder in ("first", "second"))
    for sets, folders in ((names[:1], ["inference"]), (names, [f"inference/{name}" for name in names])):
        cfg.DATASETS.TEST = sets
        for name, folder in zip(sets, folders):
            evaluator = build_evaluator(cfg, name)
            assert {part._output_dir for part in evaluator._evaluators[:3]} == {f"{cfg.OUTPUT_DIR}/{folder}"}


def test_a_model_that_gives_nothing_to_score_is_named(cfg):
    MetadataCatalog.get("evaluators_boxes").evaluator_type = "coco"
    cfg.MODEL.META_ARCHITECTURE = "SemanticSegmentor"
    with pytest.raises(ValueError, match="evaluators_boxes: no evaluator for .*'coco' with MODEL.META_ARCHITECTURE 'SemanticS"):
        build_evaluator(cfg, "evaluators_boxes")


def test_an_unknown_type_is_named(cfg):
    MetadataCatalog.get("evaluators_unknown").evaluator_type = "depth"
    with pytest.raises(ValueError, match="evaluators_unknown.*'depth'"):
        build_evaluator(cfg, "evaluators_unknown")


def test_scenes_with_a_conflict_of_textures_are_scored_apart(cfg, tmp_path):
    write_scenes(str(tmp_path / "scenes"), "val", 6, options=SceneOptions(height=64, width=64, texture_conflict=0.5))
    register_panoptic_folder("evaluators_scenes", str(tmp_path / "scenes"), "val")
    evaluator = build_evaluator(cfg, "evaluators_scenes")._evaluators[2]
    evaluator.reset()
    records = DatasetCatalog.get("evaluators_scenes")
    nothing = {"panoptic_seg": (torch.zeros(64, 64, dtype=torch.int32), [])}
    evaluator.process(records, [nothing] * len(records))
    results = evaluator.evaluate()
    images = {name: results[name]["images"] for name in ("texture_conflict", "no_texture_conflict")}
    missed = sum(results[name]["missed_things"] * count for name, count in images.items())
    assert sum(images.values()) == 6 and all(images.values())
    assert missed == pytest.approx(sum(len(record["annotations"]) for record in records))
