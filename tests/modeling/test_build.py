"""Models of configurations whose keys make none."""

import pytest

from rfpn.engine.setup import load_cfg
from rfpn.engine.trainer import Trainer
from rfpn.modeling.build import build_model


def test_keys_that_detectron2_does_not_check_are_named_with_their_place():
    cfg = load_cfg("configs/quick_schedules/rfpn_quick.yaml", ["MODEL.FPN.IN_FEATURES", "['res9']", "MODEL.DEVICE", "cpu"])
    with pytest.raises(ValueError, match="the keys below MODEL do not make a model: KeyError 'res9' in "):
        build_model(cfg)


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["COMMON_STRIDE", 8], "COMMON_STRIDE 8 must be at most 4, the stride of p2 in"),
        (["COMMON_STRIDE", 16, "MODEL.SEM_SEG_HEAD.IN_FEATURES", ["p4", "p3"]], "COMMON_STRIDE 16 .* at most 8, .* p3 in"),
        (["IN_FEATURES", ["p2", "res3", "p9"]], "IN_FEATURES has res3, p9, but the backbone gives p2, p3, p4, p5, p6"),
    ],
)
def test_features_that_the_semantic_head_cannot_take_are_named(overrides, words):
    cfg = load_cfg("configs/quick_schedules/rfpn_quick.yaml", [f"MODEL.SEM_SEG_HEAD.{overrides[0]}", *overrides[1:]])
    for build in (build_model, Trainer.build_model):
        with pytest.raises(ValueError, match=f"MODEL.SEM_SEG_HEAD.{words}"):
            build(cfg)


@pytest.mark.parametrize("stride, features", [(8, ["p3", "p5"]), (2, ["p2", "p6"])])
def test_strides_that_the_semantic_head_can_take_pass(stride, features):
    keys = ["MODEL.SEM_SEG_HEAD.COMMON_STRIDE", stride, "MODEL.SEM_SEG_HEAD.IN_FEATURES", features]
    build_model(load_cfg("configs/quick_schedules/rfpn_quick.yaml", keys))
