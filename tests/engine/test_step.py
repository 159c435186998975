"""The training step: accumulation, half precision, non-finite losses."""

import itertools
import logging
import math
from types import SimpleNamespace

import pytest
import torch
from detectron2.modeling.proposal_generator import rpn
from torch import nn

from rfpn.engine.step import TrainStep
from rfpn.layers import RecurrentLayer
from tests.problems import LinearCell, random


class Quadratic(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, data):
        return {"loss_task": ((self.weight - data) ** 2).mean(), "loss_lipschitz": 0.1 * self.weight.square().sum()}


def trainer(batches, **options):
    model = Quadratic()
    return TrainStep(model, batches, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **options)


def train(step, count):
    step.train(0, count)
    return step.model.weight.detach().clone()


def test_accumulated_batches_equal_one_large_one():
    parts = [torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0])]
    accumulated = train(trainer(parts * 2, accumulate=2), 2)
    mean = torch.stack(parts).mean(dim=0)
    torch.testing.assert_close(accumulated, train(trainer([mean] * 2), 2))


def test_logged_losses_are_those_of_the_mean_of_all_batches():
    step = trainer([torch.zeros(2), torch.full((2,), 3.0)], accumulate=2)
    step.train(0, 1)
    logged = {name: step.storage.latest()[name][0] for name in ("loss_task", "loss_lipschitz", "total_loss")}
    assert logged == pytest.approx({"loss_task": 2.5, "loss_lipschitz": 0.2, "total_loss": 2.7})


def test_the_logged_wait_for_data_is_that_of_all_batches(monkeypatch):
    monkeypatch.setattr("rfpn.engine.step.time", SimpleNamespace(perf_counter=itertools.count().__next__))
    step = trainer([torch.zeros(2)] * 3, accumulate=3)
    step.train(0, 1)
    assert step.storage.latest()["data_time"][0] == 3


@pytest.mark.parametrize("key, batch", [("loss_task", float("nan")), ("loss_task", float("inf"))])
def test_C6_a_bad_step_names_the_loss_and_leaves_the_weights(key, batch):
    step = trainer([torch.zeros(2), torch.full((2,), batch), torch.zeros(2)])
    before = train(trainer([torch.zeros(2)]), 1)
    with pytest.raises(FloatingPointError, match=f"iteration 1: not finite: {key}"):
        step.train(0, 3)
    torch.testing.assert_close(step.model.weight.detach(), before)


@pytest.mark.parametrize("amp_dtype", [None, "float16"])
def test_bad_batches_can_be_skipped_and_are_counted(amp_dtype):
    good = torch.zeros(2)
    step = trainer([good, torch.full((2,), float("nan")), good], skip_nonfinite=1, amp_dtype=amp_dtype)
    after = train(step, 3)
    assert step.skipped == 1
    torch.testing.assert_close(after, train(trainer([good, good]), 2))
    assert step.state_dict()["skipped"] == 1


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)

    def forward(self, data):
        return {"loss_task": self.norm(data).square().sum()}


