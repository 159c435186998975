"""Models of configurations whose keys make none."""

import pytest

from rfpn.engine.setup import load_cfg
from rfpn.modeling.build import build_model


def test_keys_that_detectron2_does_not_check_are_named_with_their_place():
    cfg = load_cfg("configs/quick_schedules/rfpn_quick.yaml", ["MODEL.FPN.IN_FEATURES", "['res9']", "MODEL.DEVICE", "cpu"])
    with pytest.raises(ValueError, match="the keys below MODEL do not make a model: KeyError 'res9' in "):
        build_model(cfg)
