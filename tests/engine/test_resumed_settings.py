"""Which settings a resumed run has: the checkpoint's or its own, in force and on record."""

import logging
from pathlib import Path

import pytest
import torch
from fvcore.common.param_scheduler import ConstantParamScheduler

from rfpn.engine.hooks import LRScheduler
from rfpn.engine.resume import changed_keys, same_kind
from rfpn.engine.setup import load_cfg
from rfpn.engine.trainer import Trainer
from tests.engine.test_trainer import build

CONFIGS = Path(__file__).parents[2] / "configs"

pytestmark = pytest.mark.usefixtures("scenes")


SCALED = ["SOLVER.REFERENCE_WORLD_SIZE", 2, "SOLVER.IMS_PER_BATCH", 4, "SOLVER.BASE_LR", 0.5, "SOLVER.CHECKPOINT_PERIOD", 8]
# the same on one process
UNSCALED = ["SOLVER.REFERENCE_WORLD_SIZE", 0, "SOLVER.IMS_PER_BATCH", 2, "SOLVER.BASE_LR", 0.25]


def forget_settings(path) -> None:
    """Make a checkpoint one of an older version."""
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint["trainer"]["in_force"]
    torch.save(checkpoint, path)


def test_a_schedule_scaled_to_other_processes_is_not_resumed(tmp_path):
    build(tmp_path, *SCALED, "SOLVER.MAX_ITER", 1).train()
    build(tmp_path, *SCALED, "SOLVER.MAX_ITER", 2).resume_or_load()
    trainer = build(tmp_path, *SCALED)
    trainer.cfg.defrost()
    trainer.cfg.SOLVER.REFERENCE_WORLD_SIZE = 2
    words = "were scaled to 1 processes and would be to 2; use 1 processes, or set .* 0"
    with pytest.raises(ValueError, match=words) as caught:
        trainer.resume_or_load()
    assert "start anew" not in str(caught.value)
    forget_settings(tmp_path / "model_final.pth")
    with pytest.raises(ValueError, match=words):
        trainer.resume_or_load()


@pytest.mark.parametrize("first, second", [(SCALED, UNSCALED), (UNSCALED, SCALED)])
def test_scaling_may_come_and_go_on_resuming_where_batch_and_rate_remain(tmp_path, first, second):
    build(tmp_path, *first, "SOLVER.MAX_ITER", 1).train()
    build(tmp_path, *second, "SOLVER.MAX_ITER", 4).resume_or_load()
    for key, value in (("SOLVER.IMS_PER_BATCH", 8), ("SOLVER.BASE_LR", 0.125)):
        with pytest.raises(ValueError, match="trained with SOLVER.IMS_PER_BATCH 2 and SOLVER.BASE_LR 0.25, and .* would make"):
            build(tmp_path, *second, key, value, "SOLVER.MAX_ITER", 4).resume_or_load()
    forget_settings(tmp_path / "model_final.pth")
    build(tmp_path, *second, "SOLVER.BASE_LR", 0.125, "SOLVER.MAX_ITER", 4).resume_or_load()


@pytest.mark.parametrize("scaled", [False, True])
def test_the_record_of_a_resumed_run_has_what_stays_the_checkpoints(tmp_path, scaled):
    """However often it is resumed, and as it would be written."""
    settings = SCALED if scaled else UNSCALED
    sgd = ["SOLVER.OPTIMIZER", "SGD", "SOLVER.MAX_ITER", 4, "SOLVER.WEIGHT_DECAY_BIAS", 0.125, "SEED", 7]
    trainer = build(tmp_path, *settings, *sgd)
    trainer.resume_or_load(resume=False)
    trainer.max_iter = 1
    trainer.train()
    first = load_cfg(str(tmp_path / "config.yaml"), [])
    other = ["SOLVER.BASE_LR", 0.03, "SOLVER.WEIGHT_DECAY", 0.25, "SOLVER.WEIGHT_DECAY_BIAS", 0.5, "SEED", 8]
    for end in (2, 3):
        trainer = build(tmp_path, *settings, *sgd, *other, "SOLVER.WARMUP_ITERS", 3)
        trainer.resume_or_load()
        record = load_cfg(str(tmp_path / "config.yaml"), [])
        assert record.SOLVER.BASE_LR == first.SOLVER.BASE_LR and record.SEED == trainer.seed == 7
        assert record.SOLVER.WEIGHT_DECAY_BIAS == first.SOLVER.WEIGHT_DECAY_BIAS
        assert record.SOLVER.WEIGHT_DECAY == first.SOLVER.WEIGHT_DECAY and record.SOLVER.WARMUP_ITERS == 3
        trainer.max_iter = end
        trainer.train()


