"""Scalars that the trainer's hooks log."""

import json

import pytest

from rfpn.engine.setup import load_cfg
from rfpn.engine.trainer import Trainer
from tests.analysis.tiny_runs import CONTOURS, SMALL


SETS = ["DATASETS.TRAIN", "('tiny_contours',)", "DATASETS.TEST", "('tiny_contours',)"]


def build(folder, overrides: str) -> Trainer:
    return Trainer(load_cfg(str(CONTOURS), [*SMALL, *SETS, "OUTPUT_DIR", str(folder), *overrides.split()]))


def log(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.json").read_text().splitlines()]


@pytest.mark.usefixtures("contours")
def test_recurrent_scalars_are_those_of_training_also_where_an_evaluation_falls(tmp_path):
    """Evaluation has no Neumann series and no penalty."""
    overrides = "SOLVER.IMS_PER_BATCH 2 SOLVER.MAX_ITER 40 TEST.EVAL_PERIOD 20 MODEL.RECURRENT.TEST_STEPS 3"
    build(tmp_path, overrides + " MODEL.RECURRENT.LIPSCHITZ.COEFFICIENT 0.0").train()
    logged = {line["iteration"]: line for line in log(tmp_path) if "total_loss" in line}
    assert list(logged) == [19, 39] and "pathfinder/IoU" in logged[19]
    for line in logged.values():
        assert line["recurrent/neumann_length"] == 4 and line["recurrent/truncated_share"] == 0
        assert line["recurrent/penalty"] > 0


@pytest.mark.usefixtures("contours")
@pytest.mark.parametrize("period, said", [(5, True), (20, False), (0, False)])
def test_evaluations_that_the_log_has_no_line_for_are_told_of(tmp_path, caplog, period, said):
    """The storage keeps the last value of each name alone."""
    build(tmp_path, f"SOLVER.MAX_ITER 23 TEST.EVAL_PERIOD {period}")
    assert ("log.txt has them all" in caplog.text) == said


@pytest.mark.usefixtures("contours")
def test_a_finished_run_that_is_resumed_has_its_last_iteration_and_its_scores_once(tmp_path):
    overrides = "SOLVER.MAX_ITER 3 TEST.EVAL_PERIOD 0"
    build(tmp_path, overrides).train()
    last, scores = whole = log(tmp_path)
    # although 3 is no multiple of the period
    assert last["iteration"] == 2 and "recurrent/residual" in last
    assert scores["iteration"] == 3 and "pathfinder/IoU" in scores
    for _ in range(2):
        trainer = build(tmp_path, overrides)
        trainer.resume_or_load()
        trainer.train()
        assert log(tmp_path) == whole
