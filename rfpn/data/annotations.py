"""COCO panoptic and instances JSONs: reading, and the checks that make later errors impossible."""

import math
import os
import sys
from collections import Counter
from pathlib import PurePosixPath
from typing import NamedTuple

from rfpn.data.files import read_json
from rfpn.data.panoptic_png import MAX_ID

# Label maps are 8-bit: 0 things, 1..n_stuff, 255 void.
MAX_STUFF = 254
IGNORE_LABEL = 255
# no coordinate lies that far from a picture (pixels); pycocotools counts in 32 bits, and does not look
_FURTHEST = 2**17


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
        ValueError: a field is missing or of a wrong type, an id, or a name within things or stuff, occurs twice, an id is
            below 1, or there are over 254 stuff categories.
    """
    if not categories or not isinstance(categories, list):
        raise ValueError(f"{source}: 'categories' is missing, empty or no list")
    for category in categories:
        _check_fields(category, _CATEGORY, f"{source}: category {_name(category)}", optional=("color",))
    _check_unique(source, "category id", [c["id"] for c in categories])
    ordered = sorted(categories, key=lambda c: c["id"])
    split = Categories([c for c in ordered if c["isthing"]], [c for c in ordered if not c["isthing"]])
    for kind, group in split._asdict().items():
        # scores of single classes are told apart by name
        _check_unique(source, f"name of a category of {kind}", [c["name"] for c in group])
    if len(split.stuff) > MAX_STUFF:
        raise ValueError(f"{source}: 8-bit label maps hold {MAX_STUFF} stuff categories, got {len(split.stuff)}")
    return split


def read_panoptic_json(path: str) -> dict:
    """Reads a COCO panoptic JSON and checks each record's fields.

    Raises:
        OSError, ValueError: naming the file, the image and the field at fault.
    """
    content = read_json(path)
    images = _check_images(path, content)
    categories = {c["id"] for group in split_categories(content.get("categories"), path) for c in group}
    for annotation in content["annotations"]:
        if isinstance(annotation, dict) and "segments_info" not in annotation:
            raise ValueError(
                f"{path}: this is an instances JSON (its annotations have no 'segments_info'); "
                "a panoptic JSON is expected here; pass this file as instances_json"
            )
        _check_panoptic(path, annotation, images, categories)
    _check_unique(path, "annotation of image", [a["image_id"] for a in content["annotations"]])
    # the label map of a picture bears the name of its panoptic PNG
    stems = [os.path.splitext(a["file_name"])[0] for a in content["annotations"]]
    _check_unique(path, "annotations' file name", stems)
    return content


def read_instances_json(path: str) -> dict:
    """Reads a COCO instances JSON and checks the fields that training uses; masks are only looked at from outside.

    Raises:
        OSError, ValueError: naming the file; also when a panoptic JSON is given.
    """
    content = read_json(path)
    images = _check_images(path, content)
    if any(isinstance(a, dict) and "segments_info" in a for a in content["annotations"]):
        raise ValueError(
            f"{path}: this is a panoptic JSON (its annotations have 'segments_info'); "
            "an instances JSON is expected here; pass this file as panoptic_json"
        )
    if not isinstance(content.get("categories"), list):
        raise ValueError(f"{path}: no list 'categories'")
    for category in content["categories"]:
        _check_fields(category, {key: _CATEGORY[key] for key in ("id", "name")}, f"{path}: category {_name(category)}")
    categories = {c["id"] for c in content["categories"]}
    for annotation in content["annotations"]:
        where = f"{path}: annotation {_name(annotation)}"
        _check_fields(annotation, _INSTANCE, where, optional=("iscrowd", "area"))
        _check_known(annotation["image_id"], images, f"{where} has image_id", "images")
        _check_known(annotation["category_id"], categories, f"{where} has category_id", "categories")
        size = images[annotation["image_id"]]
        if not _is_mask(annotation.get("segmentation", []), size):
            raise ValueError(f"{where}: 'segmentation' must be a list of polygons in pixels, or RLE of size {list(size)}")
    _check_unique(path, "annotation id", [a["id"] for a in content["annotations"]])
    return content


def misfit(instances: dict, panoptic: dict, things: list, source: str) -> str:
    """What speaks against an instances JSON being that of the panoptic JSON ``source``; empty if nothing does.

    Args:
        instances, panoptic: what the two hold. things: the latter's thing categories.
    """
    if {c["id"]: c["name"] for c in things} != {c["id"]: c["name"] for c in instances["categories"]}:
        return f"its categories are not the thing categories of {source}"
    wrong = differing_image(instances, panoptic)
    return f"{wrong} of {source}" if wrong else ""


def differing_image(instances: dict, panoptic: dict) -> str:
    """The first image on which the two JSONs disagree: one id for two pictures, or two ids for one picture.

    Empty if there is none, else words that " of " and the panoptic JSON's name may follow.
    """
    images = {image["id"]: image for image in panoptic["images"]}
    bearers = {image["file_name"]: image["id"] for image in panoptic["images"]}
    for image in instances["images"]:
        bearer = bearers.get(image["file_name"], image["id"])
        if bearer != image["id"]:
            return f"image {image['id']!r} is {image['file_name']}, which is image {bearer!r}"
        other = images.get(image["id"], image)
        sizes = [(each["width"], each["height"]) for each in (image, other)]
        if not _may_be_one(image["file_name"], other["file_name"]) or sizes[0] != sizes[1]:
            mine, theirs = (f"{each['file_name']} of {each['width']}x{each['height']} pixels" for each in (image, other))
            return f"image {image['id']} is {mine}, not the {theirs}"
    return ""


def _may_be_one(name: str, other: str) -> bool:
    """Whether two JSONs may name one picture so, be it the photograph or its annotation.

    As a.jpg and a.png, a_photo.png and a_photo_ids.png, COCO_val2014_1.jpg and 1.jpg, or val/a.jpg and a.jpg: the folders
    of one photograph end with those of the other.
    """
    paths = [PurePosixPath(each.replace("\\", "/")) for each in (name, other)]
    shorter, longer = sorted((path.stem for path in paths), key=len)
    part = any(longer.startswith(shorter + mark) or longer.endswith(mark + shorter) for mark in "_-.")
    if shorter != longer and not part:
        return False
    few, more = sorted((path.parts[:-1] for path in paths), key=len)
    # photographs and annotations have folders of their own
    return paths[0].suffix != paths[1].suffix or few == more[len(more) - len(few) :]


def _check_images(path: str, content: dict) -> dict:
    """Checks the list of images; returns id -> (height, width)."""
    for key in ("images", "annotations"):
        if not isinstance(content.get(key), list):
            raise ValueError(f"{path}: no list '{key}'")
    for image in content["images"]:
        _check_fields(image, _IMAGE, f"{path}: image {_name(image)}")
    ids = [image["id"] for image in content["images"]]
    if len({type(i) for i in ids}) > 1:
        raise ValueError(f"{path}: image ids must be all integers or all strings")
    _check_unique(path, "image id", ids)
    _check_unique(path, "image file_name", [image["file_name"] for image in content["images"]])
    return {image["id"]: (image["height"], image["width"]) for image in content["images"]}


def _check_panoptic(path: str, annotation: dict, images: dict, categories: set) -> None:
    _check_fields(annotation, _ANNOTATION, f"{path}: annotation of image {_name(annotation, 'image_id')}")
    image_id = annotation["image_id"]
    _check_known(image_id, images, f"{path}: annotation of image", "images")
    for segment in annotation["segments_info"]:
        where = f"{path}: image {image_id}, segment {_name(segment)}"
        _check_fields(segment, _SEGMENT, where)
        _check_known(segment["category_id"], categories, f"{where} has category_id", "categories")


def _check_fields(record: dict, fields: dict, where: str, optional: tuple = ()) -> None:
    """Every field is there, unless optional, and passes its test; ``where`` begins the message."""
    if not isinstance(record, dict):
        raise ValueError(f"{where} is no JSON object")
    for key, (test, wanted) in fields.items():
        if key not in record:
            if key in optional:
                continue
            raise ValueError(f"{where} has no '{key}'")
        if not test(record[key]):
            raise ValueError(f"{where}: '{key}' must be {wanted}, got {record[key]!r:.80}")


def _check_known(value, known, where: str, key: str) -> None:
    if value not in known:
        raise ValueError(f"{where} {value!s:.60}, which '{key}' does not list")


def _check_unique(path: str, what: str, values: list) -> None:
    if len(set(values)) != len(values):
        repeated = next(v for v, n in Counter(values).items() if n > 1)
        raise ValueError(f"{path}: {what} {repeated} occurs twice")


def _name(record, key: str = "id"):
    """What to call a record in a message."""
    return f"{record.get(key, record) if isinstance(record, dict) else record!s:.60}"


def _integer(least: int, most: int):
    # type(): JSON's true and false are no numbers here
    return (lambda v: type(v) is int and least <= v <= most), f"an integer in [{least}, {most}]"


def _is_file_name(value) -> bool:
    """A path below the folder it is joined to: predictions and label maps are written under these names."""
    if not isinstance(value, str) or "\0" in value or os.path.isabs(value):
        return False
    return bool(os.path.basename(value)) and ".." not in value.replace("\\", "/").split("/")


def is_box(value) -> bool:
    """Whether a JSON's value is a box: four finite numbers."""
    return isinstance(value, list) and len(value) == 4 and all(map(is_number, value))


