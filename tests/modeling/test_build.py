"""Models of configurations whose keys make none."""

import pytest
from detectron2.modeling import META_ARCH_REGISTRY, SEM_SEG_HEADS_REGISTRY, build_backbone
from detectron2.modeling.meta_arch.semantic_seg import SemSegFPNHead, build_sem_seg_head
from torch import nn

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


class OwnSegmentor(nn.Module):
    """Calls its backbone what it likes."""

    def __init__(self, cfg):
        super().__init__()
        self.encoder = build_backbone(cfg)
        self.sem_seg_head = build_sem_seg_head(cfg, self.encoder.output_shape())


class OwnNeck(OwnSegmentor):
    """What its head gets is not what its backbone gives."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self.backbone = self.encoder.bottom_up


class OwnHead(SemSegFPNHead):
    """Does without the keys of Detectron2's."""

    @classmethod
    def from_config(cls, cfg, input_shape):
        """The coarse features alone."""
        chosen = {name: input_shape[name] for name in ("p3", "p4")}
        return {**super().from_config(cfg, input_shape), "input_shape": chosen, "common_stride": 8}


@pytest.mark.parametrize(
    "registry, own, overrides",
    [
        (META_ARCH_REGISTRY, OwnSegmentor, ["META_ARCHITECTURE", "OwnSegmentor"]),
        (META_ARCH_REGISTRY, OwnNeck, ["META_ARCHITECTURE", "OwnNeck"]),
        (SEM_SEG_HEADS_REGISTRY, OwnHead, ["SEM_SEG_HEAD.NAME", "OwnHead", "MODEL.SEM_SEG_HEAD.IN_FEATURES", []]),
    ],
)
def test_models_and_heads_of_ones_own_are_left_alone(monkeypatch, registry, own, overrides):
    monkeypatch.setitem(registry._obj_map, own.__name__, own)
    keys = [f"MODEL.{overrides[0]}", *overrides[1:], "MODEL.DEVICE", "cpu"]
    build_model(load_cfg("configs/quick_schedules/rfpn_quick.yaml", keys))