@pytest.mark.parametrize("batches", [1, 2])
def test_a_skipped_step_leaves_running_statistics_too(batches):
    def statistics(data, **options):
        model = Normed()
        step = TrainStep(model, data, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=batches, **options)
        step.train(0, len(data) // batches)
        return model.state_dict()

    good, bad = [torch.rand(4, 2) for _ in range(2 * batches)], [torch.full((4, 2), float("inf"))] * batches
    spoilt = statistics(good[:batches] + bad + good[batches:], skip_nonfinite=1)
    for name, value in statistics(good).items():
        torch.testing.assert_close(spoilt[name], value)


def test_a_gradient_that_is_not_finite_is_a_bad_step_too():
    step = trainer([torch.zeros(2)])
    step.model.weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(FloatingPointError, match="gradient"):
        step.train(0, 1)
    assert step.model.weight.isfinite().all()


def test_a_bad_batch_among_accumulated_ones_spoils_the_whole_step_alone():
    good, bad = torch.zeros(2), torch.full((2,), float("nan"))
    step = trainer([good, good, good, bad, good, good], accumulate=2, skip_nonfinite=1)
    after = train(step, 3)
    assert step.skipped == 1
    torch.testing.assert_close(after, train(trainer([good] * 4, accumulate=2), 2))


def test_skipped_steps_count_over_a_resume():
    bad = torch.full((2,), float("inf"))
    first = trainer([bad], skip_nonfinite=1)
    first.train(0, 1)
    second = trainer([bad], skip_nonfinite=1)
    second.load_state_dict(first.state_dict())
    with pytest.raises(FloatingPointError, match="iteration 1: not finite: loss_task.* SOLVER.SKIP_NONFINITE leaves out"):
        second.train(1, 2)


def test_skipped_steps_are_logged(caplog):
    step = trainer([torch.full((2,), float("nan")), torch.zeros(2)], skip_nonfinite=3)
    with caplog.at_level(logging.WARNING, logger="rfpn"):
        step.train(0, 2)
    assert "iteration 0: not finite: loss_task; step skipped (1 of 3)" in caplog.text
    assert step.storage.latest()["skipped_steps"] == (1, 0)


def test_loss_scale_sinks_on_overflow_and_is_restored():
    step = trainer([torch.zeros(2)] * 3, amp_dtype="float16")
    overflowing = step.model.weight.register_hook(lambda gradient: gradient * float("inf"))
    step.train(0, 1)
    assert step.scaler.get_scale() == 2.0**15 and step.skipped == 0
    assert torch.equal(step.model.weight.detach(), torch.ones(2))
    overflowing.remove()
    other = trainer([torch.zeros(2)], amp_dtype="float16")
    other.load_state_dict(step.state_dict())
    assert other.scaler.get_scale() == 2.0**15
    step.train(1, 2)
    assert not torch.equal(step.model.weight.detach(), torch.ones(2))


def test_a_run_resumed_in_half_precision_begins_its_loss_scale():
    step = trainer([torch.zeros(2)], amp_dtype="float16")
    step.load_state_dict(trainer([]).state_dict())
    assert step.scaler.get_scale() == 2.0**16


def test_gradients_that_no_loss_scale_mends_end_the_run():
    step = trainer([torch.zeros(2)] * 30, amp_dtype="float16")
    step.model.weight.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(FloatingPointError, match="iteration 17: not finite: gradient"):
        step.train(0, 30)


def test_what_is_random_in_the_model_follows_from_seed_and_iteration():
    def drawn(seed, start):
        step = trainer([torch.zeros(2)] * 8, seed=seed, accumulate=2)
        numbers = []
        step.model.register_forward_pre_hook(lambda *_: numbers.append(float(torch.rand(()))))
        step.train(start, 4)
        return numbers

    whole = drawn(5, 0)
    assert len(set(whole)) == 8
    torch.rand(3)
    assert drawn(5, 2) == whole[4:] and drawn(6, 0) != whole


def test_layers_draw_their_own_steps_after_training():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = RecurrentLayer(LinearCell(), 1, extra_steps=50)

        def forward(self, data):
            return {"loss_task": self.layer(data).hidden.sum()}

    model = Recurrent().double()
    TrainStep(model, [random((2, 6))], torch.optim.SGD(model.parameters(), lr=0.1), seed=3).train(0, 1)
    assert len({int(model.layer(random((2, 6))).steps[0]) for _ in range(20)}) > 5


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_autocast_reaches_the_model_in_the_precision_that_is_set(name):
    step = trainer([torch.zeros(2)], amp_dtype=name)
    seen = []
    step.model.register_forward_pre_hook(
        lambda *_: seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
    )
    step.train(0, 1)
    assert seen == [(True, getattr(torch, name))]


class Proposing(nn.Module):
    """Its boxes are infinite in the second step, for which Detectron2's RPN ends a training."""

    def __init__(self, losses):
        super().__init__()
        self.weight, self.losses, self.calls = nn.Parameter(torch.ones(4)), losses, 0

    def forward(self, _):
        self.calls += 1
        boxes = torch.tensor([[[0.0, 0.0, 4.0, 4.0]] * 4]) * (math.inf if self.calls == 2 else 1.0)
        logits = [self.weight.detach()[None]]
        rpn.find_top_rpn_proposals([boxes], logits, [(8, 8)], 0.7, 4, 4, min_box_size=0.0, training=self.training)
        return {name: self.weight.square().sum() for name in self.losses}


@pytest.mark.parametrize("losses, named", [(["loss_mask", "loss_rpn_loc"], "loss_rpn_loc"), (["loss_mask"], "loss_mask")])
def test_proposals_that_are_not_finite_are_a_bad_step(losses, named):
    steps = []
    for skip in (1, 0):
        model = Proposing(losses)
        steps.append(TrainStep(model, [0] * 3, torch.optim.SGD(model.parameters(), 0.1), skip_nonfinite=skip))
    skipping, ending = steps
    weight = train(skipping, 3)
    assert skipping.skipped == 1 and weight.isfinite().all()
    with pytest.raises(FloatingPointError, match=f"iteration 1: not finite: {named}"):
        train(ending, 3)
    assert rpn.find_top_rpn_proposals.__module__ == "detectron2.modeling.proposal_generator.proposal_utils"
