"""Building the model of a configuration."""

import os
import traceback
from contextlib import contextmanager
from typing import Iterator

from detectron2 import modeling
from detectron2.config import CfgNode
from detectron2.modeling.meta_arch.semantic_seg import SemSegFPNHead
from torch import nn


def build_model(cfg: CfgNode) -> nn.Module:
    """Detectron2's ``build_model``, in evaluation mode. Raises as :func:`model_errors` does."""
    with model_errors():
        return checked(modeling.build_model(cfg), cfg).eval()


def checked(model: nn.Module, cfg: CfgNode) -> nn.Module:
    """The model. Raises ValueError where Detectron2's semantic head would leave out features, or could not add them up."""
    head, backbone = getattr(model, "sem_seg_head", None), getattr(model, "backbone", None)
    shapes = backbone.output_shape() if isinstance(backbone, modeling.Backbone) else {}
    # heads and models of one's own may read other keys, or get their features from elsewhere
    if type(head) is not SemSegFPNHead or not set(head.in_features) <= shapes.keys():
        return model
    node = cfg.MODEL.SEM_SEG_HEAD
    if unknown := [name for name in node.IN_FEATURES if name not in shapes]:
        raise ValueError(f"MODEL.SEM_SEG_HEAD.IN_FEATURES has {', '.join(unknown)}, but the backbone gives {', '.join(shapes)}")
    # it scales up alone
    finest = min(node.IN_FEATURES, key=lambda name: shapes[name].stride)
    if node.COMMON_STRIDE > shapes[finest].stride:
        raise ValueError(
            f"MODEL.SEM_SEG_HEAD.COMMON_STRIDE {node.COMMON_STRIDE} must be at most {shapes[finest].stride}, the stride of "
            f"{finest} in MODEL.SEM_SEG_HEAD.IN_FEATURES"
        )
    return model


@contextmanager
def model_errors() -> Iterator[None]:
    """Turn an error in Detectron2's code, over keys of a model that it does not check, into a ValueError with the place."""
    try:
        yield
    except (ArithmeticError, AssertionError, IndexError, KeyError) as error:
        # a registry's own sentence; a bare key of a look-up has no space
        if isinstance(error, KeyError) and " " in str(error):
            raise
        place, found = traceback.extract_tb(error.__traceback__)[-1], f"{type(error).__name__} {error}".strip()
        raise ValueError(
            f"the keys below MODEL do not make a model: {found} in {os.path.basename(place.filename)}, line {place.lineno}: "
            f"{place.line}"
        ) from error
