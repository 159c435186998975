import errno
import fcntl
import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pycocotools.mask as mask_util
import pytest
from PIL import Image

from rfpn.data import semantic
from rfpn.data.images import read_label_map
from rfpn.data.semantic import prepare_split, split_of_folder
from rfpn.data.stamps import made_from
from tests.data.tiny_panoptic import edit_json, write_set

REPOSITORY = Path(__file__).parents[2]


def test_A4_label_maps_hold_only_stuff_things_and_void(tree):
    root, paths = tree
    assert prepare_split(paths) == ([], 3)
    values = np.unique(read_label_map(f"{paths.sem_seg_root}/label1.png"))
    assert values.tolist() == [0, 1, 2, 255]


@pytest.mark.parametrize("workers", [1, 2])
def test_A4_every_bad_file_is_listed_and_the_rest_is_made(tree, workers):
    root, paths = tree
    (root / "panoptic_train/label1.png").unlink()
    (root / "train/photo2.png").write_bytes((root / "train/photo2.png").read_bytes()[:400])
    problems, written = prepare_split(paths, workers=workers)
    assert written == 2 and len(problems) == 2
    assert "image 1" in problems[0] and "label1.png" in problems[0]
    assert "image 2" in problems[1] and "photo2.png" in problems[1]
    assert not Path(paths.instances_json).exists()


def test_workers_say_nothing_on_ctrl_c(tree, capfd):
    def interrupt(results):
        next(results)
        # a terminal tells them too
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGINT)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_split(tree[1], workers=2, progress=interrupt)
    assert "Traceback" not in capfd.readouterr().err


def test_one_program_prepares_at_a_time(tree):
    """Two would mix label maps of two states of the JSON."""
    paths = tree[1]

    def look(results):
        with open(f"{paths.sem_seg_root}.lock") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return results

    assert prepare_split(paths, progress=look) == ([], 3)


def test_the_json_is_read_once_no_other_program_prepares(tree, monkeypatch):
    paths = tree[1]
    original = semantic.locked

    def locked_late(path):
        monkeypatch.setattr(semantic, "locked", original)
        edit_json(Path(paths.panoptic_json), lambda content: content.update(info={}))
        assert prepare_split(paths) == ([], 3)
        return original(path)

    monkeypatch.setattr(semantic, "locked", locked_late)
    assert prepare_split(paths) == ([], 0) and made_from(paths.sem_seg_root, paths.panoptic_json)


def test_a_whole_set_is_checked_without_a_lock_where_none_can_be_written(tree, monkeypatch):
    paths = tree[1]
    prepare_split(paths)
    for error, expected in ((errno.EROFS, nullcontext()), (errno.ENOSPC, pytest.raises(OSError))):

        def refuse(path, error=error):
            raise OSError(error, "no", path)

        monkeypatch.setattr(semantic, "locked", refuse)
        with expected:
            assert prepare_split(paths) == ([], 0)


def test_label_maps_that_cannot_be_written_are_one_error(tree, monkeypatch):
    """Not one for each picture."""

    def refuse(path):
        raise OSError(errno.EROFS, "read-only", str(path))

    monkeypatch.setattr(semantic, "whole_file", refuse)
    with pytest.raises(OSError, match="read-only"):
        prepare_split(tree[1])


def test_a_missing_set_leaves_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="panoptic_train.json"):
        prepare_split(split_of_folder(str(tmp_path / "typo"), "train"))
    assert not list(tmp_path.iterdir())


def test_A4_can_be_run_again_and_mends_wrong_maps(tree):
    root, paths = tree
    prepare_split(paths)
    maps = [Path(paths.sem_seg_root) / f"label{i}.png" for i in (1, 2, 3)]
    right = read_label_map(str(maps[0]))
    stamp = maps[2].stat().st_mtime_ns
    Image.fromarray(right + 1).save(maps[0])
    maps[1].write_bytes(b"cut")
    assert prepare_split(paths) == ([], 2)
    np.testing.assert_array_equal(read_label_map(str(maps[0])), right)
    assert maps[2].stat().st_mtime_ns == stamp
    assert not list(Path(paths.sem_seg_root).glob("*.tmp"))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c["images"][0].update(width=32), "is 64x48 pixels, but 'images' says 32x48"),
        (lambda c: c["annotations"][0]["segments_info"].pop(), "not listed: 4000"),
        (lambda c: c["annotations"][0]["segments_info"][0].update(area=1), "segment 1000's area"),
        (lambda c: c["images"].append({"id": 9, "file_name": "a.png", "height": 1, "width": 1}), "image 9: "),
    ],
)
def test_inconsistent_pictures_are_named(tree, change, message):
    root, paths = tree
    edit_json(root / "annotations/panoptic_train.json", change)
    problems, _ = prepare_split(paths)
    assert any(message in line for line in problems), problems