@pytest.mark.parametrize(
    "changed",
    [
        ["SOLVER.STEPS", (1,), "SOLVER.GAMMA", 0.5],
        ["SOLVER.LR_SCHEDULER_NAME", "WarmupCosineLR", "SOLVER.MAX_ITER", 40],
        # with nothing left to do
        ["SOLVER.LR_SCHEDULER_NAME", "WarmupCosineLR", "SOLVER.MAX_ITER", 2],
    ],
)
def test_a_resumed_run_begins_at_the_rate_of_its_own_schedule(tmp_path, changed):
    base = ["SOLVER.WARMUP_ITERS", 0, "SOLVER.LR_FACTORS", (("roi_heads.mask_head", 4.0),), "SOLVER.MAX_ITER", 4]
    base += ["SOLVER.LR_SCHEDULER_NAME", "WarmupMultiStepLR", "SOLVER.STEPS", (3,)]
    first = build(tmp_path, *base)
    first.max_iter = 2
    first.train()
    same, other = build(tmp_path, *base), build(tmp_path, *base, *changed)
    for trainer in (same, other):
        trainer.resume_or_load()
        rates = [group["lr"] for group in trainer.optimizer.param_groups]
        assert rates == trainer.scheduler.get_lr() and trainer.scheduler.last_epoch == 2
        assert (rates == [group["lr"] for group in first.optimizer.param_groups]) == (trainer is same)


