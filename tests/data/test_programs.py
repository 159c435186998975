"""How the programs of datasets/ end early, and where they look for data."""

import importlib.util
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from tests.data.tiny_panoptic import mixed_layouts, write_set

PROGRAMS = Path(__file__).parents[2] / "datasets"
# program -> what does its work, and arguments, the last of which takes a folder
JOBS = {
    "prepare_coco_panoptic": ("prepare_split", ["--splits", "train", "--root"]),
    "prepare_scenes": ("write_scenes", ["--output"]),
    "prepare_pathfinder": ("write_split", ["--length", "6", "--split", "test", "--num", "1", "--output"]),
}


def load(name):
    """The program as a module."""
    spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(
    "error, status, words",
    [
        (KeyboardInterrupt(), 130, "interrupted: run the same command again"),
        (BrokenProcessPool("a child process terminated abruptly"), 2, "error: a process was ended from outside"),
    ],
)
def test_programs_end_in_one_line(tmp_path, monkeypatch, capsys, name, error, status, words):
    def fail(*args, **options):
        raise error

    program, (work, arguments) = load(name), JOBS[name]
    write_set(tmp_path, mixed_layouts())
    monkeypatch.setattr(program, work, fail)
    monkeypatch.setattr("sys.argv", [name, *arguments, str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        program.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == status and line.startswith(words)


@pytest.mark.parametrize("arguments", [["--workers", "0"], ["--splits", "train", "--workers", "-1"]])
def test_wrong_settings_of_coco_end_with_status_2(monkeypatch, capsys, arguments):
    monkeypatch.setattr("sys.argv", ["prepare_coco_panoptic", *arguments])
    with pytest.raises(SystemExit) as end:
        load("prepare_coco_panoptic").main()
    assert end.value.code == 2 and capsys.readouterr().err.startswith("error: --workers must be at least 1")


def test_faults_of_a_split_are_told_before_the_next_is_interrupted(tmp_path, monkeypatch, capsys):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    program = load("prepare_coco_panoptic")
    write_set(tmp_path, mixed_layouts())
    monkeypatch.setattr(program, "prepare_split", interrupt)
    monkeypatch.setattr("sys.argv", ["prepare_coco_panoptic", "--root", str(tmp_path), "--splits", "absent", "train"])
    with pytest.raises(SystemExit) as end:
        program.main()
    assert end.value.code == 130 and "panoptic_absent.json: missing" in capsys.readouterr().err


def test_default_folders_are_where_sets_are_registered(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DETECTRON2_DATASETS", "~/sets")
    pathfinder = load("prepare_pathfinder").parse_args(["--length", "6", "--split", "test", "--num", "1"])
    assert load("prepare_coco_panoptic").build_parser().get_default("root") == str(tmp_path / "sets" / "coco")
    assert load("prepare_scenes").build_parser().get_default("output") == str(tmp_path / "sets" / "scenes")
    assert pathfinder.output == tmp_path / "sets" / "pathfinder"
