"""Damaged panoptic JSON and PNG pairs: loaded rightly, or refused with one line that names the file."""

import copy
import importlib.util
import json
import shutil
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from rfpn.data.images import read_label_map
from rfpn.data.mapper import PanopticMapper
from rfpn.data.panoptic import register_panoptic_folder
from rfpn.data.panoptic_png import decode_ids
from rfpn.data.records import training_records
from rfpn.data.semantic import prepare_split, split_of_folder
from tests.data.tiny_panoptic import CATEGORIES, mixed_layouts, write_set

pytestmark = pytest.mark.usefixtures("catalogs")
PROGRAM = Path(__file__).parents[2] / "datasets" / "prepare_coco_panoptic.py"
LAYOUTS = mixed_layouts()
JUNK = [None, True, 0, -1, 1.5, 2**24, 2**70, 1e300, "", "x", "1", "../x.png", "/x.png", [], {}, [1], {"id": 1}]
QUICK = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def whole(tmp_path):
    """An undamaged set of two pictures."""
    return write_set(tmp_path / "whole", LAYOUTS)


def places(value, path=()):
    """Paths to every part of a JSON value."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def damage_json(content, draw):
    """Replaces, removes or repeats one random part; returns the JSON's text."""
    content = copy.deepcopy(content)
    path = draw(st.sampled_from([p for p in places(content) if p]))
    holder = content
    for key in path[:-1]:
        holder = holder[key]
    kind = draw(st.sampled_from(["replace", "replace", "remove", "repeat", "number"]))
    if kind == "remove":
        del holder[path[-1]]
    elif kind == "repeat" and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[path[-1]]))
    elif kind == "number" and isinstance(holder[path[-1]], int):
        holder[path[-1]] += draw(st.sampled_from([-1, 1, 2**24, 2**40]))
    else:
        holder[path[-1]] = copy.deepcopy(draw(st.sampled_from(JUNK)))
    text = json.dumps(content)
    return draw(st.sampled_from([text] * 8 + [text[: len(text) // 2], text.replace("48", "NaN", 1), "[" * 100_000]))


def with_header(data: bytes, width: int, height: int) -> bytes:
    """A PNG whose header claims another size, with a right checksum."""
    header = b"IHDR" + struct.pack(">II", width, height) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


def damage_png(path, draw):
    """Damages one panoptic PNG in place."""
    data, image = path.read_bytes(), Image.open(path).copy()
    kind = draw(st.sampled_from(["cut", "byte", "mode", "size", "pixel", "header", "text", "empty", "gone", "folder"]))
    if kind == "cut":
        path.write_bytes(data[: draw(st.integers(0, len(data) - 1))])
    elif kind == "byte":
        place = draw(st.integers(0, len(data) - 1))
        path.write_bytes(data[:place] + bytes([draw(st.integers(0, 255))]) + data[place + 1 :])
    elif kind == "mode":
        image.convert(draw(st.sampled_from(["1", "L", "P", "LA", "RGBA", "I;16"]))).save(path)
    elif kind == "size":
        image.resize(draw(st.sampled_from([(48, 64), (32, 24), (1, 1)])), Image.NEAREST).save(path)
    elif kind == "pixel":
        image.putpixel((draw(st.integers(0, 63)), draw(st.integers(0, 47))), draw(st.sampled_from([(0, 0, 0), (9, 9, 9)])))
        image.save(path)
    elif kind == "header":
        path.write_bytes(with_header(data, *draw(st.sampled_from([(0, 0), (64, 2**31 - 1), (2**20, 2**20), (13000, 13000)]))))
    elif kind in ("text", "empty"):
        path.write_bytes(b"" if kind == "empty" else b"no picture")
    else:
        path.unlink()
        if kind == "folder":
            path.mkdir()


@pytest.fixture
def damaged(whole, tmp_path):
    """A function that makes a fresh damaged copy of the set and returns its root."""
    content = json.loads((whole / "annotations/panoptic_train.json").read_text())
    root = tmp_path / "damaged"

    def make(data):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(whole, root)
        what = data.draw(st.sampled_from(["json", "png", "both"]))
        if what != "png":
            (root / "annotations/panoptic_train.json").write_text(damage_json(content, data.draw))
        if what != "json":
            damage_png(root / f"panoptic_train/label{data.draw(st.integers(1, 2))}.png", data.draw)
        return root

    return make


def expected_maps(root) -> dict:
    """Label maps by the definition: 0 things, 1.. stuff in ascending id, 255 where no listed segment is."""
    content = json.loads((root / "annotations/panoptic_train.json").read_text())
    stuff = sorted(c["id"] for c in content["categories"] if not c["isthing"])
    maps = {}
    for annotation in content["annotations"]:
        ids = decode_ids(np.asarray(Image.open(root / "panoptic_train" / annotation["file_name"])))
        labels = np.full(ids.shape, 255, dtype=np.uint8)
        for segment in annotation["segments_info"]:
            semantic = stuff.index(segment["category_id"]) + 1 if segment["category_id"] in stuff else 0
            labels[ids == segment["id"]] = semantic
        maps[annotation["image_id"]] = labels
    return maps


def assert_names_the_fault(error, root):
    text = str(error)
    assert "\n" not in text.strip() and str(root) in text and len(text) < 700, text


@given(st.data())
@QUICK
def test_loader_takes_a_damaged_set_rightly_or_names_the_fault(damaged, monkeypatch, data):
    root = damaged(data)
    shutil.rmtree(root.parent / "derived", ignore_errors=True)
    for catalog in (DatasetCatalog, MetadataCatalog):
        catalog.pop("fuzzed", None)
    try:
        register_panoptic_folder("fuzzed", str(root), "train")
        records = training_records("fuzzed", filter_empty=False)
        classes = MetadataCatalog.get("fuzzed")
        mapper = PanopticMapper(
            True,
            augmentations=[],
            image_format="BGR",
            use_instance_mask=True,
            instance_mask_format="bitmask",
            thing_classes=len(classes.thing_classes),
            sem_seg_classes=len(classes.stuff_classes),
        )
        mapped = [mapper(record) for record in records]
    except (ValueError, OSError) as error:
        assert_names_the_fault(error, root)
        return
    maps = expected_maps(root)
    assert [record["image_id"] for record in mapped] == list(maps)
    for record in mapped:
        np.testing.assert_array_equal(record["sem_seg"], maps[record["image_id"]])
        assert (maps[record["image_id"]][record["instances"].gt_masks.tensor.any(0).numpy()] == 0).all()


@given(st.data())
@QUICK
def test_prepare_takes_a_damaged_set_rightly_or_names_the_fault(damaged, data):
    root = damaged(data)
    paths = split_of_folder(str(root), "train")
    try:
        problems, _ = prepare_split(paths)
    except (ValueError, OSError) as error:
        assert_names_the_fault(error, root)
        return
    if problems:
        assert not Path(paths.instances_json).exists()
        for problem in problems:
            assert_names_the_fault(problem, root)
        return
    for annotation in json.loads(Path(paths.panoptic_json).read_text())["annotations"]:
        stem = annotation["file_name"].rsplit(".", 1)[0]
        labels = read_label_map(str(Path(paths.sem_seg_root) / f"{stem}.png"))
        np.testing.assert_array_equal(labels, expected_maps(root)[annotation["image_id"]])


def test_no_undamaged_set_is_refused(whole):
    assert prepare_split(split_of_folder(str(whole), "train")) == ([], 2)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c["annotations"][0].update(file_name="../../elsewhere/label1.png"), "relative path without '..'"),
        (lambda c: c["annotations"][0].update(file_name="/etc/label1.png"), "relative path without '..'"),
        (lambda c: c["annotations"][1].update(file_name="label1.png"), "file name label1 occurs twice"),
        (lambda c: c["annotations"][0]["segments_info"][0].update(id=2**24), r"'id' must be an integer in \[1, 16777215\]"),
        (lambda c: c["annotations"][0]["segments_info"][0].update(category_id=8), "category_id 8, which 'categories'"),
        (lambda c: c["annotations"][0]["segments_info"][0].update(iscrowd="no"), "'iscrowd' must be 0 or 1"),
        (lambda c: c["annotations"][1].update(image_id=1), "annotation of image 1 occurs twice"),
        (lambda c: c["annotations"][1].update(image_id=5), "image 5, which 'images' does not list"),
        (lambda c: c["images"][1].update(file_name="photo1.png"), "image file_name photo1.png occurs twice"),
        (lambda c: c["images"][1].update(id="two"), "all integers or all strings"),
        (lambda c: c["images"][1].update(height=0), "'height' must be an integer"),
        (lambda c: c["categories"][1].update(id=90), "category id 90 occurs twice"),
        (lambda c: c["categories"][1].update(isthing="yes"), "'isthing' must be 0 or 1"),
        (lambda c: c["categories"][1].update(color="red"), "'color' must be three integers"),
        (lambda c: c.update(annotations={}), "no list 'annotations'"),
    ],
)
def test_wrong_fields_are_named(whole, change, message):
    path = whole / "annotations/panoptic_train.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message) as caught:
        prepare_split(split_of_folder(str(whole), "train"))
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("size", [(2**20, 2**20), (9500, 9500), (64, 49)])
def test_a_header_of_another_size_is_refused_before_decoding(tmp_path, monkeypatch, size):
    root = write_set(tmp_path / "one", LAYOUTS[:1])
    path = root / "panoptic_train/label1.png"
    path.write_bytes(with_header(path.read_bytes(), *size))
    decoded = []
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: decoded.append(self))
    (problem,), _ = prepare_split(split_of_folder(str(root), "train"), check_images=False)
    assert str(path) in problem and not decoded


def test_program_ends_with_one_line_a_fault(whole, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("prepare_coco_panoptic", PROGRAM)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    monkeypatch.setattr(sys, "argv", ["prepare", "--root", str(whole), "--splits", "train", "--workers", "1"])
    assert program.main() == 0
    path = whole / "annotations/panoptic_train.json"
    good = path.read_text()
    for text in (good[:-5], "[]", "{}", good.replace("area", "aera", 1), good.replace("48", "Infinity", 1)):
        path.write_text(text)
        capsys.readouterr()
        assert program.main() == 1
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 2 and str(path) in lines[0] and lines[1].endswith("1 problems; mend them and run again")


def test_categories_given_by_hand_are_checked(whole):
    for wrong in ("road", [5], [{"id": "1", "name": "a", "isthing": 0}], [{"id": 1, "name": "", "isthing": 0}]):
        with pytest.raises(ValueError, match="panoptic_train.json: .*categor"):
            register_panoptic_folder("by_hand", str(whole), "train", categories=wrong)
    register_panoptic_folder("by_hand", str(whole), "train", categories=CATEGORIES)