class Halving(Trainer):
    @classmethod
    def build_lr_scheduler(cls, cfg, optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def test_a_schedule_of_ones_own_goes_on_where_it_was(tmp_path):
    """Detectron2 keeps the state of its own alone, and PyTorch's halves the rate once more where it is asked for it."""

    def train(name, iterations):
        trainer = Halving(build(tmp_path / name, "SOLVER.MAX_ITER", 4).cfg)
        rates = [group["lr"] for group in trainer.optimizer.param_groups]
        trainer.resume_or_load()
        trainer.max_iter = iterations
        trainer.train()
        last = [group["lr"] for group in trainer.optimizer.param_groups]
        return [after / before for after, before in zip(last, rates)]

    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    for name, iterations, wanted in (("whole", 4, 0.25), ("parts", 2, 0.5), ("parts", 3, 0.5), ("parts", 4, 0.25)):
        assert set(train(name, iterations)) == {wanted}


class Scaled(torch.optim.lr_scheduler.StepLR):
    """Holds a function, which no checkpoint can."""

    def __init__(self, optimizer, scale):
        self.scale = lambda: scale
        super().__init__(optimizer, 1, 0.5)

    def get_lr(self):
        return [rate * self.scale() for rate in super().get_lr()]


def test_functions_of_a_schedule_stay_the_programs():
    old, new = (Scaled(torch.optim.SGD([torch.zeros(1)], 1.0), scale) for scale in (1.0, 2.0))
    old.optimizer.step()
    old.step()
    state = LRScheduler(scheduler=old).state_dict()
    assert "scale" not in state
    LRScheduler(scheduler=new).load_state_dict(state)
    assert (new.last_epoch, new.scale()) == (1, 2.0)
    of_fvcore = LRScheduler(scheduler=ConstantParamScheduler(0.1))
    assert of_fvcore.state_dict() == {}
    of_fvcore.load_state_dict(state)


def test_the_state_of_a_schedule_of_another_kind_is_refused(tmp_path):
    trainer = build(tmp_path, "SOLVER.MAX_ITER", 1)
    trainer.train()
    other = build(tmp_path, "SOLVER.MAX_ITER", 2)
    other.scheduler = torch.optim.lr_scheduler.LambdaLR(other.optimizer, lambda step: 1.0)
    with pytest.raises(ValueError, match="cannot be resumed, its schedule is of another kind; start anew"):
        other.resume_or_load()


def test_what_the_optimizer_holds_stays_the_checkpoints_on_resuming(tmp_path):
    """As docs/training.md says, and as a warning does for each of these keys."""
    given = {"BASE_LR": 0.5, "BIAS_LR_FACTOR": 2.0, "WEIGHT_DECAY": 0.25, "WEIGHT_DECAY_BIAS": 0.5, "WEIGHT_DECAY_NORM": 0.125}
    first = {"BASE_LR": 0.25, "BIAS_LR_FACTOR": 4.0, "WEIGHT_DECAY": 0.0, "WEIGHT_DECAY_BIAS": 0.25, "WEIGHT_DECAY_NORM": 0.5}
    words = ([word for key, value in values.items() for word in (f"SOLVER.{key}", value)] for values in (first, given))
    sgd = ["SOLVER.OPTIMIZER", "SGD", "SOLVER.MAX_ITER", 1]
    trainer = build(tmp_path, *sgd, *next(words), "SOLVER.MOMENTUM", 0.5, "SOLVER.NESTEROV", True)
    trainer.train()
    other = build(tmp_path, *sgd, *next(words), "SOLVER.MOMENTUM", 0.25, "SOLVER.NESTEROV", False)
    other.resume_or_load()
    assert other.scheduler.base_lrs == trainer.scheduler.base_lrs
    assert other.optimizer.state_dict()["param_groups"] == trainer.optimizer.state_dict()["param_groups"]


def test_the_state_of_another_optimizer_is_of_another_kind():
    kinds = torch.optim.SGD, torch.optim.Adam
    states = [kind([torch.nn.Parameter(torch.zeros(2))], lr=0.1).state_dict() for kind in kinds]
    assert [[same_kind(saved, own) for own in states] for saved in states] == [[True, False], [False, True]]


def test_a_finished_run_may_be_resumed_with_a_shorter_schedule(tmp_path):
    schedule = ["SOLVER.LR_SCHEDULER_NAME", "WarmupMultiStepLR", "SOLVER.STEPS", (), "SOLVER.MAX_ITER"]
    build(tmp_path, *schedule, 2).train()
    trainer = build(tmp_path, *schedule, 1)
    trainer.resume_or_load()
    trainer.train()
    assert trainer.start_iter == 2


def test_a_reference_that_makes_batch_and_rate_others_is_not_resumed(tmp_path):
    """Although both runs are on as many processes."""
    build(tmp_path, *SCALED, "SOLVER.MAX_ITER", 1).train()
    with pytest.raises(ValueError, match="SOLVER.REFERENCE_WORLD_SIZE 4 would make that SOLVER.IMS_PER_BATCH 1"):
        build(tmp_path, *SCALED, "SOLVER.REFERENCE_WORLD_SIZE", 4).resume_or_load()
    same = ["SOLVER.REFERENCE_WORLD_SIZE", 4, "SOLVER.IMS_PER_BATCH", 8, "SOLVER.BASE_LR", 1.0]
    build(tmp_path, *SCALED, *same, "SOLVER.MAX_ITER", 8).resume_or_load()


def test_a_batch_that_was_changed_on_resuming_is_the_one_in_force(tmp_path):
    single = [*UNSCALED, "SOLVER.IMS_PER_BATCH", 1, "SOLVER.MAX_ITER", 3]
    build(tmp_path, *single).train()
    resumed = build(tmp_path, *UNSCALED, "SOLVER.MAX_ITER", 4)
    resumed.resume_or_load()
    # of three samples, whole batches of two
    assert resumed.samples == 2
    resumed.train()
    build(tmp_path, *SCALED, "SOLVER.MAX_ITER", 8).resume_or_load()
    with pytest.raises(ValueError, match="it was trained with SOLVER.IMS_PER_BATCH 2 and"):
        build(tmp_path, *SCALED, "SOLVER.IMS_PER_BATCH", 2, "SOLVER.MAX_ITER", 8).resume_or_load()


def test_a_seed_that_was_drawn_is_on_record(tmp_path):
    trainer = build(tmp_path, "SEED", -1, "SOLVER.MAX_ITER", 1)
    trainer.resume_or_load(resume=False)
    trainer.train()
    assert load_cfg(str(tmp_path / "config.yaml"), []).SEED == trainer.seed
    resumed = build(tmp_path, "SEED", -1, "SOLVER.MAX_ITER", 2)
    resumed.resume_or_load()
    assert load_cfg(str(tmp_path / "config.yaml"), []).SEED == trainer.seed == resumed.seed


@pytest.mark.parametrize("resume", [True, False])
def test_a_run_that_finds_nothing_to_resume_says_so(tmp_path, caplog, resume):
    """The folder may be misspelt, or its last_checkpoint not be copied with the rest."""
    trainer = build(tmp_path, "SOLVER.MAX_ITER", 1)
    with caplog.at_level(logging.WARNING, logger="rfpn"):
        trainer.resume_or_load(resume)
    said = f"OUTPUT_DIR {tmp_path} has no last_checkpoint to resume: the run starts anew"
    assert (said in caplog.text) == resume


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
