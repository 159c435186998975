"""Label maps are those of the panoptic JSON as it is, and of no other set."""

import errno
import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from detectron2.data import DatasetCatalog
from PIL import Image

from rfpn.data.images import read_label_map
from rfpn.data.panoptic import register_panoptic, register_panoptic_folder
from rfpn.data.semantic import prepare_split, split_of_folder
from rfpn.data.stamps import made_from
from tests.data.tiny_panoptic import CATEGORIES, edit_json, mixed_layouts, write_set

pytestmark = pytest.mark.usefixtures("catalogs")


def _swap_stuff(content):
    for annotation in content["annotations"]:
        for segment in annotation["segments_info"]:
            segment["category_id"] = {40: 90, 90: 40}.get(segment["category_id"], segment["category_id"])


def test_derived_files_leave_the_set_alone_and_follow_the_json(tmp_path):
    root = write_set(tmp_path / "set", mixed_layouts())
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    register_panoptic_folder("tiny", str(root), "train")
    first = DatasetCatalog.get("tiny")[0]["sem_seg_file_name"]
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    assert first.startswith(str(tmp_path / "derived"))
    labels = read_label_map(first)
    assert labels[0, 0] == 1 and labels[35, 60] == 2 and labels[15, 10] == 0 and labels[47, 0] == 255
    edit_json(root / "annotations/panoptic_train.json", _swap_stuff)
    DatasetCatalog.get("tiny")
    assert read_label_map(first)[0, 0] == 2


def test_derived_files_follow_the_content_of_the_json_not_its_date(tmp_path, monkeypatch):
    root = write_set(tmp_path / "set", mixed_layouts())
    path = root / "annotations/panoptic_train.json"
    register_panoptic_folder("tiny", str(root), "train")
    first, status = DatasetCatalog.get("tiny")[0]["sem_seg_file_name"], path.stat()
    with monkeypatch.context() as patch:
        patch.setattr("rfpn.data.panoptic.prepare_split", lambda *_, **__: pytest.fail("made anew"))
        os.utime(path, ns=(0, 0))
        DatasetCatalog.get("tiny")
    edit_json(path, _swap_stuff)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    DatasetCatalog.get("tiny")
    assert read_label_map(first)[0, 0] == 2


def test_derived_files_may_be_read_only_once_they_are_there(tmp_path, monkeypatch):
    register_panoptic_folder("tiny", str(write_set(tmp_path / "set", mixed_layouts())), "train")
    first = DatasetCatalog.get("tiny")
    monkeypatch.setattr("rfpn.data.panoptic.locked", lambda path: pytest.fail("locked"))
    monkeypatch.setattr("rfpn.data.panoptic.os.makedirs", lambda *_, **__: pytest.fail("made"))
    assert DatasetCatalog.get("tiny") == first


def test_label_maps_of_a_former_json_are_refused(tmp_path):
    root = write_set(tmp_path / "set", mixed_layouts())
    paths = split_of_folder(str(root), "train")
    prepare_split(paths)
    register_panoptic_folder("tiny", str(root), "train")
    assert len(DatasetCatalog.get("tiny")) == 2
    edit_json(root / "annotations/panoptic_train.json", _swap_stuff)
    words = "panoptic_stuff_train is out of date: made from another .*json.*prepare_coco_panoptic"
    with pytest.raises(ValueError, match=words):
        DatasetCatalog.get("tiny")
    assert prepare_split(paths) == ([], 2)
    assert len(DatasetCatalog.get("tiny")) == 2


def test_label_maps_without_a_stamp_are_taken(tmp_path):
    """As an earlier version or Detectron2's own program left them."""
    root = write_set(tmp_path / "set", mixed_layouts())
    prepare_split(split_of_folder(str(root), "train"))
    (root / "panoptic_stuff_train/source.json").unlink()
    edit_json(root / "annotations/panoptic_train.json", lambda content: content.update(info={}))
    register_panoptic_folder("tiny", str(root), "train")
    assert len(DatasetCatalog.get("tiny")) == 2


