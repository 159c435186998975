"""Batches that cross from worker processes in few pieces: every tensor that is sent alone costs a file handle."""

from typing import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader


class PackedLoader(DataLoader):
    """A DataLoader of lists of dicts, whose workers send tensors of equal size as one tensor."""

    def __init__(self, *args, **options):
        super().__init__(*args, collate_fn=pack, **options)

    def __iter__(self) -> Iterator[list[dict]]:
        return map(unpack, super().__iter__())


def pack(samples: list[dict]) -> dict | list[dict]:
    """Dict of stacked tensors (where one key's have one type and size) and of lists; samples of unlike keys stay."""
    keys = samples[0].keys()
    if any(sample.keys() != keys for sample in samples):
        return samples
    return {key: _stack([sample[key] for sample in samples]) for key in keys}


def unpack(packed: dict | list[dict]) -> list[dict]:
    """The samples that :func:`pack` was given; their tensors share memory."""
    if isinstance(packed, list):
        return packed
    return [dict(zip(packed, values)) for values in zip(*packed.values())]


def _stack(values: list) -> Tensor | list:
    if all(isinstance(value, Tensor) for value in values):
        if len({(value.dtype, value.shape) for value in values}) == 1:
            return torch.stack(values)
    return values
