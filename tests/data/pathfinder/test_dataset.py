import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from rfpn.data.pathfinder import dataset
from rfpn.data.pathfinder.dataset import sample_paths, split_folder, write_split
from rfpn.data.pathfinder.generator import generate_sample
from rfpn.data.pathfinder.registration import load_pathfinder
from rfpn.data.pathfinder.settings import GenerationError, PathfinderSettings

SETTINGS = PathfinderSettings(6, window=128, padding=10, distractors=3)


def write(output, split="train", num=8, **options):
    options = {"settings": SETTINGS, "progress": False, **options}
    return write_split(output, split=split, num=num, **options)


def hashes(output, split="train"):
    folder = split_folder(output, 6, split)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_published_layout(tmp_path):
    assert write(tmp_path, num=3) == 3
    folder = tmp_path / "train" / "curv_contour_length_6"
    names = [f"{kind}/0/sample_{i}.png" for kind in ("imgs", "seg") for i in range(3)]
    assert sorted(hashes(tmp_path)) == sorted([*names, "manifest.json"])
    assert sample_paths(folder, 2007) == (folder / "imgs/2/sample_2007.png", folder / "seg/2/sample_2007.png")
    for path, array in zip(sample_paths(folder, 1), generate_sample(6, 0, 1, window=128, padding=10, distractors=3)):
        with Image.open(path) as picture:
            assert picture.mode == "L"
            np.testing.assert_array_equal(np.asarray(picture), array)


def test_F4_the_manifest_counts_the_samples_on_disk(tmp_path):
    write(tmp_path, num=5, seed=2)
    manifest = json.loads((split_folder(tmp_path, 6, "train") / "manifest.json").read_text())
    assert manifest["num"] == 5 == sum(name.startswith("imgs") for name in hashes(tmp_path))
    assert (manifest["seed"], manifest["split"]) == (2, "train")
    assert PathfinderSettings(**manifest["settings"]) == SETTINGS


def test_F5_files_are_the_same_for_any_number_of_workers_and_never_repeat(tmp_path):
    write(tmp_path / "one", num=120, workers=1)
    write(tmp_path / "three", num=120, workers=3)
    assert hashes(tmp_path / "one") == hashes(tmp_path / "three")
    write(tmp_path / "one", num=40, split="test")
    pictures = [h for s in ("train", "test") for name, h in hashes(tmp_path / "one", s).items() if "imgs" in name]
    assert len(pictures) == len(set(pictures)) == 160


@pytest.mark.parametrize("workers, processes", [(1, 0), (2, 2), (9, 3)])
def test_there_are_as_many_processes_as_workers_and_tasks(monkeypatch, workers, processes):
    asked = [0]

    @contextlib.contextmanager
    def pool(number, _):
        asked.append(number)
        yield SimpleNamespace(map=map)

    monkeypatch.setattr(dataset, "worker_pool", pool)
    written = list(dataset._write_samples(len, list(range(2 * dataset.SAMPLES_PER_TASK + 1)), workers))
    assert written == [dataset.SAMPLES_PER_TASK] * 2 + [1] and asked[-1] == processes


UNGUARDED = """
import sys
from rfpn.data.pathfinder.dataset import write_split
from rfpn.data.pathfinder.settings import PathfinderSettings
write_split(sys.argv[1], PathfinderSettings(6, window=128, padding=10), "train", 120, workers=2, progress=False)
"""


