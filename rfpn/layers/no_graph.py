"""Steps that autograd does not record, before others that it does."""

from typing import Callable, TypeVar

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from rfpn.layers.modes import autocast_dtype

T = TypeVar("T")


# no context manager: the compiler of PyTorch 2.6 breaks off at those that are generators
def no_graph(x: Tensor, run: Callable[..., T], *arguments) -> T:
    """``run(*arguments)`` without gradients; drops the weights that caches kept of it, which have no graph.

    x: the drive (R, ...), whose device says which autocast is in force.
    """
    with torch.no_grad():
        result = run(*arguments)
    # weights that parametrize.cached() keeps; there is no public way to drop them
    parametrize._cache.clear()
    if autocast_dtype(x) is not None:
        torch.clear_autocast_cache()
    return result