def test_two_sets_share_no_folder_of_label_maps(tree, tmp_path):
    root, derived = tree[0], str(tmp_path / "derived")
    assert prepare_split(split_of_folder(str(root), "train", derived)) == ([], 3)
    other = split_of_folder(str(write_set(tmp_path / "other", mixed_layouts()[1:])), "train", derived)
    before = {path: path.read_bytes() for path in (tmp_path / "derived").rglob("*.*")}
    words = "derived/panoptic_stuff_train holds the label maps of .*set/annotations/panoptic_train.json;"
    with pytest.raises(ValueError, match=words):
        prepare_split(other)
    assert {path: path.read_bytes() for path in (tmp_path / "derived").rglob("*.*")} == before
    # nobody's any more
    (root / "annotations/panoptic_train.json").unlink()
    assert prepare_split(other) == ([], 1)


def test_a_copy_of_a_set_is_a_set_of_its_own(tree, tmp_path):
    root, paths = tree
    prepare_split(paths)
    shutil.copytree(root, tmp_path / "copy")
    path = tmp_path / "copy/annotations/panoptic_train.json"
    edit_json(path, lambda content: content["annotations"][0]["segments_info"][0].update(category_id=90))
    assert prepare_split(split_of_folder(str(tmp_path / "copy"), "train")) == ([], 1)
    assert made_from(paths.sem_seg_root, paths.panoptic_json)


def test_label_maps_count_as_out_of_date_until_all_are_made(tree):
    root, paths = tree
    prepare_split(paths)
    path = root / "annotations/panoptic_train.json"
    former = path.read_text()
    edit_json(path, lambda content: content["annotations"][0]["segments_info"][0].update(category_id=90))
    assert made_from(paths.sem_seg_root, str(path)) is False

    def stop(results):
        next(results)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_split(paths, progress=stop)
    path.write_text(former)
    assert made_from(paths.sem_seg_root, str(path)) is False
    assert prepare_split(paths) == ([], 1) and made_from(paths.sem_seg_root, str(path))


def _with_instances_of_its_own(paths):
    """As COCO has them; label maps are not made yet."""
    prepare_split(paths)
    edit_json(Path(paths.instances_json), lambda content: content.pop("info"))
    shutil.rmtree(paths.sem_seg_root)


def test_other_programs_maps_are_taken_while_none_is_changed(tree):
    """Whatever else a check of them found."""
    root, paths = tree
    prepare_split(paths)
    (Path(paths.sem_seg_root) / "source.json").unlink()
    next(Path(paths.image_root).glob("*.*")).unlink()
    (problem,), written = prepare_split(paths)
    assert "no such image" in problem and written == 0
    assert made_from(paths.sem_seg_root, paths.panoptic_json) is None


