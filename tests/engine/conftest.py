"""Runs that are started as a program starts them."""

import logging
from types import SimpleNamespace

import pytest

from rfpn.engine.setup import setup
from rfpn.engine.trainer import Trainer
from tests.analysis.tiny_runs import CONTOURS, SMALL


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
