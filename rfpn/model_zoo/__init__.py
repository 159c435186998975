"""Trained models that come with the project: a checkpoint and its configuration, by name."""

from pathlib import Path

import torch
from detectron2.config import CfgNode
from torch import nn

from rfpn.config import get_cfg
from rfpn.engine.checkpoint import load_for_evaluation
from rfpn.modeling.build import build_model

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Names of all models, as "Pathfinder/hgru15_bptt6_pf14"."""
    return sorted(str(path.relative_to(_FOLDER).with_suffix("")) for path in _FOLDER.glob("*/*.pth"))


def get_config(name: str) -> CfgNode:
    """The configuration that a model was trained with; ``MODEL.WEIGHTS`` is its checkpoint, the device this machine's.

    ``TEST.EXPECTED_RESULTS`` holds what it scored.

    Raises:
        ValueError: there is no such model; names those there are.
    """
    if name not in names():
        raise ValueError(f"no model {name!r} in the zoo, which has {', '.join(names())}")
    cfg = get_cfg()
    cfg.merge_from_file(str(_FOLDER / f"{name}.yaml"))
    cfg.MODEL.WEIGHTS = str(_FOLDER / f"{name}.pth")
    cfg.MODEL.DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
    return cfg


def get(name: str) -> nn.Module:
    """A trained model in evaluation mode.

    Raises:
        ValueError: as :func:`get_config` does.
    """
    cfg = get_config(name)
    return load_for_evaluation(build_model(cfg), cfg)
