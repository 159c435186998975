import json
import math
from contextlib import nullcontext

import numpy as np
import pytest
from detectron2.data import DatasetCatalog
from detectron2.data.datasets import register_coco_instances
from detectron2.data.datasets.coco_panoptic import register_coco_panoptic, register_coco_panoptic_separated
from PIL import Image

from rfpn.data.annotations import read_instances_json
from rfpn.data.panoptic import register_panoptic_folder
from rfpn.data.records import (
    check_boxes,
    check_label_maps,
    check_mask_format,
    check_masks,
    check_picture_sizes,
    check_pictures,
    load_records,
    training_records,
)
from rfpn.data.semantic import prepare_split, split_of_folder
from tests.data.tiny_panoptic import edit_json, mixed_layouts, write_set

pytestmark = pytest.mark.usefixtures("catalogs")
CROWD, DOG = (7, (0, 0, 20, 20), 1), (7, (30, 0, 50, 20), 0)


def register_ours(root):
    register_panoptic_folder("tiny", str(root), "train")
    return "tiny"


def register_theirs(root):
    """Detectron2's own registration; it pairs pictures with label maps by their names."""
    for path in (root / "train").iterdir():
        path.rename(path.with_name(path.name.replace("photo", "label")))
    path = root / "annotations/panoptic_train.json"
    path.write_text(path.read_text().replace("photo", "label"))
    paths = split_of_folder(str(root), "train")
    prepare_split(paths)
    register_coco_panoptic_separated(
        "tiny", {}, paths.image_root, paths.panoptic_root, paths.panoptic_json, paths.sem_seg_root, paths.instances_json
    )
    return "tiny_separated"


REGISTER = pytest.mark.parametrize("register", [register_ours, register_theirs])


@REGISTER
@pytest.mark.parametrize("filter_empty", [True, False])
def test_A9_all_crowd_set_is_an_error_with_counts(tmp_path, register, filter_empty):
    name = register(write_set(tmp_path / "set", [[CROWD], [CROWD]], extension="jpg"))
    with pytest.raises(ValueError, match=f"'{name}': 0 instances kept, 2 crowd regions dropped"):
        training_records(name, filter_empty=filter_empty)


@REGISTER
def test_A9_counts_are_logged(tmp_path, caplog, register):
    name = register(write_set(tmp_path / "set", [[CROWD, DOG], [CROWD]], extension="jpg"))
    with caplog.at_level("INFO", logger="rfpn"):
        assert len(training_records(name, filter_empty=True)) == 1
    assert f"{name}: 2 images, 1 instances kept, 2 crowd regions dropped, 1 images without" in caplog.text
    assert len(training_records(name, filter_empty=False)) == 2


def test_A9_detectron2s_coco_is_counted(monkeypatch, caplog, tmp_path):
    """The sets that Detectron2 registers itself go the same way."""
    (tmp_path / "a.jpg").touch()
    record = {"file_name": str(tmp_path / "a.jpg"), "image_id": 1, "annotations": [{"iscrowd": 1}, {"iscrowd": 0}]}
    monkeypatch.setitem(DatasetCatalog.data, "coco_2017_train_panoptic_separated", lambda: [record])
    with caplog.at_level("INFO", logger="rfpn"):
        training_records("coco_2017_train_panoptic_separated", filter_empty=True)
    assert "1 instances kept, 1 crowd regions dropped" in caplog.text


def test_A10_nothing_left_by_the_filter_names_its_key(tmp_path):
    name = register_ours(write_set(tmp_path / "set", mixed_layouts()[1:]))
    with pytest.raises(ValueError, match="none of 1 images has an instance.*FILTER_EMPTY_ANNOTATIONS False"):
        training_records(name, filter_empty=True)
    assert len(training_records(name, filter_empty=False)) == 1


