"""Optimizers: each kind of parameter has the rate and decay that its keys say, under SGD and Adam alike."""

import pytest
import torch
from detectron2.solver import build_lr_scheduler
from torch import nn

from rfpn.config import get_cfg
from rfpn.engine.optimizer import OPTIMIZERS, build_optimizer


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4), nn.Linear(4, 2))


def build(optimizer, *overrides):
    cfg = get_cfg()
    settings = {"OPTIMIZER": optimizer, "BASE_LR": 0.1, "WEIGHT_DECAY": 0.01, "WEIGHT_DECAY_NORM": 0.02, "MOMENTUM": 0.0}
    cfg.merge_from_list([word for key, value in settings.items() for word in (f"SOLVER.{key}", value)])
    cfg.merge_from_list(["SOLVER.BIAS_LR_FACTOR", 2.0, "SOLVER.WEIGHT_DECAY_BIAS", 0.03, *overrides])
    net = model()
    return net, build_optimizer(cfg, net)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_norms_and_biases_have_their_own_settings(name):
    net, optimizer = build(name)
    assert isinstance(optimizer, getattr(torch.optim, name))
    found = {id(p): (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}
    named = {parameter: found[id(p)] for parameter, p in net.named_parameters()}
    assert len(found) == 6
    assert named["0.weight"] == named["2.weight"] == (0.1, 0.01)
    assert named["0.bias"] == named["2.bias"] == pytest.approx((0.2, 0.03))
    assert named["1.weight"] == (0.1, 0.02)


@pytest.mark.parametrize("momentum, nesterov", [(0.5, True), (0.25, False)])
def test_sgd_has_the_momentum_that_is_set(momentum, nesterov):
    _, optimizer = build("SGD", "SOLVER.MOMENTUM", momentum, "SOLVER.NESTEROV", nesterov)
    assert all((group["momentum"], group["nesterov"]) == (momentum, nesterov) for group in optimizer.param_groups)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind, norm", [("value", None), ("norm", 0.001)])
def test_gradients_are_clipped(name, kind, norm):
    clip = [f"SOLVER.CLIP_GRADIENTS.{key}" for key in ("ENABLED", "CLIP_TYPE", "CLIP_VALUE")]
    net, optimizer = build(name, clip[0], True, clip[1], kind, clip[2], 0.001)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    for p in net.parameters():
        reached = p.grad.norm() if norm else p.grad.max()
        assert reached == pytest.approx(0.001, rel=1e-3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_named_parts_have_their_own_rates(name):
    factors = (("0", 10.0), ("1", 0.5))
    net, optimizer = build(name, "SOLVER.LR_FACTORS", factors)
    rate = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    found = {key: rate[id(p)] for key, p in net.named_parameters()}
    # the bias of a part keeps its own factor of 2
    expected = {"0.weight": 1.0, "0.bias": 2.0, "1.weight": 0.05, "1.bias": 0.1, "2.weight": 0.1, "2.bias": 0.2}
    assert found == pytest.approx(expected)
    assert decay[id(net[1].weight)] == 0.02 and decay[id(net[0].weight)] == 0.01
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 6


def test_of_two_factors_the_later_counts():
    inner, outer = (("0.0", 3.0), ("0", 2.0)), (("0", 2.0), ("0.0", 3.0))
    for factors, expected in ((inner, 0.2), (outer, 0.3)):
        cfg = get_cfg()
        cfg.merge_from_list(["SOLVER.BASE_LR", 0.1, "SOLVER.LR_FACTORS", factors])
        net = nn.Sequential(nn.Sequential(nn.Linear(2, 2, bias=False)))
        assert build_optimizer(cfg, net).param_groups[0]["lr"] == pytest.approx(expected)


def test_schedules_multiply_the_rates_of_parts():
    cfg = get_cfg()
    cfg.merge_from_list(["SOLVER.BASE_LR", 0.1, "SOLVER.LR_FACTORS", (("0", 10.0),), "SOLVER.WARMUP_ITERS", 0])
    cfg.merge_from_list(["SOLVER.STEPS", (1,), "SOLVER.MAX_ITER", 2])
    optimizer = build_optimizer(cfg, model())
    scheduler = build_lr_scheduler(cfg, optimizer)
    assert sorted({group["lr"] for group in optimizer.param_groups}) == pytest.approx([0.1, 1.0])
    optimizer.step()
    scheduler.step()
    assert sorted({group["lr"] for group in optimizer.param_groups}) == pytest.approx([0.01, 0.1])


@pytest.mark.parametrize("name", ["mask_head", ""])
def test_factors_of_unknown_parts_are_refused(name):
    with pytest.raises(ValueError, match="SOLVER.LR_FACTORS .* is no module with parameters; there are 0, 1, 2 and those"):
        build("SGD", "SOLVER.LR_FACTORS", ((name, 2.0),))


def test_factors_of_frozen_parts_are_refused():
    cfg, net = get_cfg(), model()
    net[0].requires_grad_(False)
    cfg.merge_from_list(["SOLVER.LR_FACTORS", (("0", 2.0),)])
    with pytest.raises(ValueError, match="SOLVER.LR_FACTORS '0' is frozen throughout; .* SOLVER.TRAIN_ONLY"):
        build_optimizer(cfg, net)


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_a_state_tells_adam_from_adamw(name):
    """PyTorch 2.6 does not by itself."""
    _, optimizer = build(name)
    assert all(group["decoupled_weight_decay"] == (name == "AdamW") for group in optimizer.state_dict()["param_groups"])
