"""Optimizers: each kind of parameter has the rate and decay that its keys say, under SGD and Adam alike."""

import pytest
import torch
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


def test_other_names_are_refused():
    with pytest.raises(ValueError, match="SOLVER.OPTIMIZER must be one of SGD, Adam, AdamW, got 'Lion'"):
        build("Lion")
