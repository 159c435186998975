"""A run that is killed again and again ends like one that never was."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from detectron2.engine import hooks
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rfpn.engine.resume import cut_log
from rfpn.engine.setup import load_cfg
from rfpn.engine.trainer import Trainer
from tests.analysis.tiny_runs import CONTOURS, SCENES, SMALL, assert_equal

JOB = Path(__file__).with_name("killed_runs.py")
# what a run's own process tells, not its training
OF_THE_PROCESS = ("time", "data_time", "rank_data_time", "eta_seconds", "process")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders ``whole`` and ``killed``, and what the lives printed."""
    folder = tmp_path_factory.mktemp("runs")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(JOB), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return folder, done


def log(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.json").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key.split("/")[0] not in OF_THE_PROCESS} for line in lines]


def test_D5_E11_the_loss_log_of_a_killed_run_equals_that_of_a_whole_one(runs):
    whole, killed = log(runs[0] / "whole"), log(runs[0] / "killed")
    assert [line["iteration"] for line in whole] == list(range(19, 200, 20))
    assert {"total_loss", "loss_lipschitz", "lr"} <= whole[0].keys()
    assert len({line["total_loss"] for line in whole}) == len(whole)
    assert whole == killed


def test_D5_a_killed_run_leaves_the_same_weights_and_state_bit_by_bit(runs):
    whole, killed = (torch.load(runs[0] / name / "model_final.pth", weights_only=True) for name in ("whole", "killed"))
    assert_equal(whole, killed)
    assert whole["trainer"]["samples"] == 400
    # steps since the loss scale changed
    assert whole["trainer"]["_trainer"]["grad_scaler"]["_growth_tracker"] == 200
    moments = whole["trainer"]["_trainer"]["optimizer"]["state"]
    assert moments and all(float(moment["step"]) == 200 for moment in moments.values())


def test_each_life_starts_at_the_last_checkpoint(runs):
    starts = re.findall(r"Starting training from iteration (\d+)", runs[1].stdout)
    assert [int(start) for start in starts] == [0, 0, 0, 0, 40, 80, 120, 120]


def test_a_full_disk_ends_the_run_with_one_line(runs):
    (line,) = [line for line in runs[1].stderr.splitlines() if line.startswith("error:")]
    assert "model_0000159.pth could not be written: File too large" in line
    assert "the last good checkpoint is model_0000119.pth" in line


def test_what_a_leak_would_make_grow_is_logged(runs):
    lines = [json.loads(line) for line in (runs[0] / "whole" / "metrics.json").read_text().splitlines()]
    assert all(line["process/children"] == 0 and line["process/host_memory"] > 100 for line in lines)
    assert len({line["process/open_files"] for line in lines}) == 1


def test_nothing_unfinished_is_left(runs):
    for name in ("whole", "killed"):
        assert not list((runs[0] / name).glob("*.partial*"))
        assert (runs[0] / name / "last_checkpoint").read_text() == "model_final.pth"


@pytest.mark.usefixtures("contours")
def test_accumulated_batches_are_counted_on_resuming(tmp_path):
    def train(name, iterations, resume=False):
        options = [*SMALL, *"SOLVER.IMS_PER_BATCH 2 SOLVER.ACCUMULATE 2 SOLVER.MAX_ITER 4 SEED 1 DATASETS.TEST ()".split()]
        options += ["DATASETS.TRAIN", "('tiny_contours',)", "OUTPUT_DIR", str(tmp_path / name)]
        torch.manual_seed(0)
        trainer = Trainer(load_cfg(str(CONTOURS), options))
        trainer.resume_or_load(resume)
        trainer.max_iter = iterations
        trainer.train()
        return trainer

    whole, stopped = train("whole", 4), train("stopped", 2)
    resumed = train("stopped", 4, resume=True)
    assert (whole.samples, stopped.samples, resumed.start_iter, resumed.samples) == (16, 8, 2, 16)
    assert_equal(whole.model.state_dict(), resumed.model.state_dict())
    assert_equal(whole.state_dict()["_trainer"], resumed.state_dict()["_trainer"])


@pytest.mark.parametrize(
    "tail, kept",
    [
        ("", 3),
        ('{"iteration": 39, "total_loss": 1}\n', 3),
        # the iteration that comes next
        ('{"iteration": 20, "total_loss": 1}\n', 3),
        ('{"iteration": 20, "PQ": 1}\n{"iteration": 39, "total_loss": 1}\n', 4),
        # that was skipped
        ('{"iteration": 20, "lr": 0.1, "skipped_steps": 1}\n', 3),
        ('{"iteration": 3', 3),
        ('{"iteration": 3}', 3),
        ("[1]\n", 3),
        ('{"iteration": null}\n', 3),
    ],
)
def test_a_log_is_cut_where_the_run_goes_on(tmp_path, tail, kept):
    whole = "".join(f'{{"iteration": {i}, "total_loss": 2}}\n' for i in (0, 9, 19)) + tail
    path = tmp_path / "metrics.json"
    path.write_text(whole)
    cut_log(str(path), 20)
    assert path.read_text() == "".join(whole.splitlines(keepends=True)[:kept])
    cut_log(str(tmp_path / "missing.json"), 20)


def test_scores_behind_a_later_line_stay(tmp_path):
    """Writers put those of iteration 29 behind the line of 39."""
    path = tmp_path / "metrics.json"
    lines = [f'{{"iteration": {i}, "{name}": 2}}\n' for i, name in ((19, "total_loss"), (39, "total_loss"), (29, "PQ"))]
    path.write_text("".join(lines))
    cut_log(str(path), 30)
    assert path.read_text() == lines[0] + lines[2]


@pytest.mark.usefixtures("scenes")
def test_precise_statistics_are_the_same_after_resuming(tmp_path):
    """A random seed, which the checkpoint keeps, and three samples in batches of two: the stream's second batch is another."""

    def train(name, iterations, resume=False):
        options = "MODEL.DEVICE cpu MODEL.RESNETS.NORM BN SOLVER.IMS_PER_BATCH 2 SOLVER.MAX_ITER 4 SEED -1".split()
        options += "TEST.EVAL_PERIOD 2 TEST.PRECISE_BN.ENABLED True TEST.PRECISE_BN.NUM_ITER 1 DATASETS.TEST ()".split()
        torch.manual_seed(0)
        np.random.seed(0 if not resume else 1)
        sets = ["DATASETS.TRAIN", "('tiny_scenes',)", "OUTPUT_DIR", str(tmp_path / name)]
        trainer = Trainer(load_cfg(str(SCENES), [*options, *sets]))
        trainer.resume_or_load(resume)
        trainer.max_iter = iterations
        trainer.train()
        return trainer.model.state_dict()

    whole = train("whole", 4)
    train("stopped", 2)
    assert_equal(whole, train("stopped", 4, resume=True))


def save_after_training(trainer, monkeypatch):
    trainer.train()
    trainer.checkpointer.save("mine")


def save_on_interrupt(trainer, monkeypatch):
    """In the third step, once its losses are there."""
    gather = trainer._trainer._gather

    def interrupted(*arguments):
        if trainer.iter == 2:
            raise KeyboardInterrupt
        return gather(*arguments)

    monkeypatch.setattr(trainer._trainer, "_gather", interrupted)
    trainer.max_iter = 4
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.checkpointer.save("mine")


def save_the_best_at_the_end(trainer, monkeypatch):
    trainer.register_hooks([hooks.BestCheckpointer(0, trainer.checkpointer, "pathfinder/IoU", file_prefix="mine")])
    trainer.train()


@pytest.mark.usefixtures("contours")
@pytest.mark.parametrize("save", [save_after_training, save_on_interrupt, save_the_best_at_the_end])
def test_a_run_goes_on_after_its_last_finished_step_whenever_it_was_saved(tmp_path, monkeypatch, save):
    """Detectron2's own count is one too high outside the hooks of a step."""

    def build(name, iterations, resume=False):
        # a rate that does not depend on MAX_ITER, and falls once the run has been resumed
        options = [*SMALL, *"SOLVER.IMS_PER_BATCH 2 SOLVER.WARMUP_ITERS 0 SOLVER.STEPS (3,) SEED 1".split()]
        options += ["DATASETS.TRAIN", "('tiny_contours',)", "DATASETS.TEST", "('tiny_contours',)"]
        options += ["OUTPUT_DIR", str(tmp_path / name), "SOLVER.MAX_ITER", iterations]
        torch.manual_seed(0)
        trainer = Trainer(load_cfg(str(CONTOURS), options))
        trainer.resume_or_load(resume)
        return trainer

    whole, stopped = build("whole", 4), build("stopped", 2)
    whole.train()
    save(stopped, monkeypatch)
    assert (tmp_path / "stopped" / "last_checkpoint").read_text() == "mine.pth"
    resumed = build("stopped", 4, resume=True)
    assert (resumed.start_iter, resumed.samples, resumed.scheduler.last_epoch) == (2, 4, 2)
    resumed.train()
    assert_equal(whole.model.state_dict(), resumed.model.state_dict())
    assert_equal(whole.state_dict()["_trainer"], resumed.state_dict()["_trainer"])


def test_tensorboard_shows_what_followed_a_checkpoint_once(start, tmp_path):
    """TensorBoard's files are not cut as metrics.json is."""
    sets = ["DATASETS.TEST", "('tiny_contours',)", "SOLVER.CHECKPOINT_PERIOD", 2]
    start(*sets, "SOLVER.MAX_ITER", 4).train()
    (tmp_path / "run" / "last_checkpoint").write_text("model_0000001.pth")
    start(*sets, "SOLVER.MAX_ITER", 4, resume=True).train()
    start(*sets, "SOLVER.MAX_ITER", 6, resume=True).train()
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    assert [event.step for event in events.Scalars("total_loss")] == [3, 5]
    # last scores bear the number of the iteration that would have followed
    assert [event.step for event in events.Scalars("pathfinder/IoU")] == [1, 4, 6]


@pytest.mark.usefixtures("contours")
@pytest.mark.parametrize("saved, named", [(False, "none"), (True, "mine.pth")])
def test_losses_that_are_not_finite_name_the_checkpoint_to_go_on_with_or_none(tmp_path, monkeypatch, saved, named):
    options = [*SMALL, "DATASETS.TRAIN", "('tiny_contours',)", "DATASETS.TEST", "()", "OUTPUT_DIR", str(tmp_path)]
    trainer = Trainer(load_cfg(str(CONTOURS), options))
    if saved:
        trainer.checkpointer.save("mine")
    monkeypatch.setattr(trainer._trainer, "_losses", lambda data: {"loss": next(trainer.model.parameters()).sum() * np.nan})
    with pytest.raises(FloatingPointError, match=f"not finite: loss; .*; the last good checkpoint is {named}$"):
        trainer.train()


class InterruptedFile(io.BytesIO):
    """Ctrl-C comes with the third write; one with the first stays what it is."""

    writes = 0

    def write(self, content):
        self.writes += 1
        if self.writes == 3:
            raise KeyboardInterrupt
        return super().write(content)


@pytest.mark.usefixtures("contours")
def test_ctrl_c_while_a_checkpoint_is_written_is_no_error_in_the_log(tmp_path, monkeypatch, caplog):
    """torch makes a RuntimeError of it."""
    options = [*SMALL, "DATASETS.TRAIN", "('tiny_contours',)", "DATASETS.TEST", "()", "OUTPUT_DIR", str(tmp_path)]
    trainer = Trainer(load_cfg(str(CONTOURS), [*options, "SOLVER.MAX_ITER", 2, "SOLVER.CHECKPOINT_PERIOD", 1]))
    trainer.checkpointer.save("mine")
    save = torch.save
    monkeypatch.setattr(torch, "save", lambda data, file: save(data, InterruptedFile()))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert "Exception during training" not in caplog.text
    assert (tmp_path / "last_checkpoint").read_text() == "mine.pth"


@pytest.mark.usefixtures("contours")
def test_a_checkpoint_from_before_the_first_step_starts_anew(tmp_path):
    options = [*SMALL, "DATASETS.TRAIN", "('tiny_contours',)", "DATASETS.TEST", "()", "OUTPUT_DIR", str(tmp_path)]
    cfg = load_cfg(str(CONTOURS), options)
    Trainer(cfg).checkpointer.save("mine")
    resumed = Trainer(cfg)
    resumed.resume_or_load()
    assert resumed.start_iter == 0
    resumed.checkpointer.save("mine")
    assert torch.load(tmp_path / "mine.pth", weights_only=True)["trainer"]["iteration"] == -1


@pytest.mark.usefixtures("contours")
@pytest.mark.parametrize("state, words", [(None, "it holds weights alone"), ({}, "it lacks the trainer's _trainer, seed, sam")])
def test_a_checkpoint_without_the_state_of_training_is_refused(tmp_path, state, words):
    """It would go on from the second iteration, with a new optimizer, and cut the log there."""
    options = [*SMALL, "DATASETS.TRAIN", "('tiny_contours',)", "DATASETS.TEST", "()", "OUTPUT_DIR", str(tmp_path)]
    cfg = load_cfg(str(CONTOURS), options)
    weights = {"model": Trainer.build_model(cfg).state_dict()}
    torch.save(weights if state is None else {**weights, "trainer": state}, tmp_path / "model.pth")
    (tmp_path / "last_checkpoint").write_text("model.pth")
    log = tmp_path / "metrics.json"
    log.write_text('{"iteration": 19, "total_loss": 2}\n')
    with pytest.raises(ValueError, match=f"cannot be resumed, {words}.*; start anew with MODEL.WEIGHTS set to it"):
        Trainer(cfg).resume_or_load()
    assert log.read_text()
