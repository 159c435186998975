"""Small data sets and untrained models on disk, for tests of what draws them, and what tests of runs compare with."""

import json
from pathlib import Path

import torch
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.modeling import build_model

from rfpn.data.panoptic import register_panoptic_folder
from rfpn.data.pathfinder.dataset import split_folder, write_split
from rfpn.data.pathfinder.registration import register_pathfinder
from rfpn.data.pathfinder.settings import PathfinderSettings
from rfpn.data.scenes.dataset import CATEGORIES, write_scenes
from rfpn.data.scenes.render import SceneOptions
from rfpn.engine.setup import load_cfg

CONFIGS = Path(__file__).parents[2] / "configs"
SCENES = CONFIGS / "quick_schedules" / "rfpn_quick.yaml"
CONTOURS = CONFIGS / "quick_schedules" / "pathfinder_quick.yaml"
# of CONTOURS, for models that train in no time
SMALL = "MODEL.DEVICE cpu INPUT.PATHFINDER_SIZE 16 MODEL.PATHFINDER.CHANNELS 4 MODEL.RECURRENT.STEPS 2".split()
# the untrained model's instances count, and its mask head does not answer 0 everywhere
EVERYTHING = ["MODEL.PANOPTIC_FPN.COMBINE.INSTANCES_CONFIDENCE_THRESH", "0.0", "INPUT.MIN_SIZE_TEST", "64"]


def scene_set(name: str, root: Path, count: int = 3):
    """Registers ``count`` scenes of 64x64 pixels while the generator lives; yields its first picture's path."""
    write_scenes(str(root), "val", count, options=SceneOptions(height=64, width=64))
    register_panoptic_folder(name, str(root), "val", CATEGORIES)
    yield root / "val" / "00000001.png"
    _forget(name)


def contour_set(name: str, root: Path, count: int = 6):
    """Registers ``count`` Pathfinder images while the generator lives; yields its first picture's path."""
    settings = PathfinderSettings(6, window=128, padding=14, distractors=2)
    write_split(root, settings, "test", count, progress=False)
    folder = split_folder(root, 6, "test")
    register_pathfinder(name, str(folder))
    yield folder / "imgs" / "0" / "sample_0.png"
    _forget(name)


def build(config: Path, *overrides: str):
    """Configuration and model, the same weights every time; masks depend on the state."""
    torch.manual_seed(0)
    cfg = load_cfg(str(config), ["MODEL.DEVICE", "cpu", *overrides])
    model = build_model(cfg).eval()
    if cfg.MODEL.META_ARCHITECTURE == "PathfinderNet":
        model.readout.bias.data.zero_()
    else:
        model.roi_heads.mask_head.predictor.weight.data.normal_(std=1.0)
    return cfg, model


def write_run(folder: Path, config: Path, *overrides: str, metrics: list[dict] = ()) -> Path:
    """A run's folder with an untrained model."""
    folder.mkdir(parents=True)
    cfg, model = build(config, *overrides)
    (folder / "config.yaml").write_text(cfg.dump())
    torch.save({"model": model.state_dict()}, folder / "model_final.pth")
    write_metrics(folder, metrics)
    return folder


def write_metrics(folder: Path, rows: list[dict]) -> None:
    """The log of a run with these lines."""
    (folder / "metrics.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _forget(name: str) -> None:
    DatasetCatalog.remove(name)
    MetadataCatalog.pop(name)


def assert_equal(one, other, path: str = "checkpoint") -> None:
    """What two checkpoints hold is the same, in type too; ``path`` names what is not."""
    assert type(one) is type(other), path
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_equal(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for i, pair in enumerate(zip(one, other)):
            assert_equal(*pair, f"{path}/{i}")
    else:
        assert one == other, path
