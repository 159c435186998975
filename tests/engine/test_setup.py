"""What a program is told, and does not begin with, when it starts a run."""

import logging

import pytest

from rfpn.engine.output_dir import make_output_dir
from rfpn.engine.setup import load_cfg


def test_paths_in_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    cfg = load_cfg("", ["OUTPUT_DIR", "~/runs/ü 1", "MODEL.WEIGHTS", "~/a.pth"])
    make_output_dir(cfg)
    assert (tmp_path / "runs" / "ü 1").is_dir()
    assert cfg.MODEL.WEIGHTS == str(tmp_path / "a.pth")


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
