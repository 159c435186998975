"""One training step: autocast, gradient accumulation, and what happens to non-finite losses."""

import contextlib
import logging
import math
import time

import numpy as np
import torch
import torch.distributed as dist
from detectron2.engine import SimpleTrainer
from detectron2.utils import comm
from detectron2.utils.events import get_event_storage
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from rfpn.data.batches import seed_everything, seed_of
from rfpn.engine.parts import recurrent_layers
from rfpn.engine.proposals import finite_proposals

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class TrainStep(SimpleTrainer):
    """Detectron2's step plus autocast in either half precision, accumulation and an agreed answer to NaN.

    A step whose loss or gradient is not finite on any process never reaches weights or buffers. All processes skip it
    together, or, once ``skip_nonfinite`` were skipped, end together with the names of the losses.

    The loader is first asked at the first step, so that it can still be sent to the position of a checkpoint.
    """

    def __init__(
        self,
        model,
        data_loader,
        optimizer,
        amp_dtype: str | None = None,
        accumulate: int = 1,
        skip_nonfinite: int = 0,
        seed: int | None = None,
    ):
        """
        Args:
            amp_dtype: None (no autocast), "bfloat16" or "float16" (with loss scaling).
            accumulate: batches for one optimizer step, ≥ 1. skip_nonfinite: bad steps to skip in the whole run.
            seed: what is random in the model follows from it, the iteration, the batch and the process; None leaves
                the random state alone.
        """
        # Detectron2 0.6 asks the loader right here, which would start its workers at the wrong position
        super().__init__(model, (), optimizer)
        self.data_loader = data_loader
        self._batches = None
        self._recurrent = recurrent_layers(model)
        self.amp_dtype = DTYPES[amp_dtype] if amp_dtype else None
        self.accumulate = accumulate
        self.skip_nonfinite = skip_nonfinite
        self.seed = seed
        self.skipped = 0
        self.scaler = torch.amp.GradScaler(self._device(), enabled=amp_dtype == "float16")

    def run_step(self):
        """One optimizer step from ``accumulate`` batches."""
        if self._batches is None:
            self._batches = iter(self.data_loader)
        self.optimizer.zero_grad()
        data_time = 0.0
        totals: dict[str, Tensor] = {}
        buffers = self._kept_buffers()
        for index in range(self.accumulate):
            start = time.perf_counter()
            data = next(self._batches)
            data_time += time.perf_counter() - start
            with self._seeded(index), self._synchronise(index == self.accumulate - 1):
                losses = self._losses(data)
                self.scaler.scale(sum(losses.values())).backward()
            for key, value in losses.items():
                totals[key] = totals.get(key, 0) + value.detach()
        self.scaler.unscale_(self.optimizer)
        values = self._gather(totals, data_time)
        bad = self._not_finite(values)
        if bad:
            self._skip_or_raise(bad)
            for buffer, value in buffers:
                buffer.copy_(value)
        else:
            _write_metrics(values)
            self.scaler.step(self.optimizer)
        self.scaler.update()

    def _kept_buffers(self) -> list[tuple[Tensor, Tensor]]:
        """Buffers and their values where the step may be skipped: a forward pass of a bad batch spoils running statistics."""
        buffers = self.model.buffers() if self.skipped < self.skip_nonfinite else ()
        return [(buffer, buffer.clone()) for buffer in buffers]

    @contextlib.contextmanager
    def _seeded(self, index: int):
        """Seed what is random in batch ``index`` of this step, in each process its own."""
        if self.seed is None:
            yield
            return
        seed_everything(self.seed, self.iter, index, comm.get_rank())
        # numbers of steps are alike in all processes, so that none waits for another
        try:
            for layer in self._recurrent:
                layer.steps_seed = seed_of(self.seed, self.iter, index)
            yield
        finally:
            # outside of training every pass draws its own number
            for layer in self._recurrent:
                layer.steps_seed = None

    def state_dict(self):
        """Optimizer, loss scale and count of skipped steps."""
        state = super().state_dict()
        state["grad_scaler"] = self.scaler.state_dict()
        state["skipped"] = self.skipped
        return state

    def load_state_dict(self, state_dict):
        """Restore what :meth:`state_dict` gave; a state without a loss scale leaves the scaler at its start."""
        super().load_state_dict(state_dict)
        if state_dict["grad_scaler"]:
            self.scaler.load_state_dict(state_dict["grad_scaler"])
        self.skipped = state_dict["skipped"]

    def _losses(self, data) -> dict[str, Tensor]:
        with contextlib.ExitStack() as stack:
            if self.amp_dtype is not None:
                stack.enter_context(torch.autocast(self._device(), self.amp_dtype))
            with finite_proposals() as left_out:
                losses = {key: value / self.accumulate for key, value in self.model(data).items()}
        if not left_out:
            return losses
        # the losses may be finite without the proposals that were left out: NaN makes all processes refuse this step
        bad = [key for key in losses if "rpn" in key] or losses
        return {key: value * math.nan if key in bad else value for key, value in losses.items()}

    def _device(self) -> str:
        return next(self.model.parameters()).device.type

    def _synchronise(self, last: bool):
        postponed = not last and isinstance(self.model, DistributedDataParallel)
        return self.model.no_sync() if postponed else contextlib.nullcontext()

    def _gather(self, losses: dict[str, Tensor], data_time: float) -> dict[str, np.ndarray]:
        """Losses, ``data_time`` and ``gradient`` (its norm), each of all processes; the same on every one.

        One exchange and one wait for the device. Detectron2's gathering of pickled losses costs milliseconds a step.
        """
        gradient = get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None]).float()
        own = torch.stack(
            [*(value.float() for value in losses.values()), torch.full_like(gradient, data_time), gradient]
        )
        everyone = [own]
        if comm.get_world_size() > 1:
            everyone = [torch.empty_like(own) for _ in range(comm.get_world_size())]
            dist.all_gather(everyone, own)
        return dict(zip([*losses, "data_time", "gradient"], torch.stack(everyone, 1).double().cpu().numpy()))

    def _not_finite(self, values: dict[str, np.ndarray]) -> list[str]:
        """Names of what forbids the step: losses, or the gradient where they are finite."""
        bad = sorted(name for name, value in values.items() if not np.isfinite(value).all())
        # a gradient may overflow through the loss scale alone, and the scaler then skips the step; a scale below 1 is no cause
        if bad == ["gradient"] and self.scaler.is_enabled() and self.scaler.get_scale() >= 1:
            return []
        return [name for name in bad if name != "gradient"] or bad

    def _skip_or_raise(self, names: list[str]) -> None:
        """Count a step with these values not finite as skipped. FloatingPointError where no more may be skipped."""
        message = f"iteration {self.iter}: not finite: {', '.join(names)}"
        if self.skipped >= self.skip_nonfinite:
            remedy = "SOLVER.SKIP_NONFINITE leaves out so many such steps"
            raise FloatingPointError(f"{message}; the weights were not changed; {remedy}")
        self.skipped += 1
        get_event_storage().put_scalar("skipped_steps", self.skipped, smoothing_hint=False)
        logging.getLogger("rfpn").warning("%s; step skipped (%d of %d)", message, self.skipped, self.skip_nonfinite)


def _write_metrics(values: dict[str, np.ndarray]) -> None:
    """Detectron2's scalars: losses as means over processes, the longest wait for data."""
    if comm.is_main_process():
        means = {name: value.mean() for name, value in values.items() if name not in ("data_time", "gradient")}
        scalars = {**means, "data_time": values["data_time"].max(), "total_loss": sum(means.values())}
        get_event_storage().put_scalars(**scalars)
