"""Batches that cross from worker processes in one piece: every tensor that is sent alone costs a file handle."""

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from rfpn.data.workers import interrupted_after

# bytes; every type of numbers may start at its multiples
ALIGNMENT = 64


class PackedLoader(DataLoader):
    """A DataLoader of lists of samples, whose workers send all tensors of a batch as one.

    Iterating raises OSError where a batch finds no room in shared memory.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, collate_fn=_send, **options)

    def __iter__(self) -> Iterator[list]:
        with interrupted_after():
            batches = super().__iter__()
        return map(_receive, batches)


def _send(samples: list) -> list | bytes:
    """The samples; in a worker process packed and pickled, with their tensors in shared memory.

    Left to PyTorch, a worker pickles in a thread whose failure is told to nobody, and the main process waits for ever.
    """
    if get_worker_info() is None:
        return samples
    try:
        return bytes(ForkingPickler.dumps(pack(samples)))
    except RuntimeError as error:
        raise OSError(
            f"no shared memory for a batch of the loader ({error}); enlarge /dev/shm, or set DATALOADER.NUM_WORKERS 0"
        ) from None


def _receive(sent: list | bytes) -> list:
    return unpack(*pickle.loads(sent)) if isinstance(sent, bytes) else sent


def pack(samples: list) -> tuple[bytes, Tensor]:
    """The samples pickled without their tensors, and the bytes of all these (uint8, one dimension, shared memory)."""
    written = io.BytesIO()
    pickler = _Pickler(written)
    pickler.dump(samples)
    buffer = torch.empty(max(_aligned(pickler.size), ALIGNMENT), dtype=torch.uint8).share_memory_()
    for start, tensor in pickler.tensors:
        content = tensor.reshape(-1).view(torch.uint8)
        buffer[start : start + len(content)] = content
    return written.getvalue(), buffer


def unpack(pickled: bytes, buffer: Tensor) -> list:
    """The samples that :func:`pack` was given; their tensors share memory, without overlap."""
    return _Unpickler(io.BytesIO(pickled), buffer).load()


class _Pickler(pickle.Pickler):
    """Leaves out tensors in main memory; gives each a place: its type, shape and strides, and where it starts (numbers)."""

    def __init__(self, file):
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[tuple[int, Tensor]] = []
        self.size = 0

    def persistent_id(self, value) -> tuple | None:
        """The place of a tensor; None for what is pickled as it is."""
        plain = type(value) is Tensor and value.layout is torch.strided and value.device.type == "cpu"
        if not plain or value.requires_grad:
            return None
        start, value = _aligned(self.size), value.contiguous()
        self.tensors.append((start, value))
        self.size = start + value.numel() * value.itemsize
        return value.dtype, tuple(value.shape), value.stride(), start // value.itemsize


class _Unpickler(pickle.Unpickler):
    def __init__(self, file, buffer: Tensor):
        super().__init__(file)
        self.buffer = buffer
        self.views: dict[torch.dtype, Tensor] = {}

    def persistent_load(self, place: tuple) -> Tensor:
        """The tensor at a place."""
        dtype, shape, strides, start = place
        # a batch of Pathfinder has hundreds of tensors: one operation for each
        if dtype not in self.views:
            self.views[dtype] = self.buffer.view(dtype)
        return self.views[dtype].as_strided(shape, strides, start)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
