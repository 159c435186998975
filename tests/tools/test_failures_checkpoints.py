"""Weights of another depth (docs/failures.md)."""

import logging
from pathlib import Path

import pytest
import torch
from detectron2.modeling import build_model

from rfpn.engine.checkpoint import Checkpointer, check_complete
from rfpn.engine.setup import load_cfg

CONFIGS = Path(__file__).parents[2] / "configs" / "COCO-PanopticSegmentation"
NARROW = ["MODEL.DEVICE", "cpu", "MODEL.WEIGHTS", "", "MODEL.RESNETS.WIDTH_PER_GROUP", "8"]
NARROW += ["MODEL.RESNETS.RES2_OUT_CHANNELS", "32", "MODEL.RESNETS.STEM_OUT_CHANNELS", "16", "MODEL.ROI_BOX_HEAD.FC_DIM", "16"]


def build(config):
    return build_model(load_cfg(str(CONFIGS / config), NARROW))


def test_D1_weights_of_50_layers_do_not_pass_for_101(tmp_path, caplog):
    torch.save({"model": build("rfpn_R_50_1x.yaml").state_dict()}, tmp_path / "r50.pth")
    checkpointer = Checkpointer(build("rfpn_R_101_3x.yaml"))
    with caplog.at_level(logging.INFO, logger="rfpn"):
        checkpointer.load(str(tmp_path / "r50.pth"))
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("weights:")]
    missing, unexpected, misshapen = checkpointer.incompatible
    assert len(missing) > 100 and not unexpected and not misshapen
    assert all(name.startswith("backbone.bottom_up.res4.") for name in missing)
    assert f"missing {len(missing)} (backbone.bottom_up.res4.6" in line and "unexpected 0; wrong shape 0" in line
    with pytest.raises(ValueError, match=f"missing {len(missing)} .*MODEL.ALLOW_MISSING_WEIGHTS"):
        check_complete(checkpointer, allow_missing=False)