def test_A1_label_maps_are_missing_in_the_standard_form(tmp_path):
    root = write_set(tmp_path / "set", mixed_layouts(), extension="jpg")
    paths = split_of_folder(str(root), "train")
    register_coco_panoptic("standard", {}, paths.image_root, paths.panoptic_root, paths.panoptic_json)
    with pytest.raises(ValueError, match="'standard' cannot be loaded.*prepare_coco_panoptic"):
        load_records("standard")
    with pytest.raises(ValueError, match="'standard': 1 of 1 images have no label map.*_separated"):
        check_label_maps("standard", [{"file_name": "a.jpg"}])


def test_A6_files_of_any_loader_are_looked_for(tmp_path):
    (tmp_path / "a.png").touch()
    first = {"file_name": str(tmp_path / "a.png"), "image_id": "first"}
    check_pictures([first, {"file_name": "https://example.org/b.png"}])
    DatasetCatalog.register("tiny", lambda: [first, {"file_name": str(tmp_path / "b.png"), "image_id": "second"}])
    with pytest.raises(FileNotFoundError, match="image second: .*b.png"):
        load_records("tiny")


def test_paths_may_be_pathlibs(tmp_path):
    Image.new("RGB", (4, 3)).save(tmp_path / "a.png")
    record = {"file_name": tmp_path / "a.png", "width": 4, "height": 3}
    check_pictures([record])
    check_picture_sizes([record])


def test_A6_missing_picture_under_detectron2s_loader_is_named(tmp_path):
    root = write_set(tmp_path / "set", mixed_layouts(), extension="jpg")
    name = register_theirs(root)
    (root / "train/label2.jpg").unlink()
    with pytest.raises((ValueError, OSError), match="label2.jpg"):
        load_records(name)


def test_A8_panoptic_json_under_detectron2s_instance_loader(tmp_path):
    root = write_set(tmp_path / "set", mixed_layouts())
    register_coco_instances("tiny", {}, str(root / "annotations/panoptic_train.json"), str(root / "train"))
    with pytest.raises(ValueError, match="panoptic_train.json: this is a panoptic JSON"):
        load_records("tiny")


def test_a_set_without_images_is_named():
    DatasetCatalog.register("tiny", list)
    with pytest.raises(ValueError, match="'tiny' has no images"):
        load_records("tiny")


@pytest.mark.parametrize("counts", ["0", "xyz", "00000", "Z" * 30, "\u00e9", 5])
def test_damaged_rle_is_named(tmp_path, counts):
    root = write_set(tmp_path / "set", mixed_layouts())
    paths = split_of_folder(str(root), "train")
    prepare_split(paths)
    edit_json(root / "annotations/instances_train.json", lambda c: c["annotations"][0]["segmentation"].update(counts=counts))
    register_panoptic_folder("tiny", str(root), "train")
    with pytest.raises(ValueError, match="annotation 1: 'segmentation'|/photo1.png: an RLE mask is damaged"):
        check_masks(load_records("tiny"))


@pytest.mark.parametrize(
    "polygon",
    [[1, 1, None, 5, 9, 9], [1e300] * 6, [[1, 1], [5, 1], [5, 5]], [1, 1, "5", 1, 5, 5], 7, [math.nan] * 6],
)
def test_what_is_no_polygon_is_named(tmp_path, polygon):
    """pycocotools ends the process, or fills the memory, on the first two."""
    records = [{"image_id": 1, "file_name": "a.png", "height": 9, "width": 9, "annotations": [{"segmentation": [polygon]}]}]
    for check in (check_masks, lambda records: check_mask_format(records, "polygon")):
        with pytest.raises(ValueError, match="a.png has a polygon that is no list of coordinates in pixels"):
            check(records)
    root = write_set(tmp_path / "set", mixed_layouts())
    prepare_split(split_of_folder(str(root), "train"))
    path = root / "annotations/instances_train.json"
    edit_json(path, lambda c: c["annotations"][0].update(segmentation=[polygon]))
    with pytest.raises(ValueError, match="instances_train.json: (annotation 1: 'segmentation' must be|not a JSON file)"):
        read_instances_json(str(path))


