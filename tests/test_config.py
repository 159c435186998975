"""Every shipped configuration loads in the one get_cfg, names registered data sets, and builds."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from detectron2.data import DatasetCatalog
from detectron2.modeling import META_ARCH_REGISTRY, build_model

from rfpn.config import flatten, get_cfg
from rfpn.engine.setup import load_cfg

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))


@pytest.mark.parametrize("file", FILES)
def test_D7_a_configuration_loads_and_reloads(file, tmp_path):
    cfg = load_cfg(str(CONFIGS / file), [])
    assert cfg.VERSION == 2
    assert cfg.MODEL.META_ARCHITECTURE in META_ARCH_REGISTRY
    for name in (*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST):
        assert name in DatasetCatalog, name
    (tmp_path / "config.yaml").write_text(cfg.dump())
    again = get_cfg()
    again.merge_from_file(str(tmp_path / "config.yaml"))
    assert yaml.safe_load(again.dump()) == yaml.safe_load(cfg.dump())


@pytest.mark.parametrize("file", [file for file in FILES if not file.startswith("COCO")])
def test_a_configuration_builds_its_model(file):
    build_model(load_cfg(str(CONFIGS / file), ["MODEL.DEVICE", "cpu", "MODEL.WEIGHTS", ""]))


def test_D7_a_misspelt_key_is_named():
    with pytest.raises(KeyError, match="MODEL.RECURRENT.STEP"):
        load_cfg("", ["MODEL.RECURRENT.STEP", "3"])


def test_leaves_of_nested_mappings():
    assert flatten({"A": {"B": {"C": 1}, "D": []}, "E": {}}) == {"A.B.C": 1, "A.D": [], "E": {}}


DETECTRON2_SCRIPT = """
import sys
from detectron2.config import get_cfg
from detectron2.data import DatasetCatalog
from detectron2.modeling import build_model
from rfpn.config import add_rfpn_config

cfg = get_cfg()
add_rfpn_config(cfg)
cfg.merge_from_file(sys.argv[1])
cfg.MODEL.DEVICE = "cpu"
assert type(build_model(cfg).roi_heads.mask_head).__name__ == "HGRUMaskHead"
assert "pathfinder_14_train" in DatasetCatalog
"""


def test_somebody_elses_script_needs_the_keys_alone():
    config = CONFIGS / "COCO-PanopticSegmentation" / "rfpn_R_50_1x.yaml"
    command = [sys.executable, "-W", "ignore", "-c", DETECTRON2_SCRIPT, str(config)]
    done = subprocess.run(command, cwd=CONFIGS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
