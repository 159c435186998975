"""A run's record is that of its training, whatever is started beside it."""

import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rfpn.engine.output_dir import make_output_dir
from rfpn.engine.resume import changed_keys
from rfpn.engine.setup import load_cfg, setup
from rfpn.engine.trainer import Trainer
from tests.analysis.tiny_runs import CONTOURS, SMALL

CONFIGS = Path(__file__).parents[2] / "configs"


def test_paths_in_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    cfg = load_cfg("", ["OUTPUT_DIR", "~/runs/ü 1", "MODEL.WEIGHTS", "~/a.pth"])
    make_output_dir(cfg)
    assert (tmp_path / "runs" / "ü 1").is_dir()
    assert cfg.MODEL.WEIGHTS == str(tmp_path / "a.pth")


@pytest.mark.parametrize("path", ["", "{file}", "{file}/run", "/proc/run"])
def test_an_output_dir_that_cannot_be_made_is_named(path, tmp_path):
    (tmp_path / "file").touch()
    cfg = load_cfg("", ["OUTPUT_DIR", path.format(file=tmp_path / "file")])
    with pytest.raises((OSError, ValueError), match="OUTPUT_DIR"):
        make_output_dir(cfg)


def read(folder, *overrides):
    config = str(CONFIGS / "quick_schedules" / "pathfinder_quick.yaml")
    return load_cfg(config, ["OUTPUT_DIR", str(folder), *map(str, overrides)])


def test_settings_that_a_resumed_run_did_not_have_are_named(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(read(tmp_path).dump())
    other = ["MODEL.RECURRENT.STEPS", 6, "MODEL.RECURRENT.LIPSCHITZ.WEIGHT", 0.0, "DATASETS.TRAIN", "('pathfinder_9_train',)"]
    other += ["INPUT.PATHFINDER_SIZE", 64]
    free = ["SOLVER.MAX_ITER", 9, "MODEL.WEIGHTS", "a.pth", "MODEL.RECURRENT.TEST_STEPS", 3, "DATASETS.TEST", "()"]
    free += ["MODEL.DEVICE", "meta"]
    assert changed_keys(read(tmp_path, *other)) == ([], [])  # no checkpoint: no run to go on with
    (tmp_path / "last_checkpoint").write_text("model_0000001.pth")
    assert changed_keys(read(tmp_path, *free)) == ([], [])
    learnt, restored = changed_keys(read(tmp_path, *free, *other, "SOLVER.BASE_LR", 0.5, "SOLVER.WEIGHT_DECAY", 0.25))
    assert restored == ["SOLVER.BASE_LR 0.001 -> 0.5", "SOLVER.WEIGHT_DECAY 0.0 -> 0.25"]
    assert sorted(learnt) == [
        "DATASETS.TRAIN ['pathfinder_6_train'] -> ['pathfinder_9_train']",
        "INPUT.PATHFINDER_SIZE 32 -> 64",
        "MODEL.RECURRENT.LIPSCHITZ.WEIGHT 0.01 -> 0.0",
        "MODEL.RECURRENT.STEPS 4 -> 6",
    ]
    # of an older version, damaged
    config.write_text("MODEL: {RECURRENT: {STEPS: 5}}")
    assert changed_keys(read(tmp_path)) == (["MODEL.RECURRENT.STEPS 5 -> 4"], [])
    for content in ("", "[1", "words"):
        config.write_text(content)
        assert changed_keys(read(tmp_path)) == ([], [])


def test_all_settings_that_stay_the_checkpoints_are_named(tmp_path):
    (tmp_path / "last_checkpoint").write_text("model_0000001.pth")
    (tmp_path / "config.yaml").write_text(read(tmp_path).dump())
    given = {"SEED": 9, "SOLVER.BASE_LR": 0.5, "SOLVER.BIAS_LR_FACTOR": 2.0, "SOLVER.LR_FACTORS": "(('readout', 2.0),)"}
    given |= {"SOLVER.MOMENTUM": 0.5, "SOLVER.NESTEROV": True, "SOLVER.WEIGHT_DECAY": 0.25}
    given |= {"SOLVER.WEIGHT_DECAY_BIAS": 0.5, "SOLVER.WEIGHT_DECAY_NORM": 0.125}
    learnt, restored = changed_keys(read(tmp_path, *(word for pair in given.items() for word in pair)))
    assert learnt == [] and {line.split()[0] for line in restored} == given.keys()
    # which asks for none
    assert changed_keys(read(tmp_path, "SEED", -1)) == ([], [])


@pytest.fixture
def start(contours, tmp_path, monkeypatch):
    """Starts a run in one folder, but for its training; the loggers stay as they are."""
    monkeypatch.setattr("detectron2.engine.defaults.setup_logger", lambda *_, **__: logging.getLogger("detectron2"))
    monkeypatch.setattr("rfpn.engine.setup.setup_logger", lambda *_, **__: logging.getLogger("rfpn"))

    def run(*overrides, resume=False, eval_only=False, config=CONTOURS) -> Trainer | None:
        sets = ["DATASETS.TRAIN", "('tiny_contours',)", "DATASETS.TEST", "()", "SOLVER.MAX_ITER", "1"]
        options = [*SMALL, *sets, "OUTPUT_DIR", str(tmp_path / "run"), *map(str, overrides)]
        cfg = setup(SimpleNamespace(config_file=str(config), opts=options, resume=resume, eval_only=eval_only))
        if eval_only:
            return None
        trainer = Trainer(cfg)
        trainer.resume_or_load(resume)
        return trainer

    return run


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


def test_resuming_says_what_is_not_taken_over_each_time(start, caplog):
    start().train()
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="rfpn"):
            trainer = start("SOLVER.BASE_LR", 0.5, "SEED", 9, resume=True)
        words = "--resume keeps the checkpoint's value of: SEED 0 -> 9; SOLVER.BASE_LR 0.001 -> 0.5"
        assert words in caplog.text
        assert trainer.scheduler.base_lrs[0] == trainer.optimizer.param_groups[0]["initial_lr"] == 0.001


def test_an_evaluation_of_the_last_checkpoint_takes_nothing_over(start, caplog):
    start().train()
    with caplog.at_level(logging.WARNING, logger="rfpn"):
        start("SOLVER.BASE_LR", 0.5, resume=True, eval_only=True)
    assert "keeps the checkpoint's value" not in caplog.text


def test_weights_that_are_gone_stop_a_run_that_starts_alone(start):
    gone = ["MODEL.WEIGHTS", "nowhere.pth"]
    for resume in (False, True):
        with pytest.raises(FileNotFoundError, match="^MODEL.WEIGHTS .*nowhere.pth does not exist"):
            start(*gone, resume=resume)
    start().train()
    start(*gone, resume=True)


def test_a_rate_that_is_scaled_no_longer_is_not_told_of(start, caplog):
    """The trainer refuses it where the rate in force is another."""
    scaled = ["SOLVER.REFERENCE_WORLD_SIZE", 2, "SOLVER.IMS_PER_BATCH", 4, "SOLVER.BASE_LR", 0.5, "SOLVER.MAX_ITER", 2]
    trainer = start(*scaled, "SOLVER.CHECKPOINT_PERIOD", 2)
    trainer.max_iter = 1
    trainer.train()
    start("SOLVER.REFERENCE_WORLD_SIZE", 0, "SOLVER.IMS_PER_BATCH", 2, "SOLVER.BASE_LR", 0.25, resume=True)
    assert "keeps the checkpoint's value" not in caplog.text
