import json
from pathlib import Path

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.datasets import register_coco_instances
from detectron2.data.datasets.coco_panoptic import register_coco_panoptic, register_coco_panoptic_separated
from detectron2.structures import BoxMode

from rfpn.data.build import build_train_loader, check_datasets
from rfpn.data.check import check_files, check_metadata, check_scored_instances
from rfpn.data.panoptic import register_panoptic_folder
from rfpn.data.records import check_boxes
from rfpn.data.semantic import prepare_split, split_of_folder
from tests.data.test_build import config
from tests.data.tiny_panoptic import CATEGORIES, edit_json, mixed_layouts, write_set

pytestmark = pytest.mark.usefixtures("catalogs")


def register_theirs(root, metadata):
    """Detectron2's own registration, as users do it, with label maps and instances in place."""
    paths = split_of_folder(str(root), "train")
    prepare_split(paths)
    register_coco_panoptic_separated(
        "tiny",
        metadata,
        paths.image_root,
        paths.panoptic_root,
        paths.panoptic_json,
        paths.sem_seg_root,
        paths.instances_json,
    )
    return "tiny_separated"


def test_A2_missing_stuff_metadata_is_found_before_training(tmp_path):
    # Detectron2 matches pictures and label maps by their names, so that loading alone works here.
    root = write_set(tmp_path / "set", [[(7, (0, 0, 20, 20), 0)]], extension="jpg")
    (root / "train/photo1.jpg").rename(root / "train/label1.jpg")
    path = root / "annotations/panoptic_train.json"
    path.write_text(path.read_text().replace("photo1.jpg", "label1.jpg"))
    name = register_theirs(root, {})
    assert len(DatasetCatalog.get(name)) == 1
    with pytest.raises(ValueError, match="stuff_classes, stuff_dataset_id_to_contiguous_id"):
        check_metadata(name)
    check_metadata(name, needs_panoptic=False)


def test_A1_standard_registration_without_metadata_is_found(tmp_path):
    root = write_set(tmp_path / "set", mixed_layouts())
    paths = split_of_folder(str(root), "train")
    register_coco_panoptic("standard", {}, paths.image_root, paths.panoptic_root, paths.panoptic_json)
    with pytest.raises(ValueError, match="'standard' lacks the metadata thing_classes"):
        check_metadata("standard")


def test_own_and_detectron2s_coco_metadata_pass(tmp_path):
    register_panoptic_folder("tiny", str(write_set(tmp_path / "set", mixed_layouts())), "train")
    check_metadata("tiny")
    check_metadata("coco_2017_val_panoptic_separated")


def test_maps_that_do_not_fit_the_names_are_found(tmp_path):
    register_panoptic_folder("tiny", str(write_set(tmp_path / "set", mixed_layouts())), "train")
    MetadataCatalog.get("tiny").thing_classes.append("extra")
    with pytest.raises(ValueError, match="thing_dataset_id_to_contiguous_id"):
        check_metadata("tiny")


def test_unknown_name():
    with pytest.raises(KeyError, match="nowhere"):
        check_metadata("nowhere")


def test_A4_missing_folders_are_named(tmp_path):
    root = write_set(tmp_path / "set", mixed_layouts())
    register_panoptic_folder("tiny", str(root), "train", derive_missing=False)
    with pytest.raises(FileNotFoundError, match="panoptic_stuff_train.*instances_train.json.*prepare_coco"):
        check_files("tiny")
    (root / "train").rename(root / "elsewhere")
    with pytest.raises(FileNotFoundError, match="set/train;.*DETECTRON2_DATASETS"):
        check_files("tiny")


def test_A4_missing_detectron2_coco_is_named():
    with pytest.raises(FileNotFoundError, match="DETECTRON2_DATASETS"):
        check_files("coco_2017_val_100_panoptic_separated")


def test_files_made_at_first_use_may_be_missing(tmp_path):
    register_panoptic_folder("tiny", str(write_set(tmp_path / "set", mixed_layouts())), "train")
    check_files("tiny")


@pytest.mark.parametrize("name, field", [("maps", "ignore_label"), ("maps", "stuff_classes"), ("boxes", "thing_classes")])
def test_A2_metadata_that_scoring_needs_are_named(sets, name, field):
    cfg = config(name, name)
    cfg.MODEL.META_ARCHITECTURE = "SemanticSegmentor" if name == "maps" else "GeneralizedRCNN"
    records = DatasetCatalog.get(name)
    DatasetCatalog.remove(name)
    DatasetCatalog.register(name, lambda: records)
    delattr(MetadataCatalog.get(name), field)
    with pytest.raises(ValueError, match=f"'{name}' lacks the metadata {field}"):
        check_datasets(cfg)


