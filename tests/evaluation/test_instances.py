"""AP counts the images that were evaluated, whatever ids annotations have."""

import json

import numpy as np
import pytest
import torch
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.datasets import register_coco_instances
from detectron2.structures import BitMasks, Boxes, BoxMode, Instances
from pycocotools import mask as rle

from rfpn.data.panoptic import register_panoptic
from rfpn.data.semantic import prepare_split, split_of_folder
from rfpn.evaluation.instances import InstanceEvaluator
from tests.data.tiny_panoptic import edit_json, mixed_layouts, write_set


def perfect_scores(name, folder, *detections) -> dict:
    """Of the ground truth as its own prediction."""
    evaluator = InstanceEvaluator(name, ("bbox", "segm"), str(folder), *detections)
    evaluator.reset()
    for record in DatasetCatalog.get(name):
        found = Instances((record["height"], record["width"]))
        boxes = torch.tensor([a["bbox"] for a in record["annotations"]], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        masks = [rle.decode(a["segmentation"]).astype(bool) for a in record["annotations"]]
        found.pred_boxes, found.scores = Boxes(boxes), torch.ones(len(boxes))
        none = torch.zeros(0, *found.image_size, dtype=torch.bool)
        # PyTorch 2.6 takes no list of NumPy 2.4's booleans
        found.pred_masks = BitMasks(torch.tensor(np.stack(masks))).tensor if masks else none
        found.pred_classes = torch.tensor([a["category_id"] for a in record["annotations"]], dtype=torch.long)
        evaluator.process([record], [{"instances": found}])
    return evaluator.evaluate()


def number_from_zero(content):
    for number, annotation in enumerate(content["annotations"]):
        annotation["id"] = number


def name_by_text(content):
    for number, annotation in enumerate(content["annotations"]):
        annotation["id"] = f"a{number}"


def leave_out_fields(content):
    for annotation in content["annotations"]:
        del annotation["area"], annotation["iscrowd"]


def halve(content):
    kept = content["images"][:2]
    content["images"] = kept
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] in {image["id"] for image in kept}]


@pytest.mark.parametrize(
    "case, instances, panoptic",
    [
        ("as_made", None, None),
        ("from_zero", number_from_zero, None),
        ("text", name_by_text, None),
        ("fields", leave_out_fields, None),
        ("subset", None, halve),
    ],
)
def test_perfect_predictions_score_100(tmp_path, case, instances, panoptic):
    root = write_set(tmp_path / "set", mixed_layouts() * 2)
    paths = split_of_folder(str(root), "train")
    prepare_split(paths)
    # the panoptic JSON may then be another, as that of another program's maps
    (root / "panoptic_stuff_train/source.json").unlink()
    for kind, change in (("instances", instances), ("panoptic", panoptic)):
        path = root / f"annotations/{kind}_train.json"
        if change:
            edit_json(path, change)
    assert len(json.loads((root / "annotations/instances_train.json").read_text())["images"]) == 4
    name = f"instances_{case}"
    register_panoptic(name, **paths._asdict())
    scores = perfect_scores(name, tmp_path / "out")
    assert scores["bbox"]["AP"] == pytest.approx(100) and scores["segm"]["AP"] == pytest.approx(100)


def test_all_detections_of_an_image_count(tmp_path):
    """COCO counts 100, which is few for nuclei."""
    layout = [(7, (x, y, x + 3, y + 3), 0) for x in range(0, 64, 4) for y in range(0, 48, 4)]
    paths = split_of_folder(str(write_set(tmp_path / "set", [layout])), "train")
    prepare_split(paths)
    register_panoptic("instances_many", **paths._asdict())
    scores = {most: perfect_scores("instances_many", tmp_path / "out", *most) for most in ((), (30,), (400,))}
    for task in ("bbox", "segm"):
        assert scores[()][task]["AP"] == scores[30,][task]["AP"] < 60
        assert scores[400,][task].keys() == scores[()][task].keys()
        assert [scores[400,][task][key] for key in ("AP", "AP50", "AP75", "APs")] == pytest.approx([100] * 4)


def test_records_without_a_json_are_those_of_now(tmp_path):
    """Detectron2 takes what an earlier run converted."""
    mask = rle.encode(torch.ones(48, 64, dtype=torch.uint8).numpy().copy("F"))
    truth = {"bbox": [0.0, 0.0, 64.0, 48.0], "bbox_mode": BoxMode.XYWH_ABS, "category_id": 0, "segmentation": mask}
    record = {"file_name": "a.png", "image_id": 1, "height": 48, "width": 64, "annotations": [truth]}
    DatasetCatalog.register("instances_records", lambda: [record])
    MetadataCatalog.get("instances_records").set(evaluator_type="coco", thing_classes=["dog"])
    former = {"images": [{"id": 1}], "annotations": [], "categories": [{"id": 0}]}
    (tmp_path / "instances_records_coco_format.json").write_text(json.dumps(former))
    (tmp_path / "instances_records_coco_format.json.lock").touch()
    assert perfect_scores("instances_records", tmp_path)["bbox"]["AP"] == pytest.approx(100)
    # nor is another run of this process bound to what the first has converted
    record["image_id"] = 2
    record["annotations"] = [{**truth, "segmentation": None}]
    with pytest.raises(TypeError, match="segmentation"):
        perfect_scores("instances_records", tmp_path / "failed")
    record["annotations"] = [truth]
    assert MetadataCatalog.get("instances_records").get("json_file") is None
    assert perfect_scores("instances_records", tmp_path / "again")["bbox"]["AP"] == pytest.approx(100)


def test_areas_that_a_json_lacks_are_those_of_masks(tmp_path):
    """By which COCO tells small objects from large ones."""
    polygon = [10, 10, 50, 10, 50, 18, 18, 18, 18, 50, 10, 50]  # 576 pixels in a box of 1,600
    instance = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 10, 40, 40], "segmentation": [polygon]}
    image = {"id": 1, "file_name": "a.png", "height": 64, "width": 64}
    path = tmp_path / "areas.json"
    path.write_text(json.dumps({"images": [image], "annotations": [instance], "categories": [{"id": 1, "name": "x"}]}))
    register_coco_instances("areas", {}, str(path), str(tmp_path))
    try:
        DatasetCatalog.get("areas")
        for tasks, area in ((("bbox", "segm"), 576), (("bbox",), 1600)):
            (found,) = InstanceEvaluator("areas", tasks, str(tmp_path))._coco_api.dataset["annotations"]
            assert found["area"] == area
    finally:
        DatasetCatalog.remove("areas")
        MetadataCatalog.remove("areas")
