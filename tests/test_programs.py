"""How programs end early, and where those of datasets/ look for data."""

import argparse
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from detectron2.data.detection_utils import SizeMismatchError
from torch.utils.data import DataLoader

from rfpn.data.workers import worker_pool
from rfpn.programs import one_line_errors
from tests.data.tiny_panoptic import mixed_layouts, write_set

PROGRAMS = Path(__file__).parents[1] / "datasets"
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


class Failing(list):
    def __getitem__(self, index):
        raise next(iter(self))


def read_by_a_worker(error):
    list(DataLoader(Failing([error]), num_workers=1))


def fail(error):
    raise error


def stumble():
    """As libraries do whose clean-up relies on what was left half done."""
    try:
        raise KeyboardInterrupt
    finally:
        {}["what is not there yet"]


class Interrupted:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def lose_an_interrupt():
    """Python reports what is raised in __del__, and goes on."""
    Interrupted()
    time.sleep(20)


@pytest.mark.parametrize(
    "run, code, line",
    [
        (lambda: fail(ValueError("SOME.KEY\n  is wrong")), 2, "error: SOME.KEY is wrong"),
        (lambda: fail(KeyError("SOME.KEY is unknown")), 2, "error: SOME.KEY is unknown"),
        (lambda: fail(FileNotFoundError(2, os.strerror(2), "a.png")), 2, "error: a.png: does not exist"),
        (lambda: read_by_a_worker(FileNotFoundError(2, os.strerror(2), "a.png")), 2, "error: a.png: does not exist"),
        (lambda: fail(PermissionError(13, "Permission denied", "a.png")), 2, "error: a.png: Permission denied"),
        (lambda: fail(FileExistsError(17, "File exists; set another", "a")), 2, "error: a: File exists; set another"),
        (lambda: fail(OSError(5, "Input/output error")), 2, "error: [Errno 5] Input/output error"),
        (lambda: os.makedirs(__file__, exist_ok=True), 2, f"error: {__file__}: is a file, where a folder is needed"),
        (lambda: open(f"{__file__}/a"), 2, f"error: {__file__}/a: is, or lies below, a file, where a folder is needed"),
        (lambda: open(PROGRAMS), 2, f"error: {PROGRAMS}: is a folder, where a file is needed"),
        (lambda: fail(FloatingPointError("iteration 3: not finite: loss")), 3, "error: iteration 3: not finite: loss"),
        (lambda: fail(KeyboardInterrupt()), 130, "interrupted"),
        (stumble, 130, "interrupted"),
        (lose_an_interrupt, 130, "interrupted"),
        (Interrupted, 130, "interrupted"),
        (lambda: read_by_a_worker(ValueError("photo.png: is\ncut short")), 2, "error: photo.png: is cut short"),
        # told of with the name of its module
        (lambda: read_by_a_worker(SizeMismatchError("photo.png: 2x2")), 2, "error: photo.png: 2x2"),
    ],
)
def test_wrong_input_ends_in_one_line(run, code, line, capsys):
    with pytest.raises(SystemExit) as end, one_line_errors():
        run()
    assert end.value.code == code
    assert capsys.readouterr().err == line + "\n"


class Killed(list):
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_loaders_worker_that_is_killed_ends_the_program_in_one_line(capsys):
    with pytest.raises(SystemExit) as end, one_line_errors():
        list(DataLoader(Killed([0]), num_workers=1))
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"error: DataLoader worker \(pid.*[a-z], perhaps for lack of memory; set a smaller DATALOADER", line)


def test_faults_of_the_program_keep_their_traceback():
    with pytest.raises(AttributeError), one_line_errors():
        fail(AttributeError("a bug"))
    with pytest.raises(KeyError), one_line_errors():
        fail(KeyError("p9"))
    with pytest.raises(RuntimeError), one_line_errors():
        fail(RuntimeError("a bug"))


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(
    "error, status, words",
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenProcessPool("a child process terminated abruptly"), 2, "error: a process was killed from outside"),
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


