"""Batches that cross from worker processes in few pieces: every tensor that is sent alone costs a file handle."""

import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info


class PackedLoader(DataLoader):
    """A DataLoader of lists of dicts, whose workers send tensors of equal size as one tensor.

    Iterating raises OSError where a batch finds no room in shared memory.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, collate_fn=_send, **options)

    def __iter__(self) -> Iterator[list[dict]]:
        return map(_receive, super().__iter__())


def _send(samples: list[dict]) -> dict | list[dict] | bytes:
    """The packed samples; in a worker process pickled, with their tensors in shared memory.

    Left to PyTorch, a worker pickles in a thread whose failure is told to nobody, and the main process waits for ever.
    """
    packed = pack(samples)
    if get_worker_info() is None:
        return packed
    try:
        return bytes(ForkingPickler.dumps(packed))
    except RuntimeError as error:
        raise OSError(
            f"no shared memory for a batch of the loader ({error}); enlarge /dev/shm, or set DATALOADER.NUM_WORKERS 0"
        ) from None


def _receive(sent: dict | list[dict] | bytes) -> list[dict]:
    return unpack(pickle.loads(sent) if isinstance(sent, bytes) else sent)


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
