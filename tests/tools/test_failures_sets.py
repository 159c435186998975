"""Unusual sets through the whole of training and evaluation (docs/failures.md)."""

import json
import math
from pathlib import Path

import pytest
from detectron2.data import MetadataCatalog

from rfpn.data.panoptic import register_panoptic_folder
from rfpn.engine.setup import load_cfg
from rfpn.engine.trainer import Trainer
from tests.data.conftest import catalogs  # noqa: F401
from tests.data.tiny_panoptic import CATEGORIES, mixed_layouts, write_set

QUICK = Path(__file__).parents[2] / "configs" / "quick_schedules" / "rfpn_quick.yaml"


def train(tmp_path, root, *overrides) -> dict:
    """Two iterations and an evaluation on one set; the last line of scores."""
    register_panoptic_folder("mine", str(root), "train")
    metadata = MetadataCatalog.get("mine")
    cfg = load_cfg(str(QUICK), ["MODEL.DEVICE", "cpu", "OUTPUT_DIR", str(tmp_path / "out"), *overrides])
    cfg.DATASETS.TRAIN = cfg.DATASETS.TEST = ("mine",)
    cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = len(metadata.stuff_classes)
    cfg.MODEL.ROI_HEADS.NUM_CLASSES = len(metadata.thing_classes) or 1
    (tmp_path / "out").mkdir()
    Trainer(cfg).train()
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.json").read_text().splitlines()]
    return {key: value for line in lines for key, value in line.items()}


@pytest.mark.parametrize("isthing", [0, 1])
def test_B1_set_of_one_group_trains_and_evaluates(catalogs, tmp_path, isthing):  # noqa: F811
    categories = [c for c in CATEGORIES if c["isthing"] == isthing]
    layout = [(c["id"], (0, 16 * i, 64, 16 * i + 16), 0) for i, c in enumerate(categories)]
    scores = train(tmp_path, write_set(tmp_path / "set", [layout] * 2, categories))
    empty, full = ("PQ_st", "PQ_th") if isthing else ("PQ_th", "PQ_st")
    assert math.isnan(scores[f"panoptic_seg/{empty}"])
    assert scores["panoptic_seg/PQ"] == scores[f"panoptic_seg/{full}"] >= 0


def test_A10_images_without_things_train_and_evaluate(catalogs, tmp_path):  # noqa: F811
    scores = train(tmp_path, write_set(tmp_path / "set", mixed_layouts()[1:] * 2))
    assert scores["loss_mask"] == scores["loss_lipschitz"] == 0
    assert scores["loss_sem_seg"] > 0 and math.isfinite(scores["total_loss"])
    assert 0 <= scores["panoptic_seg/PQ"] <= 100


def test_A9_crowds_beside_instances_train_and_evaluate(catalogs, tmp_path):  # noqa: F811
    layout = mixed_layouts()[0] + [(7, (52, 0, 64, 20), 1), (7, (52, 24, 64, 40), 1)]
    scores = train(tmp_path, write_set(tmp_path / "set", [layout] * 2))
    assert math.isfinite(scores["total_loss"]) and 0 <= scores["panoptic_seg/PQ"] <= 100


def test_E6_residuals_are_scalars_of_training_and_evaluation(catalogs, tmp_path):  # noqa: F811
    root = write_set(tmp_path / "set", mixed_layouts()[:1] * 2)
    scores = train(tmp_path, root, "MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.0")
    for key in ("residual", "unconverged_share"):  # of training, of evaluation
        assert math.isfinite(scores[f"recurrent/{key}"]) and math.isfinite(scores[f"convergence/{key}"])
