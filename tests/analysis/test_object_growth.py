"""Answers by step for the objects of the ground truth."""

from pathlib import Path

import numpy as np
import pytest
import torch
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.modeling import build_model
from detectron2.structures import BitMasks, Boxes, Instances

from rfpn.analysis.contour_growth import contour_growth
from rfpn.analysis.object_growth import _masks, _match, _targets, mask_growths, object_growths
from rfpn.engine.setup import load_cfg
from rfpn.layers import HGRUCell, RecurrentLayer
from rfpn.modeling import PathfinderNet
from tests.analysis.tiny_runs import SCENES, build

CONFIG = Path(__file__).parents[2] / "configs" / "quick_schedules" / "rfpn_quick.yaml"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = build_model(load_cfg(str(CONFIG), ["MODEL.DEVICE", "cpu", "MODEL.WEIGHTS", ""])).eval()
    model.roi_heads.mask_head.predictor.weight.data.normal_(std=1.0)  # masks that depend on the state
    return model


def record():
    generator = torch.Generator().manual_seed(0)
    masks = torch.zeros(2, 64, 96, dtype=torch.bool)
    masks[0, 10:30, 20:50] = masks[1, 40:60, 5:35] = True
    masks[1, 40:50, 5:20] = False
    truth = Instances((64, 96), gt_masks=BitMasks(masks), gt_classes=torch.tensor([3, 0]))
    truth.gt_boxes = BitMasks(masks).get_bounding_boxes()
    return {"image": torch.randint(0, 256, (3, 64, 96), generator=generator), "instances": truth}


def test_growth_is_the_head_run_for_so_many_steps(model):
    with torch.no_grad():
        growths = mask_growths(model, record(), 4, predicted=False)
        features = model.backbone(model.preprocess_image([record()]).tensor)
        heads = model.roi_heads
        pooled = heads.mask_pooler([features[name] for name in heads.mask_in_features], [record()["instances"].gt_boxes])
        for step in (1, 4):
            heads.mask_head.recurrent.test_steps = step
            logits = heads.mask_head.layers(heads.mask_head.recurrent(pooled).hidden)
            for index, (kind, _, growth) in enumerate(growths):
                np.testing.assert_allclose(growth[step - 1], logits[index, kind].sigmoid().numpy(), atol=1e-5)
    assert [kind for kind, *_ in growths] == [3, 0]
    assert growths[0][1].all() and growths[0][1].shape == growths[0][2].shape[1:] == (28, 28)
    assert growths[1][1][20, 20] and not growths[1][1][5, 5]  # the corner that is cut out


def test_masks_are_those_of_their_classes_or_the_only_ones():
    logits, classes = torch.randn(2, 5, 3, 3), torch.tensor([3, 0])
    assert torch.equal(_masks(logits, classes), torch.stack([logits[0, 3], logits[1, 0]]).sigmoid())
    assert torch.equal(_masks(logits[:, :1], classes), logits[:, 0].sigmoid())


def test_images_without_objects(model):
    empty = record()
    empty["instances"] = empty["instances"][:0]
    with torch.no_grad():
        assert mask_growths(model, empty, 2, predicted=True) == []


def test_objects_meet_the_predicted_box_of_their_class():
    truth = record()["instances"]
    boxes = torch.tensor([[20.0, 10, 50, 30], [21, 11, 50, 30], [5, 40, 15, 45]])
    found = Instances((64, 96), pred_boxes=Boxes(boxes), pred_classes=torch.tensor([1, 3, 0]))
    objects, matched = _match(truth, found)
    assert objects.tolist() == [0] and matched.tensor.tolist() == [[21, 11, 50, 30]]
    objects, matched = _match(truth, found[:0])
    assert len(objects) == len(matched) == 0


def test_masks_are_those_of_the_objects_that_were_found(model, monkeypatch):
    """Only the second of two objects has a predicted box."""
    truth = record()["instances"]
    found = Instances((64, 96), pred_boxes=truth.gt_boxes[1:], pred_classes=truth.gt_classes[1:])
    monkeypatch.setattr(
        "rfpn.analysis.object_growth.detect",
        lambda model, inputs: (model.backbone(model.preprocess_image(inputs).tensor), [found]),
    )
    with torch.no_grad():
        ((kind, mask, growth),) = mask_growths(model, record(), 2, predicted=True)
        (_, (_, mask_of_second, growth_of_second)) = mask_growths(model, record(), 2, predicted=False)
    assert kind == 0 and (mask == mask_of_second).all() and not mask.all()
    np.testing.assert_allclose(growth, growth_of_second, atol=1e-5)


def test_targets_are_numbered_through_all_batches():
    torch.manual_seed(0)
    model = PathfinderNet(layer=RecurrentLayer(HGRUCell(4, 3), 3), channels=4).eval()
    records = [{"image": torch.randint(256, (1, 8, 8)), "sem_seg": torch.randint(3, (8, 8))} for _ in range(3)]
    batches = [records[:2], records[2:]]
    with torch.no_grad():
        found = list(_targets(model, batches, 2))
        expected = np.concatenate([contour_growth(model, batch, 2) for batch in batches], axis=1)
    assert [one.image for one in found] == [0, 1, 2]
    np.testing.assert_array_equal(np.stack([one.growth for one in found], axis=1), expected)
    assert all((one.mask == (record["sem_seg"] == 1).numpy()).all() for one, record in zip(found, records))


def test_objects_of_scenes_come_as_in_evaluation(scenes):
    """Ground truth is read as in training, but neither its sizes nor its flips are taken."""
    found = []
    for size in ("(32,)", "(96,)"):
        cfg, model = build(SCENES, "INPUT.MIN_SIZE_TRAIN", size, "INPUT.MIN_SIZE_TEST", "64")
        found.append(list(object_growths(cfg, model, "tiny_scenes", 2, images=2)))
    records, names = DatasetCatalog.get("tiny_scenes"), MetadataCatalog.get("tiny_scenes").thing_classes
    things = [[names[thing["category_id"]] for thing in record["annotations"]] for record in records]
    for growths in found:
        assert [(one.image, one.name) for one in growths] == [(i, name) for i in (0, 1) for name in things[i]]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.growth, other.growth)
    assert {one.image for one in object_growths(cfg, model, "tiny_scenes", 1)} == {0, 1, 2}
