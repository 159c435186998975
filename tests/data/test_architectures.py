"""What models give and need, also those that are derived from Detectron2's and this project's."""

from pathlib import Path

import pytest
import torch
from detectron2.data import DatasetCatalog
from detectron2.modeling import META_ARCH_REGISTRY, GeneralizedRCNN, PanopticFPN
from detectron2.structures import Boxes, Instances

from rfpn.data.architectures import descends, scored_outputs
from rfpn.data.build import build_test_loader, build_train_loader, check_datasets
from rfpn.engine.rules import check_expected_results, check_values
from rfpn.evaluation import build_evaluator
from rfpn.modeling import PathfinderNet
from tests.data.test_build import config
from tests.data.tiny_panoptic import edit_json

pytestmark = pytest.mark.usefixtures("catalogs")


@pytest.fixture
def derived():
    """Registers a class derived from another; gives its name."""
    registered = []

    def register(base: type) -> str:
        name = f"Derived{base.__name__}"
        META_ARCH_REGISTRY.register(type(name, (base,), {}))
        registered.append(name)
        return name

    yield register
    for name in registered:
        del META_ARCH_REGISTRY._obj_map[name]


def test_derived_classes_are_scored_as_their_ancestors(sets, derived):
    assert scored_outputs("tiny", derived(PanopticFPN)) == scored_outputs("tiny", "PanopticFPN")
    assert scored_outputs("tiny", derived(GeneralizedRCNN)) == {"instances", "masks"}
    assert descends("DerivedPanopticFPN", "PanopticFPN") and not descends("GeneralizedRCNN", "PanopticFPN")


def test_a_function_that_makes_models_descends_from_nothing(monkeypatch):
    monkeypatch.setitem(META_ARCH_REGISTRY._obj_map, "made_model", lambda cfg: None)
    assert descends("made_model", "made_model") and not descends("made_model", "PanopticFPN")


def test_derived_classes_need_what_their_ancestors_need(sets, derived):
    cfg = config("boxes", "boxes")
    cfg.MODEL.META_ARCHITECTURE = derived(PanopticFPN)
    with pytest.raises(ValueError, match="'boxes' lacks the metadata stuff_classes"):
        check_datasets(cfg)
    cfg.MODEL.MASK_ON = False
    with pytest.raises(ValueError, match="MODEL.MASK_ON must be True with MODEL.META_ARCHITECTURE 'DerivedPanopticFPN'"):
        check_values(cfg)


def test_expected_results_of_a_derived_pathfinder_model_are_taken(derived):
    cfg = config(test="pathfinder_14_test")
    cfg.TEST.EXPECTED_RESULTS = [["pathfinder", "IoU", 0.8, 0.1]]
    with pytest.raises(ValueError, match="a task must be one of panoptic_seg"):
        check_expected_results(cfg)
    cfg.MODEL.META_ARCHITECTURE = derived(PathfinderNet)
    check_expected_results(cfg)


@pytest.mark.parametrize(
    "architecture, name, key",
    [
        ("GeneralizedRCNN", "boxes", "ROI_HEADS"),
        ("RetinaNet", "boxes", "RETINANET"),
        ("RetinaNet", "tiny", "RETINANET"),
        ("SemanticSegmentor", "maps", "SEM_SEG_HEAD"),
    ],
)
def test_A3_a_model_of_other_classes_is_not_scored(sets, architecture, name, key):
    """Detectron2 drops pixels that are taken for a class beyond the set's, and stops at such boxes after training."""
    cfg = config(name, name)
    cfg.MODEL.META_ARCHITECTURE, cfg.MODEL.MASK_ON = architecture, architecture == "GeneralizedRCNN"
    cfg.MODEL[key].NUM_CLASSES = 3
    check_datasets(cfg)
    cfg.MODEL[key].NUM_CLASSES = 4
    with pytest.raises(ValueError, match=f"MODEL.{key}.NUM_CLASSES is 4, but '{name}' needs 3, one for each"):
        build_test_loader(cfg, name)


