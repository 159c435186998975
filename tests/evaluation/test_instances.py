"""AP counts the images that were evaluated, whatever ids annotations have."""

import json

import pytest
import torch
from detectron2.data import DatasetCatalog
from detectron2.structures import BitMasks, Boxes, Instances
from pycocotools import mask as rle

from rfpn.data.panoptic import register_panoptic
from rfpn.data.semantic import prepare_split, split_of_folder
from rfpn.evaluation.instances import InstanceEvaluator
from tests.data.tiny_panoptic import edit_json, mixed_layouts, write_set


def perfect_scores(name, folder) -> dict:
    """Of the ground truth as its own prediction."""
    evaluator = InstanceEvaluator(name, ("bbox", "segm"), str(folder))
    evaluator.reset()
    for record in DatasetCatalog.get(name):
        found = Instances((record["height"], record["width"]))
        boxes = torch.tensor([a["bbox"] for a in record["annotations"]], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        masks = [rle.decode(a["segmentation"]).astype(bool) for a in record["annotations"]]
        found.pred_boxes, found.scores = Boxes(boxes), torch.ones(len(boxes))
        found.pred_masks = BitMasks(torch.tensor(masks)).tensor if masks else torch.zeros(0, *found.image_size, dtype=torch.bool)
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
    for path, change in ((root / "annotations/instances_train.json", instances), (root / "annotations/panoptic_train.json", panoptic)):
        if change:
            edit_json(path, change)
    assert len(json.loads((root / "annotations/instances_train.json").read_text())["images"]) == 4
    name = f"instances_{case}"
    register_panoptic(name, **paths._asdict())
    scores = perfect_scores(name, tmp_path / "out")
    assert scores["bbox"]["AP"] == pytest.approx(100) and scores["segm"]["AP"] == pytest.approx(100)
