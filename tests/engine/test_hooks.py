"""Scalars that the trainer's hooks log."""

import json

import pytest

from rfpn.engine.setup import load_cfg
from rfpn.engine.trainer import Trainer
from tests.analysis.tiny_runs import CONTOURS


@pytest.mark.usefixtures("contours")
def test_recurrent_scalars_are_those_of_training_also_where_an_evaluation_falls(tmp_path):
    """Evaluation has no Neumann series and no penalty."""
    options = "MODEL.DEVICE cpu INPUT.PATHFINDER_SIZE 16 MODEL.PATHFINDER.CHANNELS 4 MODEL.RECURRENT.STEPS 2".split()
    options += "SOLVER.IMS_PER_BATCH 2 SOLVER.MAX_ITER 40 TEST.EVAL_PERIOD 20 MODEL.RECURRENT.TEST_STEPS 3".split()
    options += ["MODEL.RECURRENT.LIPSCHITZ.COEFFICIENT", "0.0", "OUTPUT_DIR", str(tmp_path)]
    sets = ["DATASETS.TRAIN", "('tiny_contours',)", "DATASETS.TEST", "('tiny_contours',)"]
    Trainer(load_cfg(str(CONTOURS), options + sets)).train()
    lines = [json.loads(line) for line in (tmp_path / "metrics.json").read_text().splitlines()]
    logged = {line["iteration"]: line for line in lines if "total_loss" in line}
    assert list(logged) == [19, 39] and "pathfinder/IoU" in logged[19]
    for line in logged.values():
        assert line["recurrent/neumann_length"] == 4 and line["recurrent/truncated_share"] == 0
        assert line["recurrent/penalty"] > 0