def is_polygon(value) -> bool:
    """Whether a JSON's value is a list of finite coordinates, none of them far from any picture."""
    try:
        within = -_FURTHEST <= min(value, default=0) and max(value, default=0) <= _FURTHEST
        # NaN has no order
        return isinstance(value, list) and within and math.isfinite(sum(value))
    except (TypeError, ValueError):
        return False


def is_number(value) -> bool:
    """Whether a JSON's value is a finite number."""
    # JSON's integers may be larger than any float
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _is_color(value) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 3 and all(type(v) is int and 0 <= v <= 255 for v in value)


def _is_mask(value, size: tuple) -> bool:
    if isinstance(value, dict):
        return value.get("size") == list(size) and _is_counts(value.get("counts"), size[0] * size[1])
    return isinstance(value, list) and all(map(is_polygon, value))


def _is_counts(value, pixels: int) -> bool:
    if isinstance(value, list):  # not compressed
        return all(type(v) is int and v >= 0 for v in value) and sum(value) == pixels
    return isinstance(value, str) and value.isascii()


_ID = (lambda v: type(v) in (int, str)), "an integer or a string"
_FLAG = (lambda v: v in (0, 1)), "0 or 1"
_FILE_NAME = _is_file_name, "a relative path without '..'"
# field -> its test, and the words for what passes it
_CATEGORY = {
    "id": _integer(1, 2**31 - 1),
    "name": ((lambda v: isinstance(v, str) and v != ""), "a name"),
    "isthing": _FLAG,
    "color": (_is_color, "three integers in [0, 255]"),
}
_IMAGE = {"id": _ID, "file_name": _FILE_NAME, "height": _integer(1, 2**16), "width": _integer(1, 2**16)}
_ANNOTATION = {
    "image_id": _ID,
    "file_name": _FILE_NAME,
    "segments_info": ((lambda v: isinstance(v, list)), "a list"),
}
_SEGMENT = {
    "id": _integer(1, MAX_ID),
    "category_id": _integer(1, 2**31 - 1),
    "area": ((lambda v: type(v) in (int, float)), "a number of pixels"),
    "iscrowd": _FLAG,
}
_INSTANCE = {
    "id": _ID,
    "image_id": _ID,
    "category_id": _integer(0, 2**31 - 1),
    "bbox": (is_box, "four finite numbers"),
    "area": (is_number, "a finite number of pixels"),
    "iscrowd": _FLAG,
}
