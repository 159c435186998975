"""Steps that autograd does not record, before others that it does."""

from contextlib import contextmanager
from typing import Iterator

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from rfpn.layers.fast import autocast_dtype


@contextmanager
def no_graph(x: Tensor) -> Iterator[None]:
    """No gradients within; afterwards, weights that were kept meanwhile, without a graph, must not serve recorded steps.

    x: the drive (R, ...), whose device says which autocast is in force.
    """
    with torch.no_grad():
        yield
    # of parametrize.cached(); there is no public way to ask for them anew
    parametrize._cache.clear()
    if autocast_dtype(x) is not None:
        torch.clear_autocast_cache()
