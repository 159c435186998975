"""Scalars that the trainer's hooks log."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from detectron2.layers import NaiveSyncBatchNorm
from detectron2.utils.events import EventStorage
from torch import nn

from rfpn.engine.hooks import PreciseBN, RecurrentDiagnostics, process_statistics
from rfpn.engine.setup import load_cfg
from rfpn.engine.trainer import Trainer
from rfpn.layers import RecurrentLayer
from tests.analysis.tiny_runs import CONTOURS, SMALL
from tests.engine.test_trainer import build as build_on_scenes
from tests.problems import LinearCell

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
        # in the lines of the losses, not in ones of their own
        assert "process/children" in line


def test_scalars_of_several_recurrent_layers_are_told_apart():
    layers = [RecurrentLayer(LinearCell(), 1) for _ in range(2)]
    for value, layer in enumerate(layers):
        layer.diagnostics = {"residual": torch.tensor(float(value))}
    hook = RecurrentDiagnostics(1)
    hook.trainer = SimpleNamespace(model=nn.ModuleList(layers), iter=0, max_iter=2)
    hook.before_train()
    with EventStorage() as storage:
        hook.after_step()
    assert storage.latest() == {"recurrent_0/residual": (0.0, 0), "recurrent_1/residual": (1.0, 0)}


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
    # what is scored has done three iterations, also where a shorter run is asked for
    for most in (3, 3, 2):
        trainer = build(tmp_path, f"{overrides} SOLVER.MAX_ITER {most}")
        trainer.resume_or_load()
        trainer.train()
        assert log(tmp_path) == whole


class Loader(list):
    batch_sampler = SimpleNamespace(seek=lambda seed, samples: None)


def precise(batches: list[torch.Tensor], norm: type[nn.Module]) -> nn.Module:
    """A norm whose statistics were estimated from these batches."""
    torch.manual_seed(0)
    model = nn.Sequential(norm(2))
    model[0].running_mean.fill_(1e6)
    model[0].running_var.fill_(0.3)
    hook = PreciseBN(1, model, Loader(batches), len(batches))
    hook.trainer = SimpleNamespace(seed=0)
    hook.update_stats()
    return model[0]


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, NaiveSyncBatchNorm])
def test_precise_statistics_leave_out_batches_without_a_roi(norm):
    """fvcore divides by their number, and the first samples are the same each time."""
    empty, full = torch.zeros(0, 2, 4, 4), [torch.rand(3, 2, 4, 4), torch.rand(5, 2, 4, 4)]
    expected, found = precise(full, norm), precise([empty, full[0], empty, full[1]], norm)
    assert torch.equal(found.running_mean, expected.running_mean) and torch.equal(found.running_var, expected.running_var)
    torch.testing.assert_close(found.running_mean, torch.cat(full).mean((0, 2, 3)))
    nothing = precise([empty, empty], norm)
    assert nothing.running_mean.tolist() == [1e6, 1e6] and torch.equal(nothing.running_var, torch.full((2,), 0.3))


@pytest.mark.usefixtures("scenes")
def test_precise_statistics_are_of_as_many_batches_as_are_set(tmp_path):
    settings = "MODEL.RESNETS.NORM BN TEST.PRECISE_BN.ENABLED True TEST.PRECISE_BN.NUM_ITER 7 TEST.EVAL_PERIOD 5".split()
    (hook,) = [hook for hook in build_on_scenes(tmp_path, *settings)._hooks if isinstance(hook, PreciseBN)]
    assert (hook._num_iter, hook._period) == (7, 5)


@pytest.mark.usefixtures("contours")
def test_pictures_and_histograms_are_let_go_of_where_nobody_writes_them(tmp_path, monkeypatch):
    """On processes other than the main one."""
    monkeypatch.setattr("detectron2.utils.comm.is_main_process", lambda: False)
    trainer = build(tmp_path, "SOLVER.MAX_ITER 2 DATASETS.TEST ()")
    step = trainer._trainer.run_step

    def draw():
        step()
        trainer.storage.put_image("picture", torch.zeros(3, 2, 2))
        trainer.storage.put_histogram("numbers", torch.zeros(3))

    monkeypatch.setattr(trainer._trainer, "run_step", draw)
    trainer.train()
    assert not trainer.storage._vis_data and not trainer.storage._histograms


@pytest.mark.usefixtures("contours")
def test_a_last_evaluation_that_fails_is_in_the_log(tmp_path, monkeypatch, caplog):
    trainer = build(tmp_path, "SOLVER.MAX_ITER 1")
    monkeypatch.setattr(Trainer, "test", lambda *_: {}["no score"])
    with pytest.raises(KeyError, match="no score"):
        trainer.train()
    assert any(record.exc_info and "after training" in record.message for record in caplog.records)


@pytest.mark.skipif(not os.path.isfile("/proc/self/status"), reason="not Linux")
def test_memory_of_the_process_is_in_mib():
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    assert process_statistics()["host_memory"] == pytest.approx(int(resident.split()[1]) / 1024, rel=0.1)