def test_workers_that_cannot_start_end_a_script_without_main_guard(tmp_path):
    """Processes that are started in place of ended ones would go on for ever."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, script, tmp_path / "set"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1 and "BrokenProcessPool" in ended.stderr and "if __name__ == '__main__'" in ended.stderr


def stop_at_fourth(monkeypatch, *args, **kwargs):
    """Write, and be stopped before the fourth sample."""
    original, calls = dataset._write_sample, []

    def write_three(*sample):
        calls.append(sample)
        if len(calls) == 4:
            raise KeyboardInterrupt
        original(*sample)

    with monkeypatch.context() as patch:
        patch.setattr(dataset, "_write_sample", write_three)
        with pytest.raises(KeyboardInterrupt):
            write(*args, **kwargs)


def test_F4_a_stopped_run_goes_on_and_a_finished_one_does_nothing(tmp_path, monkeypatch):
    write(tmp_path / "whole")
    stop_at_fourth(monkeypatch, tmp_path / "stopped")
    folder = split_folder(tmp_path / "stopped", 6, "train")
    assert not (folder / "manifest.json").exists() and (folder / "manifest.unfinished.json").exists()
    (folder / "seg/0/sample_3.png").write_bytes(b"")  # a target without its image counts as missing
    assert write(tmp_path / "stopped") == 5
    assert hashes(tmp_path / "stopped") == hashes(tmp_path / "whole")
    assert write(tmp_path / "stopped") == 0


def test_a_manifest_left_from_removed_samples_does_not_speak_for_new_ones(tmp_path, monkeypatch):
    write(tmp_path, seed=0)
    folder = split_folder(tmp_path, 6, "train")
    for kind in ("imgs", "seg"):
        shutil.rmtree(folder / kind)
    stop_at_fourth(monkeypatch, tmp_path, seed=1)
    assert not (folder / "manifest.json").exists()
    with pytest.raises(FileExistsError, match="seed 1, not 0"):
        write(tmp_path, seed=0)
    assert write(tmp_path, seed=1) == 5 and not (folder / "manifest.unfinished.json").exists()


def test_the_unfinished_manifest_outranks_a_finished_one(tmp_path):
    """A run that is killed may leave both."""
    write(tmp_path, seed=1)
    folder = split_folder(tmp_path, 6, "train")
    made = hashes(tmp_path)
    shutil.copy(folder / "manifest.json", folder / "manifest.unfinished.json")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "seed": 0}))
    with pytest.raises(FileExistsError, match="seed 1, not 0"):
        write(tmp_path, seed=0)
    assert write(tmp_path, seed=1) == 0 and hashes(tmp_path) == made


def test_a_run_killed_before_its_last_step_can_be_finished(tmp_path, monkeypatch):
    write(tmp_path)
    folder, made = split_folder(tmp_path, 6, "train"), hashes(tmp_path)
    sample_paths(folder, 5)[0].unlink()
    original = os.replace

    def stop_at_manifest(source, target):
        if source == folder / "manifest.unfinished.json":
            raise KeyboardInterrupt
        original(source, target)

    monkeypatch.setattr(os, "replace", stop_at_manifest)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="not finished"):
        load_pathfinder(str(folder))
    assert write(tmp_path) == 0 and hashes(tmp_path) == made
    assert len(load_pathfinder(str(folder))) == 8


def test_deleted_and_empty_files_of_a_finished_split_are_made_again(tmp_path):
    write(tmp_path)
    before = hashes(tmp_path)
    sample_paths(split_folder(tmp_path, 6, "train"), 5)[1].unlink()
    sample_paths(split_folder(tmp_path, 6, "train"), 2)[0].write_bytes(b"")
    assert write(tmp_path) == 2
    assert hashes(tmp_path) == before


def test_a_full_disk_is_named_and_leaves_no_half_file(tmp_path, monkeypatch):
    def save(picture, path, *args, **options):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", save)
    with pytest.raises(OSError, match="No space left on device: '.*seg/0/sample_0.png'"):
        write(tmp_path)
    assert list(hashes(tmp_path)) == ["manifest.unfinished.json"]
    monkeypatch.undo()
    assert write(tmp_path) == 8


def test_F3_settings_that_give_no_sample_leave_nothing_behind(tmp_path):
    with pytest.raises(GenerationError, match="length=30"):
        write(tmp_path, settings=PathfinderSettings(30, window=48, padding=6))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change, named",
    [
        ({"num": 9}, "num 8, not 9"),
        ({"seed": 1}, "seed 0, not 1"),
        ({"settings": PathfinderSettings(6, window=128, padding=10, distractors=2)}, "distractors 3, not 2"),
    ],
)
def test_F4_other_parameters_in_the_same_folder_are_refused(tmp_path, change, named):
    write(tmp_path)
    before = hashes(tmp_path)
    with pytest.raises(FileExistsError, match=named):
        write(tmp_path, **change)
    assert hashes(tmp_path) == before


def test_two_programs_at_once_mix_no_samples(tmp_path, monkeypatch):
    """The other one begins between the look at the folder and the first sample."""
    original = dataset.locked

    def locked_late(path):
        monkeypatch.setattr(dataset, "locked", original)
        write(tmp_path, seed=1)
        return original(path)

    monkeypatch.setattr(dataset, "locked", locked_late)
    with pytest.raises(FileExistsError, match="seed 1, not 0"):
        write(tmp_path)
    manifest = json.loads((split_folder(tmp_path, 6, "train") / "manifest.json").read_text())
    assert manifest["seed"] == 1 and write(tmp_path, seed=1) == 0


def test_one_program_writes_at_a_time(tmp_path, monkeypatch):
    original, folder = dataset._write_sample, split_folder(tmp_path, 6, "train")

    def write_locked(*args):
        with open(f"{folder}.lock") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        original(*args)

    monkeypatch.setattr(dataset, "_write_sample", write_locked)
    assert write(tmp_path, num=2) == 2


def test_samples_of_unknown_origin_are_refused(tmp_path):
    write(tmp_path)
    (split_folder(tmp_path, 6, "train") / "manifest.json").unlink()
    with pytest.raises(FileExistsError, match="without a manifest.json"):
        write(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 10_000, '{"settings": 5}', '{"num": NaN}'])
def test_F4_a_damaged_manifest_is_named(tmp_path, text):
    write(tmp_path, num=2)
    path = split_folder(tmp_path, 6, "train") / "manifest.json"
    path.write_text(text)
    with pytest.raises((ValueError, FileExistsError), match=str(path.parent)):
        write(tmp_path, num=2)


def test_parameters_that_never_gave_a_sample_do_not_block_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "_write_sample", lambda *args: (_ for _ in ()).throw(RuntimeError))
    with pytest.raises(RuntimeError):
        write(tmp_path)
    monkeypatch.undo()
    assert write(tmp_path, num=2) == 2


def test_counts_and_seeds_may_be_numbers_of_numpy(tmp_path):
    assert write(tmp_path, num=np.int64(2), seed=np.int64(1), workers=np.int64(1)) == 2
    assert write(tmp_path, num=4 / 2, seed=1) == 0


@pytest.mark.parametrize("option", [{"num": 0}, {"num": 10**12}, {"workers": 0}, {"seed": -1}, {"split": "val"}])
def test_wrong_arguments_are_refused(tmp_path, option):
    with pytest.raises(ValueError):
        write(tmp_path, **option)
    assert not list(tmp_path.iterdir())