def test_a_root_of_coco_that_is_not_there_is_told_once(tmp_path, monkeypatch, capsys):
    """Not by every folder of every split."""
    monkeypatch.setattr("sys.argv", ["prepare_coco_panoptic", "--root", str(tmp_path / "coco")])
    with pytest.raises(SystemExit) as end:
        load("prepare_coco_panoptic").main()
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and line.startswith(f"error: --root {tmp_path / 'coco'} is no folder; datasets/README.md")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--train", "-1"], "--train must be a whole number of at least 0, got -1"),
        (["--val", "-1"], "--val must be a whole number of at least 0, got -1"),
        (["--seed", "-1"], "--seed must be a whole number of at least 0, got -1"),
        (["--workers", "0"], "--workers must be a whole number of at least 1, got 0"),
        (["--output", __file__], f"--output {__file__} is a file, give a folder"),
    ],
)
def test_wrong_settings_of_scenes_are_named(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.setattr("sys.argv", ["prepare_scenes", "--output", str(tmp_path), *arguments])
    with pytest.raises(SystemExit) as end:
        load("prepare_scenes").main()
    assert end.value.code == 2 and words in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_what_the_system_says_of_a_file_of_coco_is_told_in_words(tmp_path, monkeypatch, capsys):
    path = write_set(tmp_path, mixed_layouts()) / "annotations" / "panoptic_train.json"
    path.unlink()
    path.mkdir()
    monkeypatch.setattr("sys.argv", ["prepare_coco_panoptic", "--root", str(tmp_path), "--splits", "train"])
    assert load("prepare_coco_panoptic").main() == 1
    assert f"train: {path}: is a folder, where a file is needed" in capsys.readouterr().err


def test_a_file_in_the_place_of_pathfinders_folder_is_named(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["prepare_pathfinder", *JOBS["prepare_pathfinder"][1], __file__])
    with pytest.raises(SystemExit) as end:
        load("prepare_pathfinder").main()
    assert end.value.code == 2 and f"--output {__file__} is a file, give a folder" in capsys.readouterr().err


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


@pytest.mark.parametrize("name", JOBS)
def test_help_takes_any_folder(monkeypatch, capsys, name):
    monkeypatch.setenv("DETECTRON2_DATASETS", "/sets/100%d")
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        load(name).main()
    assert end.value.code == 0 and "/sets/100%d" in capsys.readouterr().out


@pytest.mark.parametrize("name", JOBS)
def test_help_explains_every_option(monkeypatch, name):
    read = argparse.ArgumentParser.parse_args

    def explained(parser, args=None, namespace=None):
        assert not [option for action in parser._actions for option in action.option_strings if not action.help]
        return read(parser, ["--help"])

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", explained)
    with pytest.raises(SystemExit):
        load(name).main()


KILLED = """
import time
from rfpn.data.workers import worker_pool
if __name__ == "__main__":
    with worker_pool(2) as pool:
        print(*pool.map(abs, [1, 2]), flush=True)
        time.sleep(60)
"""


def test_workers_end_with_a_killed_program(tmp_path):
    """They would wait for ever and hold its output open, so that a pipeline hangs."""
    script = tmp_path / "script.py"
    script.write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": str(PROGRAMS.parent)}
    program = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=environment)
    program.stdout.readline()
    program.kill()
    # end of file: nobody holds the pipe any more
    assert program.communicate(timeout=20)[0] == b""


def test_workers_leave_ctrl_c_to_the_program():
    with worker_pool(1) as pool:
        assert pool.submit(signal.getsignal, signal.SIGINT).result() == signal.SIG_IGN


def test_modules_that_register_own_sets_are_imported(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from detectron2.data import DatasetCatalog\nDatasetCatalog.register('mine_train', lambda: [])\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PROGRAMS.parent}", "RFPN_IMPORT": "json, mine"}
    show = "from rfpn.config import get_cfg; get_cfg(); from detectron2.data import DatasetCatalog; "
    show += "print('mine_train' in DatasetCatalog)"
    command = [sys.executable, "-W", "ignore", "-c", show]
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert found.stdout.strip() == "True", found.stderr
    missing = subprocess.run(command, env={**environment, "RFPN_IMPORT": "no_such"}, capture_output=True, text=True)
    assert "ValueError: RFPN_IMPORT names no_such: No module named 'no_such'; is its folder in PYTHONPATH?" in missing.stderr
