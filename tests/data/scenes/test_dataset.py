import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rfpn.data.scenes.dataset import write_scenes
from rfpn.data.scenes.render import SceneOptions
from rfpn.data.semantic import prepare_split, split_of_folder

REPOSITORY = Path(__file__).parents[3]
SMALL = SceneOptions(height=64, width=64)


def hashes(root, pattern="**/*"):
    files = sorted(p for p in Path(root).glob(pattern) if p.is_file() and p.suffix != ".lock")
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_F5_same_bytes_for_any_number_of_workers(tmp_path):
    for workers in (1, 8):
        for split in ("train", "val"):
            assert write_scenes(str(tmp_path / str(workers)), split, 34, options=SMALL, workers=workers)
    one = hashes(tmp_path / "1")
    assert one == hashes(tmp_path / "8") and len(one) == 2 * (3 * 34 + 2)
    pictures = [h for name, h in one.items() if name.startswith(("train/", "val/"))]
    assert len(set(pictures)) == 68, "no picture occurs twice, in one split or across both"


def test_seeds_differ_and_a_longer_set_begins_with_the_shorter(tmp_path):
    for name, count, seed in (("a", 3, 0), ("b", 5, 0), ("c", 3, 1)):
        write_scenes(str(tmp_path / name), "train", count, options=SMALL, seed=seed)
    a, b, c = (hashes(tmp_path / name, "train/*") for name in "abc")
    assert a.items() <= b.items() and not set(a.values()) & set(c.values())


def test_set_is_consistent_with_exact_areas(tmp_path):
    write_scenes(str(tmp_path), "val", 12)
    paths = split_of_folder(str(tmp_path), "val")
    assert prepare_split(paths) == ([], 0), "label maps, areas, sizes and ids all fit"
    panoptic = json.loads(Path(paths.panoptic_json).read_text())
    instances = json.loads(Path(paths.instances_json).read_text())
    things = {c["id"] for c in panoptic["categories"] if c["isthing"]}
    segments = [s for a in panoptic["annotations"] for s in a["segments_info"] if s["category_id"] in things]
    for key in ("area", "bbox", "category_id", "iscrowd"):
        assert [s[key] for s in segments] == [a[key] for a in instances["annotations"]], key
    assert {type(image["texture_conflict"]) for image in panoptic["images"]} == {bool}
    assert [c["id"] for c in instances["categories"]] == sorted(things)


def test_A9_no_scene_has_crowds(tmp_path):
    write_scenes(str(tmp_path), "val", 6, options=SMALL)
    for path in (tmp_path / "annotations").iterdir():
        for annotation in json.loads(path.read_text())["annotations"]:
            assert all(record["iscrowd"] == 0 for record in annotation.get("segments_info", [annotation]))


def test_jpeg_pictures(tmp_path):
    write_scenes(str(tmp_path), "train", 2, options=SMALL, image_format="jpg")
    assert Image.open(tmp_path / "train/00000002.jpg").format == "JPEG"
    assert prepare_split(split_of_folder(str(tmp_path), "train")) == ([], 0)


def test_same_set_is_kept_and_another_is_refused(tmp_path):
    assert write_scenes(str(tmp_path), "train", 2, options=SMALL)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    assert not write_scenes(str(tmp_path), "train", 2, options=SMALL)
    with pytest.raises(FileExistsError, match="made with other options: seed 0, not 1; count 2, not 3. Choose another output"):
        write_scenes(str(tmp_path), "train", 3, options=SMALL, seed=1)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize("folder", ["train", "panoptic_train", "panoptic_stuff_train"])
def test_a_set_without_its_pictures_is_not_there(tmp_path, folder, emptied):
    write_scenes(str(tmp_path), "train", 2, options=SMALL)
    shutil.rmtree(tmp_path / folder)
    if emptied:
        (tmp_path / folder).mkdir()
    with pytest.raises(FileExistsError, match="there already, not finished. Choose another output folder, or delete these"):
        write_scenes(str(tmp_path), "train", 2, options=SMALL)


def test_interrupted_run_leaves_nothing_in_place(tmp_path):
    def stop(results):
        next(iter(results))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_scenes(str(tmp_path), "train", 4, options=SMALL, progress=stop)
    assert {p.name for p in tmp_path.iterdir()} == {".train.partial", ".train.partial.lock"}
    assert write_scenes(str(tmp_path), "train", 4, options=SMALL)
    assert not (tmp_path / ".train.partial").exists() and len(list((tmp_path / "train").iterdir())) == 4


def test_two_programs_at_once_make_one_set(tmp_path):
    command = [sys.executable, "datasets/prepare_scenes.py", "--output", str(tmp_path), "--train", "60", "--val", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options = {"cwd": REPOSITORY, "env": {"PYTHONPATH": "."}, **pipes}
    runs = [subprocess.Popen([*command, "--size", "64", "64", "--seed", seed], **options) for seed in "011"]
    ends = [(*run.communicate(timeout=120), run.returncode) for run in runs]
    made = [out for out, _, code in ends if "made" in out and code == 0]
    refused = [error for _, error, code in ends if code == 2]
    assert len(made) == 1 and len(refused) in (1, 2) and all("made with other options" in error for error in refused), ends
    assert prepare_split(split_of_folder(str(tmp_path), "train")) == ([], 0)


def test_seed_and_number_may_be_numpys(tmp_path):
    assert write_scenes(str(tmp_path), "train", np.int64(2), options=SMALL, seed=np.int64(1))
    assert not write_scenes(str(tmp_path), "train", 2, options=SMALL, seed=1)


@pytest.mark.parametrize("wrong", [{"split": "test"}, {"count": 0}, {"image_format": "gif"}, {"seed": -1}])
def test_wrong_arguments(tmp_path, wrong):
    arguments = {"split": "train", "count": 1, **wrong}
    with pytest.raises(ValueError):
        write_scenes(str(tmp_path), arguments.pop("split"), arguments.pop("count"), **arguments)
    assert not list(tmp_path.iterdir())


def test_stuff_and_things_are_all_visible_in_the_label_map(tmp_path):
    write_scenes(str(tmp_path), "train", 6, options=SMALL)
    values = np.unique([np.unique(np.array(Image.open(p)))[-1] for p in (tmp_path / "panoptic_stuff_train").iterdir()])
    assert values.max() <= 4


def test_program_makes_both_splits_and_names_a_wrong_option(tmp_path):
    command = [sys.executable, "datasets/prepare_scenes.py", "--output", str(tmp_path), "--train", "2", "--val", "1"]
    options = {"cwd": REPOSITORY, "capture_output": True, "text": True, "env": {"PYTHONPATH": "."}}
    run = subprocess.run([*command, "--occlusion", "2"], **options)
    assert run.returncode == 2 and "error: occlusion" in run.stderr and not list(tmp_path.iterdir())
    run = subprocess.run([*command, "--size", "64", "80"], **options)
    assert run.returncode == 0 and "2 train scenes made" in run.stdout, run.stderr
    assert Image.open(tmp_path / "val/00000001.png").size == (80, 64)