def test_a_first_preparation_that_was_stopped_counts_as_out_of_date(tree, monkeypatch):
    """The JSON may be mended meanwhile."""
    root, paths = tree
    _with_instances_of_its_own(paths)
    with monkeypatch.context() as patch:
        patch.setattr("rfpn.data.stamps.finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare_split(paths)
    edit_json(Path(paths.panoptic_json), _swap_stuff)
    register_panoptic_folder("tiny", str(root), "train")
    with pytest.raises(ValueError, match="panoptic_stuff_train is out of date: .* or not finished"):
        DatasetCatalog.get("tiny")
    assert prepare_split(paths) == ([], 3) and len(DatasetCatalog.get("tiny")) == 3


def test_a_first_preparation_that_found_problems_counts_as_out_of_date(tree):
    paths = tree[1]
    _with_instances_of_its_own(paths)
    edit_json(Path(paths.panoptic_json), lambda content: content["annotations"].pop())
    (problem,), written = prepare_split(paths)
    assert "image 3: " in problem and written == 2
    edit_json(Path(paths.panoptic_json), _swap_stuff)
    assert made_from(paths.sem_seg_root, paths.panoptic_json) is False


def test_label_maps_count_as_out_of_date_while_annotation_changes_below_the_same_json(tree):
    root, paths = tree
    prepare_split(paths)
    labels = root / "panoptic_train/label1.png"
    Image.open(labels).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(labels)
    last = root / "panoptic_train/label3.png"
    good = last.read_bytes()
    last.write_bytes(b"")
    problems, written = prepare_split(paths)
    assert len(problems) == 1 and written == 1
    # the instances are those of the former annotation
    assert made_from(paths.sem_seg_root, paths.panoptic_json) is False
    last.write_bytes(good)
    assert prepare_split(paths) == ([], 0) and made_from(paths.sem_seg_root, paths.panoptic_json)


def test_finished_label_maps_stay_finished_where_nothing_changes(tree, monkeypatch):
    root, paths = tree
    prepare_split(paths)
    (root / "panoptic_train/label3.png").unlink()
    monkeypatch.setattr("rfpn.data.stamps.write_json", lambda *_: pytest.fail("written"))
    assert len(prepare_split(paths)[0]) == 1 and made_from(paths.sem_seg_root, paths.panoptic_json)


def test_a_stamp_of_a_former_json_that_cannot_be_renewed_is_told_of(tree, monkeypatch):
    """Else the maps would be whole now and out of date at training."""
    paths = tree[1]
    prepare_split(paths)
    edit_json(Path(paths.panoptic_json), lambda content: content.update(info={}))
    refused = PermissionError(errno.EACCES, "no")
    monkeypatch.setattr("rfpn.data.stamps.write_json", lambda *_: (_ for _ in ()).throw(refused))
    with pytest.raises(PermissionError):
        prepare_split(paths)


def test_a_whole_set_may_be_checked_where_it_cannot_be_written_to(tree, monkeypatch):
    prepare_split(tree[1])
    stamp = Path(tree[1].sem_seg_root) / "source.json"
    stamp.unlink()
    full = OSError(errno.ENOSPC, "full")
    for error, expected in ((PermissionError(errno.EACCES, "no"), nullcontext()), (full, pytest.raises(OSError))):

        def refuse(*args, error=error):
            raise error

        monkeypatch.setattr("rfpn.data.stamps.write_json", refuse)
        with expected:
            assert prepare_split(tree[1]) == ([], 0)
    assert not stamp.exists()


def test_a_json_of_a_few_images_goes_with_the_label_maps_of_the_whole(tree):
    root, paths = tree
    prepare_split(paths)
    few = root / "annotations/panoptic_few.json"
    shutil.copy(paths.panoptic_json, few)
    edit_json(few, lambda content: [content[key].pop() for key in ("images", "annotations")])
    register_panoptic("few", **{**paths._asdict(), "panoptic_json": str(few)})
    assert len(DatasetCatalog.get("few")) == 2
    words = "panoptic_stuff_train is out of date: made from another .*panoptic_few.json"
    right = few.read_text()
    # the same pictures otherwise annotated
    for change in (_swap_stuff, lambda content: content["annotations"][0]["segments_info"].pop()):
        edit_json(few, change)
        with pytest.raises(ValueError, match=words):
            DatasetCatalog.get("few")
        few.write_text(right)
    # another picture's label map
    edit_json(few, lambda content: content["annotations"][0].update(file_name="label9.png"))
    assert made_from(paths.sem_seg_root, str(few)) is False
    few.write_text(right)
    assert len(DatasetCatalog.get("few")) == 2
    # until the maps are out of date
    edit_json(Path(paths.panoptic_json), _swap_stuff)
    with pytest.raises(ValueError, match="panoptic_stuff_train is out of date"):
        DatasetCatalog.get("few")


@pytest.mark.parametrize("dropped, fits", [("water", False), ("wood", True)])
def test_a_json_of_a_few_images_numbers_stuff_as_the_whole_does(tmp_path, dropped, fits):
    """Tools that cut sets drop categories that are left without segments: those above are counted anew."""
    stuff = [{"id": 20, "name": "water", "isthing": 0}, {"id": 99, "name": "wood", "isthing": 0}]
    root = write_set(tmp_path / "set", mixed_layouts(), categories=CATEGORIES + stuff)
    paths = split_of_folder(str(root), "train")
    prepare_split(paths)
    content = json.loads(Path(paths.panoptic_json).read_text())
    content["categories"] = [category for category in content["categories"] if category["name"] != dropped]
    few = root / "annotations/panoptic_few.json"
    few.write_text(json.dumps(content))
    assert made_from(paths.sem_seg_root, str(few)) is (None if fits else False)


def test_a_set_may_be_reached_through_a_link(tree, tmp_path):
    root, derived = tree[0], str(tmp_path / "derived")
    prepare_split(split_of_folder(str(root), "train", derived))
    (tmp_path / "link").symlink_to(root)
    edit_json(root / "annotations/panoptic_train.json", lambda content: content.update(info={}))
    assert prepare_split(split_of_folder(str(tmp_path / "link"), "train", derived))[0] == []
