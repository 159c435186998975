"""COCO panoptic and instances JSONs: reading, and the checks that make later errors impossible."""

import json
from collections import Counter
from typing import NamedTuple

# Label maps are 8-bit: 0 things, 1..n_stuff, 255 void.
MAX_STUFF = 254
IGNORE_LABEL = 255


class Categories(NamedTuple):
    """Thing and stuff categories, each a list of COCO category dicts in ascending id.

    Ascending id is the order in which Detectron2 numbers the classes of an instances JSON.
    """

    things: list
    stuff: list

    def thing_ids(self) -> dict:
        """Dataset id -> contiguous id in [0, n_things)."""
        return {c["id"]: i for i, c in enumerate(self.things)}

    def stuff_ids(self) -> dict:
        """Dataset id -> semantic id in [1, n_stuff]; semantic id 0 is "things"."""
        return {c["id"]: i + 1 for i, c in enumerate(self.stuff)}


def split_categories(categories: list, source: str) -> Categories:
    """Splits COCO panoptic ``categories`` (any order of ids) into things and stuff.

    Raises:
        ValueError: a field is missing, an id occurs twice or is below 1, or there are over 254 stuff categories.
    """
    if not categories:
        raise ValueError(f"{source}: 'categories' is missing or empty")
    for category in categories:
        missing = [key for key in ("id", "name", "isthing") if key not in category]
        if missing:
            raise ValueError(f"{source}: category {category} has no '{missing[0]}'")
        if category["id"] < 1:
            raise ValueError(f"{source}: category ids start at 1, got {category['id']}")
    repeated = [i for i, n in Counter(c["id"] for c in categories).items() if n > 1]
    if repeated:
        raise ValueError(f"{source}: category id {repeated[0]} occurs twice")
    ordered = sorted(categories, key=lambda c: c["id"])
    split = Categories([c for c in ordered if c["isthing"]], [c for c in ordered if not c["isthing"]])
    if len(split.stuff) > MAX_STUFF:
        raise ValueError(f"{source}: 8-bit label maps hold {MAX_STUFF} stuff categories, got {len(split.stuff)}")
    return split


def read_json(path: str) -> dict:
    """Reads a JSON object.

    Raises:
        FileNotFoundError, ValueError: the file is missing, or no JSON object; both name it.
    """
    try:
        with open(path) as f:
            content = json.load(f)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such annotation file") from None
    except ValueError as error:
        raise ValueError(f"{path}: not a JSON file ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object with images, annotations and categories")
    return content


def read_panoptic_json(path: str) -> dict:
    """Reads a COCO panoptic JSON and checks each record's fields.

    Raises:
        FileNotFoundError, ValueError: naming the file, the image and the field at fault.
    """
    content = read_json(path)
    for key in ("images", "annotations", "categories"):
        if not isinstance(content.get(key), list):
            raise ValueError(f"{path}: no list '{key}'")
    categories = {c["id"] for group in split_categories(content["categories"], path) for c in group}
    for image in content["images"]:
        for key in ("id", "file_name", "height", "width"):
            if key not in image:
                raise ValueError(f"{path}: image {image.get('id', image)} has no '{key}'")
    _check_unique(path, "image id", [image["id"] for image in content["images"]])
    images = {image["id"] for image in content["images"]}
    for annotation in content["annotations"]:
        if "segments_info" not in annotation:
            raise ValueError(
                f"{path}: this is an instances JSON (its annotations have no 'segments_info'); "
                "a panoptic JSON is due here, pass this file as instances_json"
            )
        _check_annotation(path, annotation, images, categories)
    _check_unique(path, "annotation of image", [a["image_id"] for a in content["annotations"]])
    return content


def read_instances_json(path: str) -> dict:
    """Reads a COCO instances JSON.

    Raises:
        FileNotFoundError, ValueError: naming the file; also when a panoptic JSON is given.
    """
    content = read_json(path)
    for key in ("images", "annotations", "categories"):
        if not isinstance(content.get(key), list):
            raise ValueError(f"{path}: no list '{key}'")
    if any("segments_info" in annotation for annotation in content["annotations"]):
        raise ValueError(
            f"{path}: this is a panoptic JSON (its annotations have 'segments_info'); "
            "an instances JSON is due here, pass this file as panoptic_json"
        )
    return content


def _check_annotation(path: str, annotation: dict, images: set, categories: set) -> None:
    for key in ("image_id", "file_name"):
        if key not in annotation:
            raise ValueError(f"{path}: an annotation has no '{key}'")
    image_id = annotation["image_id"]
    if image_id not in images:
        raise ValueError(f"{path}: image {image_id} is annotated but not listed in 'images'")
    for segment in annotation["segments_info"]:
        for key in ("id", "category_id", "area", "iscrowd"):
            if key not in segment:
                raise ValueError(f"{path}: image {image_id}, segment {segment.get('id', segment)} has no '{key}'")
        if segment["category_id"] not in categories:
            raise ValueError(
                f"{path}: image {image_id}, segment {segment['id']} has category_id "
                f"{segment['category_id']}, which 'categories' does not list"
            )


def _check_unique(path: str, what: str, values: list) -> None:
    if len(set(values)) != len(values):
        repeated = next(v for v, n in Counter(values).items() if n > 1)
        raise ValueError(f"{path}: {what} {repeated} occurs twice")
