"""Batches for scoring Pathfinder models."""

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from PIL import Image

from rfpn.config import get_cfg
from rfpn.data.build import build_test_loader
from rfpn.data.pathfinder.registration import register_pathfinder


@pytest.fixture
def dataset(tmp_path):
    for kind in ("imgs", "seg"):
        (tmp_path / kind / "0").mkdir(parents=True)
        for i in range(7):
            level = 10 * i if kind == "imgs" else 255
            Image.fromarray(np.full((16, 16), level, np.uint8)).save(tmp_path / kind / "0" / f"sample_{i}.png")
    register_pathfinder("loader_test", str(tmp_path))
    yield "loader_test"
    DatasetCatalog.remove("loader_test")
    MetadataCatalog.pop("loader_test")


def config(batch):
    cfg = get_cfg()
    cfg.MODEL.META_ARCHITECTURE = "PathfinderNet"
    cfg.SOLVER.IMS_PER_BATCH, cfg.INPUT.PATHFINDER_SIZE, cfg.DATALOADER.NUM_WORKERS = batch, 16, 0
    return cfg


def test_every_image_once_in_batches_of_training(dataset):
    batches = list(build_test_loader(config(3), dataset))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert [int(x["image"][0, 0, 0]) for batch in batches for x in batch] == [10 * i for i in range(7)]


def test_batches_are_those_of_one_process(dataset, monkeypatch):
    monkeypatch.setattr("detectron2.utils.comm.get_world_size", lambda: 2)
    assert [len(batch) for batch in build_test_loader(config(6), dataset)] == [3, 1]
    assert [len(batch) for batch in build_test_loader(config(2), dataset)] == [1] * 4


def test_fewer_images_a_batch_than_processes_is_named(dataset, monkeypatch):
    monkeypatch.setattr("detectron2.utils.comm.get_world_size", lambda: 4)
    with pytest.raises(ValueError, match="SOLVER.IMS_PER_BATCH 2 must be at least the 4 processes"):
        build_test_loader(config(2), dataset)


def test_evaluation_reads_a_set_once(dataset, monkeypatch):
    read, get = [], DatasetCatalog.get
    monkeypatch.setattr(DatasetCatalog, "get", lambda name: read.append(name) or get(name))
    assert len(list(build_test_loader(config(3), dataset))) == 3
    assert read == [dataset]