@pytest.mark.parametrize("change", [{"bbox": [10**400, 0, 1, 1]}, {"area": -(10**400)}])
def test_numbers_beyond_all_floats_are_named(tmp_path, change):
    root = write_set(tmp_path / "set", mixed_layouts())
    prepare_split(split_of_folder(str(root), "train"))
    path = root / "annotations/instances_train.json"
    edit_json(path, lambda content: content["annotations"][0].update(change))
    with pytest.raises(ValueError, match=f"annotation 1: '{next(iter(change))}' must be .*finite number"):
        read_instances_json(str(path))


@pytest.mark.parametrize("polygon, passes", [((1, 1, 5, 1, 5, 5), True), (np.ones(6), True), (np.ones((3, 2)), False)])
def test_polygons_of_other_loaders_may_be_arrays(polygon, passes):
    records = [{"image_id": 1, "file_name": "a.png", "height": 9, "width": 9, "annotations": [{"segmentation": [polygon]}]}]
    with nullcontext() if passes else pytest.raises(ValueError, match="no list of coordinates in pixels"):
        check_masks(records)


def test_an_array_for_a_mask_is_named():
    with pytest.raises(ValueError, match="an instance of a.png has an array for a mask"):
        check_mask_format([{"file_name": "a.png", "annotations": [{"segmentation": np.ones((9, 9))}]}], "bitmask")


@pytest.mark.parametrize(
    "size, words",
    [({"height": 9, "width": 9}, "an RLE mask is damaged"), ({"width": 9}, "its record has masks, but no height and width")],
)
def test_masks_of_records_without_an_id_or_a_size_are_named(size, words):
    """Both are legal in Detectron2's records."""
    records = [{"file_name": "a.png", "annotations": [{"segmentation": {"size": [9, 9], "counts": "b"}}], **size}]
    with pytest.raises(ValueError, match=f"^a.png: {words}"):
        check_masks(records)


def test_the_derived_instances_pass(tmp_path):
    check_masks(load_records(register_ours(write_set(tmp_path / "set", mixed_layouts()))))
    (derived,) = (tmp_path / "derived").glob("tiny-*/instances.json")
    assert json.loads(derived.read_text())["annotations"]


def test_A6_links_that_lead_nowhere_are_missing(tmp_path):
    """As git-annex and DVC leave them before pictures are fetched."""
    root = write_set(tmp_path / "set", mixed_layouts())
    (root / "train/photo2.png").rename(tmp_path / "elsewhere.png")
    (root / "train/photo2.png").symlink_to(tmp_path / "elsewhere.png")
    name = register_ours(root)
    load_records(name)
    (tmp_path / "elsewhere.png").unlink()
    with pytest.raises(FileNotFoundError, match="image 2: .*photo2.png"):
        load_records(name)


@pytest.mark.parametrize("box", [[1, 2, 3.5, 4], (1, 2, 3, 4), np.arange(4, dtype=np.float32)])
def test_boxes_of_any_loader_pass(box):
    check_boxes([{"file_name": "a.png", "annotations": [{"bbox": box}, {"iscrowd": 1}]}, {"file_name": "b.png"}])


@pytest.mark.parametrize("box", [None, [], [1, 2, 3], [1, 2, 3, math.nan], [10**400, 0, 1, 1], "1234", {"x": 1}])
@pytest.mark.parametrize("flag", [{}, {"iscrowd": 0}])
def test_objects_without_a_box_are_named(box, flag):
    with pytest.raises(ValueError, match="an instance of a.png has no 'bbox' of four finite numbers"):
        check_boxes([{"file_name": "a.png", "annotations": [{"bbox": box, **flag}]}])


@pytest.mark.parametrize("given", [{"file_name": "none.png", "height": None}, {"file_name": "s3://none.png"}])
def test_pictures_without_a_size_or_elsewhere_are_not_opened(given):
    record = {"file_name": "none.png", "width": 4, "height": 3}
    check_picture_sizes([{**record, **given}])
    with pytest.raises(FileNotFoundError, match="^none.png"):
        check_picture_sizes([record])
