"""Records of a set without a JSON are looked at before training, since Detectron2 makes them one only after it."""

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.structures import BoxMode
from pycocotools import mask as rle

from rfpn.data.build import check_datasets
from rfpn.data.scored_records import check_convertible
from tests.data.test_build import config

POLYGON = [10.0, 10.0, 40.0, 10.0, 40.0, 40.0]
WHOLE = rle.encode(np.ones((48, 64), dtype=np.uint8, order="F"))


def records(**annotation) -> list:
    """Two pictures with an instance each, the first one's changed."""
    plain = {"bbox": [10, 10, 40, 40], "bbox_mode": BoxMode.XYXY_ABS, "category_id": 0, "segmentation": [POLYGON]}
    return [
        {"file_name": f"{i}.png", "image_id": i, "width": 64, "height": 48, "annotations": [{**plain, **annotation}]}
        for i in range(2)
    ]


@pytest.mark.parametrize(
    "annotation",
    [{}, {"segmentation": [tuple(POLYGON)]}, {"segmentation": WHOLE}, {"bbox": (0, 0, 9, 9), "bbox_mode": 1}, {"iscrowd": 1}],
)
def test_what_detectron2_converts_passes(annotation):
    check_convertible(records(**annotation), masks=True)


def test_masks_may_be_missing_where_they_are_not_scored():
    without = records()
    del without[0]["annotations"][0]["segmentation"]
    for some in (without, records(segmentation=[])):
        check_convertible(some, masks=False)
        with pytest.raises(ValueError, match="an instance of 0.png has no mask"):
            check_convertible(some, masks=True)
    with pytest.raises(ValueError, match="an instance of 0.png has no mask"):
        check_convertible(records(segmentation=None), masks=True)
    # Detectron2 looks at what is there
    with pytest.raises(ValueError, match="a mask of type NoneType.*leave 'segmentation' out"):
        check_convertible(records(segmentation=None), masks=False)


@pytest.mark.parametrize("ids", [("a", "b"), (np.str_("a"), "b"), (3.0, np.float64(4)), (3, 4.0)])
def test_image_ids_may_be_of_any_type_that_json_keeps(ids):
    check_convertible([{**record, "image_id": image_id} for record, image_id in zip(records(), ids)], masks=True)


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize(
    "annotation, words",
    [
        ({"bbox": None}, "no 'bbox' of four finite numbers"),
        ({"bbox": None, "iscrowd": 1}, "no 'bbox' of four finite numbers"),
        ({"bbox_mode": None}, "no 'bbox_mode' among XYXY_ABS"),
        ({"bbox_mode": BoxMode.XYXY_REL}, "no 'bbox_mode' among XYXY_ABS"),
        ({"segmentation": [np.array(POLYGON)]}, "a polygon .*tolist"),
        ({"segmentation": [list(np.array(POLYGON, dtype=int))]}, "a polygon .*tolist"),
        ({"segmentation": [POLYGON[:4]]}, "a polygon .*three points"),
        ({"segmentation": np.ones((48, 64))}, "a mask of type ndarray"),
        ({"segmentation": {**WHOLE, "size": np.array(WHOLE["size"])}}, "an RLE mask whose 'size'"),
        ({"segmentation": {**WHOLE, "size": list(np.array(WHOLE["size"]))}}, "an RLE mask whose 'size'"),
    ],
)
def test_instances_that_cannot_be_converted_are_named(annotation, words, masks):
    with pytest.raises(ValueError, match=f"an instance of 0.png has {words}"):
        check_convertible(records(**annotation), masks=masks)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"image_id": None}, "must have an image_id"),
        ({"image_id": np.int64(7)}, "must have an image_id"),
        ({"image_id": 7.5}, "must have an image_id"),
        ({"image_id": float("nan")}, "must have an image_id"),
        ({"image_id": "7"}, "must be all integers or all strings"),
        ({"width": None}, "no width and height"),
        ({"image_id": 0}, "its image_id 0 is that of 0.png too"),
    ],
)
def test_records_that_cannot_be_converted_are_named(change, words):
    first, second = records()
    with pytest.raises(ValueError, match=f"1.png: .*{words}"):
        check_convertible([first, {**second, **change}], masks=True)


@pytest.mark.usefixtures("sets")
@pytest.mark.parametrize(
    "change, words",
    [
        (lambda record: record.pop("image_id"), "must have an image_id"),
        # counted from 1: no score would tell of it
        (lambda record: record["annotations"][0].update(category_id=3), "NUM_CLASSES is 3"),
    ],
)
def test_sets_of_ones_own_are_looked_at_before_training(change, words):
    scored = [dict(record) for record in DatasetCatalog.get("boxes")]
    change(scored[0])
    DatasetCatalog.register("own", lambda: scored)
    MetadataCatalog.get("own").set(evaluator_type="coco", thing_classes=MetadataCatalog.get("boxes").thing_classes)
    cfg = config(test="own")
    cfg.MODEL.META_ARCHITECTURE = "GeneralizedRCNN"
    with pytest.raises(ValueError, match=words):
        check_datasets(cfg)


@pytest.mark.usefixtures("sets")
@pytest.mark.parametrize("change", [{"category_id": 60}, {"category_id": None}])
def test_with_a_json_classes_are_scored_by_it(change):
    scored = [{**r, "annotations": [{**a, **change} for a in r["annotations"]]} for r in DatasetCatalog.get("boxes")]
    DatasetCatalog.register("own", lambda: scored)
    MetadataCatalog.get("own").set(**MetadataCatalog.get("boxes").as_dict() | {"name": "own"})
    cfg = config(test="own")
    cfg.MODEL.META_ARCHITECTURE = "GeneralizedRCNN"
    check_datasets(cfg)
