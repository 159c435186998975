import json
from contextlib import nullcontext

import pytest

from rfpn.data.annotations import differing_image, misfit, read_instances_json


def images(*names):
    return {"images": [{"id": i, "file_name": name, "height": 48, "width": 64} for i, name in enumerate(names, start=1)]}


@pytest.mark.parametrize(
    "mine, theirs",
    [
        ("a.jpg", "a_ids.png"),
        ("a-photo.jpg", "a-photo.ids.png"),
        ("val/a.jpg", "a.jpg"),
        ("coco\\val\\a.jpg", "val/a_ids.png"),
        ("./a.jpg", "a.png"),
        ("COCO_val2014_000000000139.jpg", "000000000139.jpg"),
        ("000001.jpg", "panoptic_000001.png"),
        ("val2017/a.jpg", "panoptic_val2017/a.png"),
        ("images/a.jpg", "labels/a.png"),
    ],
)
def test_one_picture_may_have_two_names(mine, theirs):
    assert differing_image(images(mine), images(theirs)) == "" == differing_image(images(theirs), images(mine))


@pytest.mark.parametrize(
    "mine, theirs",
    [
        ("camA/1.png", "camB/1.png"),
        ("set/camA/1.png", "set/camB/1.png"),
        ("amA/1.png", "camA/1.png"),
        ("camA/x/1.png", "camA/1.png"),
        ("1.jpg", "21.jpg"),
        ("2.jpg", "21.jpg"),
        ("b.jpg", "ab.jpg"),
    ],
)
def test_names_that_share_only_a_part_are_two_pictures(mine, theirs):
    words = f"image 1 is {mine} of 64x48 pixels, not the {theirs} of 64x48 pixels"
    assert differing_image(images(mine), images(theirs)) == words
    assert differing_image(images(theirs), images(mine)) != ""


def test_exchanged_ids_are_told_of_whatever_the_names_share():
    panoptic = images("a.jpg", "a_2.jpg", "camA/1.png", "camB/1.png")
    assert differing_image(panoptic, panoptic) == ""
    assert differing_image(images("a_2.jpg", "a.jpg"), panoptic) == "image 1 is a_2.jpg, which is image 2"
    assert differing_image(images("a.jpg", "a_2.jpg", "camB/1.png"), panoptic) == "image 3 is camB/1.png, which is image 4"


def test_ids_of_one_json_alone_are_compared_by_name():
    instances = images("other.jpg", "a.jpg")
    assert differing_image({"images": instances["images"][:1]}, {"images": []}) == ""
    assert differing_image({"images": instances["images"][1:]}, images("a.jpg")) == "image 2 is a.jpg, which is image 1"


def test_what_speaks_against_an_instances_json_is_told():
    things, panoptic = [{"id": 1, "name": "dog", "isthing": 1}], images("a.jpg")
    instances = {**panoptic, "categories": [{"id": 1, "name": "dog"}]}
    assert misfit(instances, panoptic, things, "p.json") == ""
    assert misfit(instances, panoptic, [], "p.json") == "its categories are not the thing categories of p.json"
    assert misfit(instances, images("b.jpg", "a.jpg"), things, "p.json") == "image 1 is a.jpg, which is image 2 of p.json"


@pytest.mark.parametrize(
    "counts, passes",
    [([0, 12], True), ([5, 4, 3], True), ([5, 4, 2], False), ([12, 1], False), ([13, -1], False), ([6.0, 6], False)],
)
def test_runs_of_a_mask_that_is_not_compressed_add_up_to_its_pixels(tmp_path, counts, passes):
    mask = {"size": [3, 4], "counts": counts}
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 4, 3], "segmentation": mask}
    image = {"id": 1, "file_name": "a.png", "height": 3, "width": 4}
    path = tmp_path / "instances.json"
    path.write_text(json.dumps({"images": [image], "annotations": [annotation], "categories": [{"id": 1, "name": "dog"}]}))
    with nullcontext() if passes else pytest.raises(ValueError, match="annotation 1: 'segmentation' must be"):
        read_instances_json(str(path))
