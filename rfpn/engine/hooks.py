"""Hooks for Detectron2's training loop."""

import logging
import multiprocessing
import os

import torch
from detectron2.config import CfgNode
from detectron2.engine import HookBase, hooks
from detectron2.utils import comm
from detectron2.utils.events import TensorboardXWriter, get_event_storage
from fvcore.nn import precise_bn
from torch.optim import lr_scheduler

from rfpn.engine.image_hook import PredictionImages
from rfpn.engine.parts import recurrent_layers


def with_own_hooks(found: list[HookBase], cfg: CfgNode) -> list[HookBase]:
    """Detectron2's hooks of a trainer, its schedule and its precise batch norm replaced, with this project's around them.

    On the main process: first, scalars of recurrent layers; before the writers, of the process, and pictures.
    """
    for i, hook in enumerate(found):
        if isinstance(hook, hooks.PreciseBN):
            found[i] = PreciseBN(hook._period, hook._model, hook._data_loader, hook._num_iter)
        elif isinstance(hook, hooks.LRScheduler):
            found[i] = LRScheduler()
    if not comm.is_main_process():
        return found
    *others, writers = found
    period = writers._period
    if 0 < cfg.TEST.EVAL_PERIOD < period:
        logging.getLogger("rfpn").warning(
            "metrics.json gets a line every %d iterations, with the last of the evaluations every TEST.EVAL_PERIOD %d "
            "iterations; log.txt has them all", period, cfg.TEST.EVAL_PERIOD
        )  # fmt: skip
    # evaluation leaves its own values in the layers
    return [RecurrentDiagnostics(period), *others, ProcessStatistics(period), PredictionImages(cfg), writers]


def purge_events(found: list[HookBase], iteration: int) -> None:
    """Mark TensorBoard's file so that it shows nothing of ``iteration`` or later that earlier files of the folder hold."""
    for writer in (writer for hook in found for writer in getattr(hook, "_writers", ())):
        if isinstance(writer, TensorboardXWriter):
            # torch's writer begins the file that it opens next with this mark
            writer._writer.close()
            writer._writer.purge_step = iteration


class RecurrentDiagnostics(HookBase):
    """Logs the ``diagnostics`` of every recurrent layer as scalars; see :class:`rfpn.layers.RecurrentLayer`.

    Values are read from the device only every ``period`` iterations; they are those of this process.
    """

    def __init__(self, period: int):
        self._period = period

    def before_train(self):
        """Find the layers."""
        layers = recurrent_layers(self.trainer.model)
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


# checkpoints name a hook's state by its class, so this one has the name of Detectron2's
class LRScheduler(hooks.LRScheduler):
    """Detectron2's, which keeps the state of its own schedules alone, for all of PyTorch's."""

    def state_dict(self) -> dict:
        """State of the schedule but for its functions, which a checkpoint cannot hold; {} for one of fvcore."""
        if not isinstance(self.scheduler, lr_scheduler.LRScheduler):
            return {}
        return {name: value for name, value in self.scheduler.state_dict().items() if not callable(value)}

    def load_state_dict(self, state_dict: dict) -> None:
        """Restore what :meth:`state_dict` gave. Raises ValueError where it is of another kind of schedule."""
        if isinstance(self.scheduler, lr_scheduler.LRScheduler):
            try:
                self.scheduler.load_state_dict(dict(state_dict))
            except KeyError:
                self.trainer.refuse("its schedule is of another kind")


class PreciseBN(hooks.PreciseBN):
    """Detectron2's, each time with the first samples of the run's stream, so that a run that was resumed takes the same."""

    def update_stats(self):
        """Estimate the running statistics of batch norms from ``TEST.PRECISE_BN.NUM_ITER`` batches."""
        self._data_loader.batch_sampler.seek(self.trainer.seed, 0)
        self._data_iter = None
        estimator, precise_bn._PopulationVarianceEstimator = precise_bn._PopulationVarianceEstimator, _Estimator
        try:
            super().update_stats()
        finally:
            precise_bn._PopulationVarianceEstimator = estimator


class _Estimator(precise_bn._PopulationVarianceEstimator):
    """fvcore's, but without what divides by 0: batches that hold nothing for a norm, such as the mask head's without a RoI."""

    def __init__(self, mean: torch.Tensor, variance: torch.Tensor):
        super().__init__(mean, variance)
        # a norm that sees no batch with values keeps what it had
        self.pop_mean, self._variance = mean.clone(), variance.clone()

    def update(self, mean: torch.Tensor, variance: torch.Tensor, size: int) -> None:
        """Take in the statistics of a batch of ``size`` values a channel, 0 where it holds nothing."""
        if size:
            if not self.tot:
                self.pop_mean.zero_()
            super().update(mean, variance, size)

    @property
    def pop_var(self) -> torch.Tensor:
        return super().pop_var if self.tot else self._variance


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
