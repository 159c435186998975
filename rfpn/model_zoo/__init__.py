"""Trained models that come with the project: a checkpoint and its configuration, by name."""

from pathlib import Path

from detectron2.config import CfgNode
from torch import nn

from rfpn.engine.checkpoint import load_for_evaluation
from rfpn.engine.setup import load_cfg
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
    return load_cfg(str(_FOLDER / f"{name}.yaml"), ["MODEL.WEIGHTS", str(_FOLDER / f"{name}.pth")])


def get(name: str) -> nn.Module:
    """A trained model in evaluation mode.

    Raises:
        ValueError: as :func:`get_config` does.
    """
    cfg = get_config(name)
    return load_for_evaluation(build_model(cfg), cfg)
