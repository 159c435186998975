"""A run's record is that of its training, whatever is started beside it."""

import logging
import subprocess
import sys
import threading
import time

import pytest

from rfpn.engine.output_dir import make_output_dir
from rfpn.engine.setup import load_cfg


@pytest.mark.parametrize("path", ["", "{file}", "{file}/run", "/proc/run"])
def test_an_output_dir_that_cannot_be_made_is_named(path, tmp_path):
    (tmp_path / "file").touch()
    cfg = load_cfg("", ["OUTPUT_DIR", path.format(file=tmp_path / "file")])
    with pytest.raises((OSError, ValueError), match="OUTPUT_DIR"):
        make_output_dir(cfg)


def test_two_trainings_are_not_let_into_one_folder(start, tmp_path):
    """Each would overwrite the checkpoints of the other. What was killed is no hindrance, nor is an evaluation one."""
    code = f"from rfpn.engine.output_dir import claim; claim({str(tmp_path / 'run')!r}); print(1, flush=True); input()"
    start()
    (tmp_path / "run" / ".lock").unlink()
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"1\n"
        with pytest.raises(ValueError, match=f"OUTPUT_DIR {tmp_path / 'run'} is in use: another training"):
            start(resume=True)
        start(eval_only=True)
    finally:
        other.kill()
        other.communicate()
    start(resume=True)


def record(tmp_path, name="config.yaml") -> str | None:
    """A file of the run, if it has it; nothing else that begins like a record may be there."""
    folder = tmp_path / "run"
    assert {path.name for path in folder.glob("config*")} <= {"config.yaml", "config_eval.yaml"}
    return (folder / name).read_text() if (folder / name).is_file() else None


def test_a_launch_that_fails_leaves_the_record_of_the_run(start, tmp_path):
    missing = ["DATASETS.TRAIN", "('pathfinder_14_train_nowhere',)"]
    with pytest.raises(KeyError, match="nowhere"):
        start(*missing)
    assert record(tmp_path) is None
    start().train()
    first = record(tmp_path)
    assert "STEPS: 2" in first
    with pytest.raises(KeyError, match="nowhere"):
        start("MODEL.RECURRENT.STEPS", 9, *missing)
    with pytest.raises(ValueError, match="it is of another model"):
        start("MODEL.PATHFINDER.CHANNELS", 9, resume=True)
    assert record(tmp_path) == first
    start("MODEL.RECURRENT.STEPS", 3, resume=True, config=tmp_path / "run" / "config.yaml")
    assert "STEPS: 3" in record(tmp_path)


def test_a_record_is_told_of_where_it_stays(start, tmp_path, monkeypatch):
    told = []
    listener = logging.Handler()
    listener.emit = lambda entry: told.append(entry.getMessage())
    loggers = [logging.getLogger(name) for name in ("detectron2", "rfpn")]
    for logger in loggers:
        logger.addHandler(listener)
        monkeypatch.setattr(logger, "level", logging.INFO)
        logger.manager._clear_cache()
    try:
        with pytest.raises(KeyError, match="nowhere"):
            start("DATASETS.TRAIN", "('pathfinder_14_train_nowhere',)")
        assert told and not [line for line in told if "config.yaml" in line]
        start()
        start(eval_only=True)
        run = tmp_path / "run"
        said = [f"settings of this run: {run / 'config.yaml'}", f"settings of this evaluation: {run / 'config_eval.yaml'}"]
        assert [line for line in told if line.startswith(("settings of", "Full config"))] == said
    finally:
        for logger in loggers:
            logger.removeHandler(listener)


def test_the_record_has_the_settings_as_they_were_given(start, tmp_path):
    start("SOLVER.REFERENCE_WORLD_SIZE", 2, "SOLVER.BASE_LR", 0.5, "SOLVER.IMS_PER_BATCH", 4)
    assert {"BASE_LR: 0.5", "IMS_PER_BATCH: 4"} <= {line.strip() for line in record(tmp_path).splitlines()}


def test_an_evaluation_writes_its_own_record_beside_that_of_a_run(start, tmp_path):
    start(eval_only=True)
    assert "STEPS: 2" in record(tmp_path) and record(tmp_path, "config_eval.yaml") is None
    start("MODEL.RECURRENT.STEPS", 3, eval_only=True)
    assert "STEPS: 2" in record(tmp_path) and "STEPS: 3" in record(tmp_path, "config_eval.yaml")


def test_evaluations_that_start_together_leave_the_record_of_the_run(start, tmp_path, monkeypatch):
    def slow(cfg, args):
        time.sleep(0.4)
        (tmp_path / "run" / "config.yaml").write_text(cfg.dump())

    start()
    first = record(tmp_path)
    monkeypatch.setattr("rfpn.engine.setup.default_setup", slow)
    settings = [("MODEL.RECURRENT.TEST_STEPS", steps) for steps in (7, 9)]
    evaluations = [threading.Thread(target=start, args=setting, kwargs={"eval_only": True}) for setting in settings]
    for evaluation in evaluations:
        evaluation.start()
        time.sleep(0.2)
    for evaluation in evaluations:
        evaluation.join()
    assert record(tmp_path) == first and "TEST_STEPS: 9" in record(tmp_path, "config_eval.yaml")


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("eval_only", [False, True])
def test_a_full_disk_leaves_the_record_of_the_run_or_none(start, tmp_path, monkeypatch, eval_only, trained):
    def full(cfg, args):
        (tmp_path / "run" / "config.yaml").write_text("half")
        raise OSError(28, "No space left on device")

    if trained:
        start()
    first = record(tmp_path)
    assert (first is not None) == trained
    monkeypatch.setattr("rfpn.engine.setup.default_setup", full)
    with pytest.raises(OSError, match="No space left"):
        start(eval_only=eval_only)
    assert record(tmp_path) == first


def test_a_launch_killed_while_it_kept_the_record_does_not_lose_it(start, tmp_path):
    start()
    path = tmp_path / "run" / "config.yaml"
    first = path.read_text()
    path.rename(path.with_name("config.yaml.kept"))
    path.write_text("half")
    start(eval_only=True)
    assert record(tmp_path) == first