@pytest.mark.parametrize("box", [None, [0, 0, 5], [0, 0, 5, "5"]])
def test_A2_boxes_are_due_where_they_are_scored(sets, box):
    edit_json(Path(sets.instances_json), lambda content: content["annotations"][1].update(bbox=box))
    with pytest.raises(ValueError, match="instances_train.json: annotation 2 has no 'bbox' of four finite numbers"):
        check_scored_instances("boxes", [], masks=False)


@pytest.mark.parametrize(
    "change",
    [{"area": "12"}, {"segmentation": [[1, 1, None, 5, 9, 9]]}, {"segmentation": [[0, 0, 1e300] * 2]}],
)
def test_A2_what_scoring_stumbles_over_is_named(sets, change):
    edit_json(Path(sets.instances_json), lambda content: content["annotations"][1].update(change))
    with pytest.raises(ValueError, match="instances_train.json: annotation 2(: 'area' must be| has .* coordinates in pixels)"):
        check_scored_instances("boxes", [], masks=True)


@pytest.mark.parametrize("train, test", [(["boxes"], "swapped"), (["boxes", "swapped"], "boxes")])
def test_B9_classes_that_are_known_once_a_set_is_loaded_are_compared(sets, tmp_path, train, test):
    path = MetadataCatalog.get("boxes").json_file
    content = json.loads(Path(path).read_text())
    names = [category["name"] for category in content["categories"]]
    for category, name in zip(content["categories"], reversed(names)):
        category["name"] = name
    (tmp_path / "swapped.json").write_text(json.dumps(content))
    register_coco_instances("swapped", {}, str(tmp_path / "swapped.json"), MetadataCatalog.get("boxes").image_root)
    cfg = config(test=test)
    cfg.MODEL.META_ARCHITECTURE, cfg.DATASETS.TRAIN = "GeneralizedRCNN", train
    check_datasets(cfg)
    with pytest.raises(ValueError, match="datasets 'boxes' and 'swapped' differ in thing_classes"):
        build_train_loader(cfg, seed=0)
    # boxes without classes are learned from any sets
    cfg.MODEL.META_ARCHITECTURE = "ProposalNetwork"
    check_datasets(cfg)
    build_train_loader(cfg, seed=0)


@pytest.mark.parametrize("one, other", [("sky", "road"), ("cat", "dog")])
def test_B9_categories_that_are_given_are_those_of_the_json(tmp_path, one, other):
    root = write_set(tmp_path / "set", mixed_layouts())
    swapped = [{**c, "name": {one: other, other: one}.get(c["name"], c["name"])} for c in CATEGORIES]
    register_panoptic_folder("tiny", str(root), "train", swapped)
    with pytest.raises(ValueError, match="its categories are not those that 'tiny' was registered with"):
        DatasetCatalog.get("tiny")


@pytest.mark.parametrize("box", [None, [1, 2, 3], [1, 2, 3, float("inf")]])
def test_an_instance_without_a_box_is_found_before_training(sets, box):
    cfg = config("boxes", "boxes")
    cfg.MODEL.META_ARCHITECTURE = "GeneralizedRCNN"
    records = DatasetCatalog.get("boxes")
    DatasetCatalog.remove("boxes")
    DatasetCatalog.register("boxes", lambda: records)
    crowd, own = {**records[0]["annotations"][0], "iscrowd": 1, "bbox": box}, records[0]["annotations"][-1]
    records[0]["annotations"].append(crowd)
    own["bbox"] = tuple(np.float32(own["bbox"]))
    build_train_loader(cfg, seed=0)
    own["bbox"] = box
    with pytest.raises(ValueError, match="an instance of .*photo1.png has no 'bbox' of four finite numbers"):
        build_train_loader(cfg, seed=0)


def test_rotated_boxes_are_boxes():
    turned = {"category_id": 0, "bbox": [10, 10, 4, 4, 30.0], "bbox_mode": BoxMode.XYWHA_ABS}
    check_boxes([{"file_name": "a.png", "annotations": [turned]}])
    for wrong in ({"bbox": [10, 10, 4, 4]}, {"bbox_mode": BoxMode.XYXY_ABS}, {"bbox": [10**400] * 5}):
        with pytest.raises(ValueError, match="a.png has no 'bbox' of (four|five) finite numbers"):
            check_boxes([{"file_name": "a.png", "annotations": [{**turned, **wrong}]}])
