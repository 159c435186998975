"""Building the model of a configuration."""

import os
import traceback
from contextlib import contextmanager
from typing import Iterator

from detectron2 import modeling
from detectron2.config import CfgNode
from torch import nn


def build_model(cfg: CfgNode) -> nn.Module:
    """Detectron2's ``build_model``, in evaluation mode. Raises as :func:`model_errors` does."""
    with model_errors():
        return modeling.build_model(cfg).eval()


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
