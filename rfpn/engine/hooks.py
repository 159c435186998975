"""Hooks for Detectron2's training loop."""

import multiprocessing
import os

import torch
from detectron2.engine import HookBase, hooks
from detectron2.utils.events import get_event_storage

from rfpn.layers import RecurrentLayer


class RecurrentDiagnostics(HookBase):
    """Logs every recurrent layer's residual, penalty, truncated share and Neumann length as scalars.

    Values are read from the device only every ``period`` iterations; they are those of this process.
    """

    def __init__(self, period: int):
        self._period = period

    def before_train(self):
        """Find the layers."""
        layers = [module for module in self.trainer.model.modules() if isinstance(module, RecurrentLayer)]
        self._layers = [(f"_{i}" if len(layers) > 1 else "", layer) for i, layer in enumerate(layers)]

    def after_step(self):
        """Write the scalars."""
        if (self.trainer.iter + 1) % self._period and self.trainer.iter + 1 < self.trainer.max_iter:
            return
        storage = get_event_storage()
        for suffix, layer in self._layers:
            for name, value in layer.diagnostics.items():
                storage.put_scalar(f"recurrent{suffix}/{name}", float(value), smoothing_hint=False)


class ProcessStatistics(HookBase):
    """Logs what a leak would make grow, as scalars of this process, every ``period`` iterations.

    ``process/host_memory`` and ``process/gpu_memory`` in MiB (resident; allocated by tensors), ``process/open_files``
    and ``process/children`` (running worker processes). What the system or the device does not tell is left out.
    """

    def __init__(self, period: int):
        self._period = period

    def after_step(self):
        """Write the scalars."""
        if (self.trainer.iter + 1) % self._period == 0:
            storage = get_event_storage()
            for name, value in process_statistics().items():
                storage.put_scalar(f"process/{name}", value, smoothing_hint=False)


class PreciseBN(hooks.PreciseBN):
    """Detectron2's, each time with the first samples of the run's stream, so that a run that was resumed takes the same."""

    def update_stats(self):
        """Estimate the running statistics of batch norms from ``TEST.PRECISE_BN.NUM_ITER`` batches."""
        self._data_loader.batch_sampler.seek(self.trainer.seed, 0)
        self._data_iter = None
        super().update_stats()


def process_statistics() -> dict[str, float]:
    """Host and GPU memory in MiB, open files and child processes of this process, by name."""
    statistics = {"children": len(multiprocessing.active_children())}
    if os.path.isdir("/proc/self/fd"):
        statistics["open_files"] = len(os.listdir("/proc/self/fd"))
        with open("/proc/self/statm") as file:
            statistics["host_memory"] = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    if torch.cuda.is_available():
        statistics["gpu_memory"] = torch.cuda.memory_allocated() / 2**20
    return statistics