def test_photographs_are_read_as_training_reads_them(tree):
    root, paths = tree
    exif = Image.Exif()
    exif[0x0112] = 6  # stored on its side
    Image.new("RGB", (48, 64)).save(root / "train/photo1.png", exif=exif)
    Image.new("I", (64, 48)).save(root / "train/photo2.tiff")
    (root / "train/photo2.tiff").rename(root / "train/photo2.png")
    problems, _ = prepare_split(paths)
    assert len(problems) == 1 and "photo2.png: pictures of mode I" in problems[0]


@pytest.mark.parametrize("field", ["area", "iscrowd", "category_id"])
def test_B2_missing_segment_field_is_named(tree, field):
    root, paths = tree
    edit_json(root / "annotations/panoptic_train.json", lambda c: c["annotations"][1]["segments_info"][0].pop(field))
    with pytest.raises(ValueError, match=f"image 2, segment 1000 has no '{field}'"):
        prepare_split(paths)


def test_instances_equal_the_panoptic_masks(tree):
    root, paths = tree
    prepare_split(paths)
    content = json.loads(Path(paths.instances_json).read_text())
    ids = np.array([a["id"] for a in content["annotations"]])
    assert (ids == np.arange(1, 5)).all()
    first = content["annotations"][0]
    mask = mask_util.decode(first["segmentation"])
    assert (first["category_id"], first["area"], first["bbox"]) == (7, 400, [4, 10, 20, 20])
    assert mask[10:30, 4:24].all() and mask.sum() == 400


def test_crowds_stay_crowds_among_the_instances_made(tmp_path):
    layout = [(7, (0, 0, 20, 20), 1), (3, (30, 0, 50, 20), 0)]
    paths = split_of_folder(str(write_set(tmp_path / "set", [layout])), "train")
    assert prepare_split(paths) == ([], 1)
    instances = json.loads(Path(paths.instances_json).read_text())["annotations"]
    assert [(instance["category_id"], instance["iscrowd"]) for instance in instances] == [(7, 1), (3, 0)]


def test_instances_are_renewed_with_the_panoptic_json(tree):
    root, paths = tree
    prepare_split(paths)
    made = Path(paths.instances_json)
    written = made.stat().st_mtime_ns
    assert prepare_split(paths) == ([], 0) and made.stat().st_mtime_ns == written
    edit_json(root / "annotations/panoptic_train.json", lambda c: c["categories"][1].update(name="wolf"))
    assert prepare_split(paths) == ([], 0)
    assert {c["name"] for c in json.loads(made.read_text())["categories"]} == {"cat", "wolf", "cow"}


def test_instances_from_elsewhere_stay_and_must_have_the_things_for_categories(tree):
    root, paths = tree
    prepare_split(paths)
    made = Path(paths.instances_json)
    edit_json(made, lambda c: (c.pop("info"), c["annotations"].pop()))
    theirs = made.read_text()
    assert prepare_split(paths) == ([], 0) and made.read_text() == theirs
    edit_json(root / "annotations/panoptic_train.json", lambda c: c["categories"][1].update(name="wolf"))
    (problem,), _ = prepare_split(paths)
    assert problem.startswith(f"{made}: its categories are not the thing categories of ") and made.read_text() == theirs


def test_program_names_bad_files_and_fails_then_succeeds(tree, monkeypatch, capsys):
    root, paths = tree
    good = (root / "panoptic_train/label3.png").read_bytes()
    (root / "panoptic_train/label3.png").unlink()
    command = [sys.executable, "datasets/prepare_coco_panoptic.py", "--root", str(root), "--workers", "1"]
    command += ["--splits", "train", "absent"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, env={"PYTHONPATH": "."})
    assert run.returncode == 1
    assert "label3.png: no such image" in run.stderr and "panoptic_absent.json: missing" in run.stderr
    (root / "panoptic_train/label3.png").write_bytes(good)
    # in this process, which has imported everything already
    monkeypatch.setattr(sys, "argv", command[1:-1])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(REPOSITORY / command[1]), run_name="__main__")
    assert end.value.code == 0 and "3 pictures, 1 label maps made" in capsys.readouterr().out


def test_a_label_map_that_cannot_be_written_is_listed_and_the_rest_made(tree):
    paths = tree[1]
    name = sorted(path.stem for path in Path(paths.panoptic_root).iterdir())[0]
    (Path(paths.sem_seg_root) / f"{name}.png").mkdir(parents=True)
    problems, written = prepare_split(paths)
    assert written == 2 and len(problems) == 1 and "Is a directory" in problems[0]
