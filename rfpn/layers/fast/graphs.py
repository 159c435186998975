"""CUDA graphs of the steps without gradient: with few RoIs, Python takes longer to launch a step than the card to do it.

A graph holds all T steps and what a fast form prepares from the weights, so that a replay reads their present values.
"""

import gc
import logging
import threading
from collections import OrderedDict
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Callable, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from rfpn.fixed_point import relative_residual
from rfpn.layers.modes import autocast_dtype, computed_at_once
from rfpn.layers.parts import as_made
from rfpn.layers.plain import PlainForm

# with more RoIs the card is busy for longer than launches take
MOST_ROIS = 512
# graphs kept for a cell; all buckets for one shape of RoIs are fewer
MOST_GRAPHS = 16
# times that a cell's weights may move in memory: if they do at every call, captures cost more than they save
MOST_MOVES = 20


class Captured(NamedTuple):
    """A graph with its own memory for a bucket of B RoIs: drive (B, C, H, W), channels last, state h_T, residual (B,).

    Replays belong on one stream, one after another (:class:`CellGraphs`): graphs of a cell share the memory that they work in.
    """

    graph: torch.cuda.CUDAGraph
    drive: Tensor
    state: Tensor
    residual: Tensor

    def replay(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(h_T, its residual) for drive x (R, C, H, W), R ≤ B, in memory that no later replay touches."""
        self.drive[: len(x)].copy_(x)
        self.drive[len(x) :].zero_()
        self.graph.replay()
        return self.state[: len(x)].clone(), self.residual[: len(x)].clone()


class CellGraphs:
    """The graphs of one cell by key, least recently used first; None where a key's drive has no fast form.

    lock: held from the search for a graph to the end of its replay, since all write to the same memory. stream: the
    one they belong to, that of the first use.
    """

    def __init__(self, stream: int = 0):
        self.lock, self.stream = threading.Lock(), stream
        self.graphs: OrderedDict[tuple, Captured | None] = OrderedDict()
        self.weights: tuple = ()
        self.moves = 0
        self.failed = False

    def find(self, key: tuple, weights: tuple, capture: Callable) -> Captured | None:
        """The graph for ``key``; if it is new, from ``capture``: (memory pool or None) -> graph or None.

        All graphs are dropped once ``weights`` (:func:`placement`) change, and for good after MOST_MOVES such changes or a
        RuntimeError in ``capture``.
        """
        if weights != self.weights:
            self.graphs.clear()
            self.weights = weights
            self.moves += 1
            if self.moves == MOST_MOVES + 1:
                message = "Weights were replaced %d times: recurrent steps run one by one from now on, not from CUDA graphs"
                logging.getLogger(__name__).warning(message, MOST_MOVES)
        if self.failed or self.moves > MOST_MOVES:
            return None
        if key not in self.graphs:
            while len(self.graphs) >= MOST_GRAPHS:
                self.graphs.popitem(last=False)
            # a pool ends with the last graph that uses it, so it is always asked of a living one
            pool = next((captured.graph.pool() for captured in self.graphs.values() if captured), None)
            try:
                self.graphs[key] = capture(pool)
            except RuntimeError as error:
                self.failed = True
                self.graphs.clear()
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                logging.getLogger(__name__).warning("No CUDA graph of the recurrent steps, they run one by one: %s", reason)
                return None
        self.graphs.move_to_end(key)
        return self.graphs[key]


# beside the modules, so that these can be copied and pickled
_graphs: WeakKeyDictionary[nn.Module, CellGraphs] = WeakKeyDictionary()


def run(layer: nn.Module, x: Tensor, steps: int) -> tuple[Tensor, Tensor] | None:
    """h_T (R, C, H, W) and ‖h_T − h_{T−1}‖/‖h_T‖ (R,) of a RecurrentLayer after T = ``steps`` from 0 on drive x (R, C, H, W).

    None where no graph can serve: see :func:`usable`, and where the cell has no fast form for x or capture fails.
    """
    if not usable(layer, x):
        return None
    stream = torch.cuda.current_stream(x.device).cuda_stream
    cell_graphs = _graphs.setdefault(layer.cell, CellGraphs(stream))
    if cell_graphs.stream != stream:
        return None
    with cell_graphs.lock:
        captured = cell_graphs.find(_key(x, steps), placement(layer.cell), lambda pool: _capture(layer, x, steps, pool))
        return captured and captured.replay(x)


def usable(layer: nn.Module, x: Tensor) -> bool:
    """Whether a graph may run the layer on x: without grad, on CUDA, for RoIs that do not influence each other."""
    if torch.is_grad_enabled() or not computed_at_once(x):
        return False
    if not (layer.fast == "auto" and x.is_cuda and x.dim() == 4 and bucket(len(x))):
        return False
    # every number of steps would need graphs of its own
    if layer.training and layer.extra_steps:
        return False
    cell = layer.cell
    return not getattr(cell, "batch_statistics", False) and as_made(cell) and not torch.cuda.is_current_stream_capturing()


def bucket(rois: int) -> int | None:
    """The number of RoIs that a graph for ``rois`` takes: multiples of 20 up to 100, then of 64; None for no graph."""
    if not 0 < rois <= MOST_ROIS:
        return None
    # 100 is COCO's limit of detections an image
    unit = 20 if rois <= 100 else 64
    return -(-rois // unit) * unit


def placement(cell: nn.Module) -> tuple:
    """Where a cell's parameters and buffers lie: values may change under a graph, their places may not."""
    return tuple((t.data_ptr(), t.dtype, t.device, t.shape, t.stride()) for t in (*cell.parameters(), *cell.buffers()))


def _key(x: Tensor, steps: int) -> tuple:
    """What a graph is made for. x's memory format is not part of it: drives are copied."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    # newer versions refuse to read allow_tf32 after a precision was set by its new name
    new = hasattr(matmul, "fp32_precision")
    tf32 = (matmul.fp32_precision, cudnn.conv.fp32_precision) if new else (matmul.allow_tf32, cudnn.allow_tf32)
    return steps, bucket(len(x)), x.shape[1:], x.dtype, x.device, autocast_dtype(x), *tf32, cudnn.enabled, cudnn.deterministic


# inference mode would make memory that cannot be written to outside it
@torch.inference_mode(False)
@torch.no_grad()
def _capture(layer: nn.Module, x: Tensor, steps: int, pool) -> Captured | None:
    drive = x.new_zeros((bucket(len(x)), *x.shape[1:])).contiguous(memory_format=torch.channels_last)
    if isinstance(layer.form(drive), PlainForm):
        return None
    half, enabled = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
    # a weight that autocast keeps would not be cast again by a replay
    casts = torch.autocast("cuda", half, enabled, cache_enabled=False)
    with torch.cuda.device(x.device):
        graph, stream = torch.cuda.CUDAGraph(), _stream(x.device)
        stream.wait_stream(torch.cuda.current_stream())
        # also restores the stream after a failure, which torch.cuda.graph does not
        with casts, torch.cuda.stream(stream):
            # Triton compiles and cuDNN plans outside the capture
            _steps(layer, drive, steps)
            _steps(layer, drive, steps)
            with _capturing(graph, pool or torch.cuda.graph_pool_handle(), stream):
                state, residual = _steps(layer, drive, steps)
        torch.cuda.current_stream().wait_stream(stream)
    return Captured(graph, drive, state, residual)


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: tuple, stream: torch.cuda.Stream):
    """Capture into ``graph``, on the current device; after a RuntimeError the device is as usable as before."""
    # a graph that ends as garbage meanwhile would break this capture
    collects = gc.isenabled()
    gc.disable()
    try:
        # other threads may use the card meanwhile, as those that load data do
        with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
            yield
    except RuntimeError:
        _clear_up(graph, pool, stream)
        raise
    finally:
        if collects:
            gc.enable()


def _clear_up(graph: torch.cuda.CUDAGraph, pool: tuple, stream: torch.cuda.Stream) -> None:
    """End what torch leaves as if in capture where CUDA refuses a capture's end: its allocator, its random generator."""
    # RuntimeError: torch did end it; AttributeError: older versions have other names
    with suppress(RuntimeError, AttributeError):
        graph.reset()
        torch._C._cuda_endAllocateToPool(stream.device_index, pool)
        torch._C._cuda_releasePool(stream.device_index, pool)
    # the generator leaves a capture only with the end of one
    with suppress(RuntimeError):
        one = torch.zeros(1, device=stream.device)
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream, capture_error_mode="thread_local"):
            one.zero_()


@lru_cache(maxsize=None)
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Captures' stream: graphs that share memory must be captured on the same one."""
    return torch.cuda.Stream(device)


def _steps(layer: nn.Module, drive: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """(h_T, its residual) by a form of its own, so that what this prepares is captured too."""
    form = layer.form(drive)
    previous = form.iterate(drive, layer.initial_state(drive), steps - 1)
    state = form.iterate(drive, previous, 1)
    return state, relative_residual(state, previous)