@pytest.mark.parametrize("key, first", [("ROI_HEADS", "cat"), ("SEM_SEG_HEAD", "things")])
def test_A3_a_panoptic_model_counts_things_and_stuff(sets, key, first):
    cfg = config("tiny", "tiny")
    check_datasets(cfg)
    cfg.MODEL[key].NUM_CLASSES = 2
    with pytest.raises(ValueError, match=f"MODEL.{key}.NUM_CLASSES is 2, but 'tiny' needs 3, one for each of its .*: {first}"):
        check_datasets(cfg)


def test_classes_that_an_architecture_does_not_predict_are_not_counted(sets):
    """A panoptic set trains a RetinaNet too, whose heads of other architectures stand at their defaults."""
    cfg = config("tiny", "tiny")
    cfg.MODEL.META_ARCHITECTURE, cfg.MODEL.MASK_ON, cfg.MODEL.RETINANET.NUM_CLASSES = "RetinaNet", False, 3
    cfg.MODEL.ROI_HEADS.NUM_CLASSES, cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = 80, 54
    check_datasets(cfg)


def test_a_set_that_a_model_cannot_be_scored_on_is_named_as_such(sets):
    """Label maps have no thing classes that could be counted."""
    cfg = config("boxes", "maps")
    cfg.MODEL.META_ARCHITECTURE = "GeneralizedRCNN"
    with pytest.raises(ValueError, match="data set maps: no evaluator for evaluator_type 'sem_seg'"):
        check_datasets(cfg)


def test_proposals_have_no_classes(sets):
    cfg = config("boxes", "boxes")
    cfg.MODEL.META_ARCHITECTURE, cfg.MODEL.ROI_HEADS.NUM_CLASSES = "ProposalNetwork", 80
    check_datasets(cfg)


def test_label_maps_are_due_where_a_semantic_model_trains(sets):
    cfg = config("boxes", "maps")
    cfg.MODEL.META_ARCHITECTURE, cfg.MODEL.MASK_ON = "SemanticSegmentor", False
    with pytest.raises(ValueError, match="'boxes': 1 of 1 images have no label map"):
        build_train_loader(cfg, seed=0)


@pytest.mark.parametrize("mask", [None, []])
def test_masks_are_due_where_they_are_trained(sets, mask):
    edit_json(Path(sets.instances_json), lambda content: content["annotations"][0].update(segmentation=mask))
    cfg = config("boxes", "boxes")
    cfg.MODEL.META_ARCHITECTURE = "GeneralizedRCNN"
    with pytest.raises(ValueError, match="photo1.png has no mask; give it one, or set MODEL.MASK_ON False"):
        build_train_loader(cfg, seed=0)


def test_a_set_whose_truth_is_kept_back_gives_predictions_alone(sets, tmp_path):
    edit_json(Path(sets.instances_json), lambda content: content.pop("annotations"))
    cfg = config("boxes", "boxes")
    cfg.MODEL.META_ARCHITECTURE, cfg.OUTPUT_DIR = "GeneralizedRCNN", str(tmp_path)
    assert len(build_test_loader(cfg, "boxes")) == 2
    evaluator = build_evaluator(cfg, "boxes")
    evaluator.reset()
    records = DatasetCatalog.get("boxes")
    instances = Instances((48, 64), pred_boxes=Boxes(torch.zeros(0, 4)), scores=torch.zeros(0), pred_classes=torch.zeros(0))
    evaluator.process(records, [{"instances": instances}] * 2)
    assert evaluator.evaluate() == {}
    assert (tmp_path / "inference" / "coco_instances_results.json").read_text() == "[]"


def test_A3_an_instance_of_no_class_is_named_before_training(sets):
    records = DatasetCatalog.get("boxes")
    next(record for record in records if record["annotations"])["annotations"][0]["category_id"] = -1
    DatasetCatalog.remove("boxes")
    DatasetCatalog.register("boxes", lambda: records)
    cfg = config("boxes", "boxes")
    cfg.MODEL.META_ARCHITECTURE = "GeneralizedRCNN"
    with pytest.raises(ValueError, match="has an instance of class -1, but MODEL.ROI_HEADS.NUM_CLASSES is 3"):
        build_train_loader(cfg, seed=0)
    cfg.MODEL.META_ARCHITECTURE, cfg.MODEL.RETINANET.NUM_CLASSES = "RetinaNet", 5
    with pytest.raises(ValueError, match="has an instance of class -1, but MODEL.RETINANET.NUM_CLASSES is 5"):
        build_train_loader(cfg, seed=0)
