"""Detectron2's training loop with this project's models, data and evaluators."""

import inspect
import logging
import math
import os
import weakref

import torch
from detectron2.config import CfgNode
from detectron2.engine import DefaultTrainer, TrainerBase
from detectron2.engine.defaults import create_ddp_model
from detectron2.solver import LRMultiplier
from detectron2.utils import comm

from rfpn.data.build import build_test_loader, build_train_loader, check_datasets
from rfpn.data.files import whole_file
from rfpn.engine import resume as resuming
from rfpn.engine.checkpoint import Checkpointer, last_good, of_a_part
from rfpn.engine.freeze import train_only
from rfpn.engine.hooks import purge_events, with_own_hooks
from rfpn.engine.loader import run_seed, train_loader
from rfpn.engine.optimizer import build_optimizer
from rfpn.engine.parts import recurrent_layers
from rfpn.engine.rules import check_scaling, check_values, verify_expected_results
from rfpn.engine.step import TrainStep
from rfpn.evaluation import build_evaluator
from rfpn.modeling.build import checked, model_errors
from rfpn.modeling.norms import check_device, check_norms, widen_statistics

_ANEW = "start anew with MODEL.WEIGHTS set to it, without --resume"


class Trainer(DefaultTrainer):
    """One loop for panoptic segmentation and Pathfinder, on CPU or GPU, on any number of processes.

    The order of samples, their augmentation and what is random in the model follow from ``seed`` (``SEED``, or drawn
    where that is negative), from ``samples`` (drawn so far, on all processes) and from the iteration. Checkpoints hold
    these with the state of optimizer, schedule and loss scale, so a resumed run goes on as if it had not stopped.
    """

    def __init__(self, cfg: CfgNode):
        """Build everything a run needs.

        Raises:
            ValueError, KeyError, OSError: naming the key, data set or file at fault.
        """
        TrainerBase.__init__(self)
        check_scaling(cfg)
        self._written = cfg
        cfg = self.auto_scale_workers(cfg, comm.get_world_size())
        # scaling may have made periods or iterations 0
        check_values(cfg)
        check_norms(cfg)
        own = inspect.getattr_static(type(self), "build_evaluator") is not vars(Trainer)["build_evaluator"]
        check_datasets(cfg, own_evaluator=own)
        model = self.build_model(cfg)
        if cfg.MODEL.RECURRENT.LIPSCHITZ.WEIGHT > 0 and not recurrent_layers(model):
            logging.getLogger("rfpn").warning("the model has no recurrent layer: MODEL.RECURRENT and its penalty do nothing")
        if cfg.SOLVER.TRAIN_ONLY:
            train_only(model, cfg.SOLVER.TRAIN_ONLY)
        check_device(model, cfg)
        widen_statistics(model)
        optimizer = self.build_optimizer(cfg, model)
        self._trained = resuming.trained_names(model, optimizer)
        self.seed = run_seed(cfg)
        self.samples = self._finished = 0
        self._restored = False
        loader = train_loader(self, cfg)
        devices = {} if cfg.MODEL.DEVICE.startswith("cuda") else {"device_ids": None}
        model = create_ddp_model(model, broadcast_buffers=False, **devices)
        self._trainer = TrainStep(
            model,
            loader,
            optimizer,
            amp_dtype=cfg.SOLVER.AMP.DTYPE if cfg.SOLVER.AMP.ENABLED else None,
            accumulate=cfg.SOLVER.ACCUMULATE,
            skip_nonfinite=cfg.SOLVER.SKIP_NONFINITE,
            seed=self.seed,
        )
        self.scheduler = self.build_lr_scheduler(cfg, optimizer)
        self.checkpointer = Checkpointer(model, cfg.OUTPUT_DIR, trainer=weakref.proxy(self))
        self.start_iter = 0
        self.max_iter = cfg.SOLVER.MAX_ITER
        self.cfg = cfg
        # SEED may be negative; the seed that was drawn counts
        self._in_force = {**resuming.settings_in_force(cfg), "SEED": self.seed}
        self.register_hooks(self.build_hooks())

    def build_hooks(self) -> list:
        """Detectron2's hooks, and this project's: see :func:`rfpn.engine.hooks.with_own_hooks`."""
        return with_own_hooks(super().build_hooks(), self.cfg)

    def resume_or_load(self, resume: bool = True) -> None:
        """Go on from the last checkpoint in ``OUTPUT_DIR``, or load ``MODEL.WEIGHTS`` alone and start anew.

        Then ``config.yaml`` is written, with the values that stay the checkpoint's; a launch that fails before leaves the
        former run's file. A run that starts anew removes the former run's ``last_checkpoint``.

        Raises:
            OSError, ValueError: naming the file that is missing, damaged or refused, or why the run cannot be resumed.
        """
        if comm.is_main_process():
            self.checkpointer.remove_partial()
        begun = self.checkpointer.has_checkpoint()
        if begun and not resume:
            logging.getLogger("rfpn").warning(
                "OUTPUT_DIR %s holds a run: this one overwrites its checkpoints, adds to its log, and is the one that "
                "--resume continues from now on",
                self.cfg.OUTPUT_DIR,
            )
        elif resume and not begun:
            folder = self.cfg.OUTPUT_DIR
            logging.getLogger("rfpn").warning("OUTPUT_DIR %s has no last_checkpoint to resume: the run starts anew", folder)
        super().resume_or_load(resume)
        if begun and resume and not self._restored:
            self._check_model()
            # or it would go on from the second iteration, with a new optimizer
            self.refuse("it holds weights alone")
        # nothing is written before every process has loaded the checkpoint
        comm.synchronize()
        if not comm.is_main_process():
            return
        if resume:
            # a run that is finished is evaluated anew
            log = os.path.join(self.cfg.OUTPUT_DIR, "metrics.json")
            goes_on = self.start_iter < self.max_iter
            resuming.cut_log(log, self.start_iter, scores=goes_on)
            purge_events(self._hooks, self.start_iter + goes_on)
        elif begun:
            # until this run has a checkpoint of its own, --resume would go on with the former run's
            self.checkpointer.remove_tag()
        path = os.path.join(self.cfg.OUTPUT_DIR, "config.yaml")
        with whole_file(path) as temporary:
            temporary.write_text(resuming.record_in_force(self._written, self.cfg, self._in_force).dump())
        logging.getLogger("rfpn").info("settings of this run: %s", path)

    def train(self) -> dict | None:
        """As Detectron2's, and the last scores always, on the main process: {} where nothing was evaluated.

        Raises:
            ValueError: ``TEST.EXPECTED_RESULTS`` names a task or a metric that the evaluation did not give.
        """
        TrainerBase.train(self, self.start_iter, self.max_iter)
        if not comm.is_main_process():
            return None
        # a subclass may have taken out the hook that evaluates
        scores = getattr(self, "_last_eval_results", {})
        verify_expected_results(self.cfg, scores)
        return scores

    def run_step(self) -> None:
        """One step; it and its samples are counted. FloatingPointError, with the last good checkpoint: it is not finite."""
        try:
            super().run_step()
        except FloatingPointError as error:
            raise FloatingPointError(f"{error}; {last_good(self.cfg.OUTPUT_DIR)}") from error
        self._finished = self.iter + 1
        self.samples += self.cfg.SOLVER.IMS_PER_BATCH * self.cfg.SOLVER.ACCUMULATE

    def after_step(self) -> None:
        """As Detectron2's; pictures of VIS_PERIOD and histograms are let go of where no writer takes them."""
        super().after_step()
        if not comm.is_main_process():
            self.storage.clear_images()
            self.storage.clear_histograms()

    def after_train(self) -> None:
        """As Detectron2's, whose count is one too high where no iteration was left to do; a run that failed is not scored."""
        # a finished run may be resumed with fewer iterations than it has done
        self.iter = min(self.iter, max(self.start_iter, self.max_iter))
        if self.iter < self.max_iter:
            # hooks would take a run that failed in its last iteration for a finished one
            self.max_iter = math.inf
        try:
            super().after_train()
        except Exception:
            # Detectron2 logs exceptions in its loop, but none after it
            logging.getLogger("rfpn").exception("Exception after training:")
            raise

    def state_dict(self) -> dict:
        """All that a run needs to go on, beside the model."""
        # Detectron2 0.6 leaves out the optimizer's state
        return {
            **super().state_dict(),
            # the last finished one; Detectron2's own count is that only while the hooks after a step run
            "iteration": self._finished - 1,
            "_trainer": self._trainer.state_dict(),
            "seed": self.seed,
            "samples": self.samples,
            "trained": self._trained,
            "scaled_to": self.cfg.SOLVER.REFERENCE_WORLD_SIZE,
            "in_force": self._in_force,
            "reference": self._written.SOLVER.REFERENCE_WORLD_SIZE,
        }

    def load_state_dict(self, state_dict: dict) -> None:
        """Restore what :meth:`state_dict` gave, and send the loader to its position.

        Raises:
            ValueError: the checkpoint lacks the state of this project's trainer, is of another model or optimizer, or of a
                schedule that Detectron2 scaled to another number of processes.
        """
        self._check_state(state_dict)
        optimizer, saved = self._trainer.optimizer, state_dict["_trainer"]["optimizer"]
        for group, own in zip(saved["param_groups"], optimizer.param_groups):
            # settings that newer versions of torch have added to the optimizer
            group |= {name: value for name, value in own.items() if name not in group}
        super().load_state_dict(state_dict)
        self._finished = state_dict["iteration"] + 1
        self._trainer.load_state_dict(state_dict["_trainer"])
        # a schedule has no rate beyond its end, where a finished run may stand
        if isinstance(self.scheduler, LRMultiplier) and self.scheduler.last_epoch <= self.max_iter:
            # the rates in the checkpoint follow the schedule that it was written with
            for group, rate in zip(optimizer.param_groups, self.scheduler.get_lr()):
                group["lr"] = rate
        kept = state_dict.get("in_force", {})
        # checkpoints of older versions lack "in_force"; only their seed is known
        self._in_force = {**kept, "SEED": state_dict["seed"]}
        if "SOLVER.IMS_PER_BATCH" in kept:
            self._in_force["SOLVER.IMS_PER_BATCH"] = self.cfg.SOLVER.IMS_PER_BATCH
        self.seed = self._trainer.seed = state_dict["seed"]
        self.data_loader.batch_sampler.seek(self.seed, state_dict["samples"])
        self.samples = self.data_loader.batch_sampler.samples
        self._restored = True

    def _check_state(self, state_dict: dict) -> None:
        """Raise ValueError with the first reason why a checkpoint cannot be resumed; nothing is restored by then."""
        if absent := [key for key in ("_trainer", "seed", "samples") if key not in state_dict]:
            self.refuse(f"it lacks the trainer's {', '.join(absent)}")
        optimizer, saved = self._trainer.optimizer, state_dict["_trainer"]["optimizer"]
        other = "its optimizer is another (SOLVER.OPTIMIZER, which parameters are trained, or those with a rate of their own)"
        missing, unexpected, misshapen = self.checkpointer.incompatible
        # where nothing but the counter of a norm that is frozen now is too many, the optimizer is the reason to name
        if missing or misshapen or any(map(of_a_part, unexpected)):
            self._check_model()
        if not resuming.same_kind(saved, optimizer.state_dict()):
            self.refuse(other)
        self._check_model()
        if state_dict.get("trained", self._trained) != self._trained or not resuming.has_shapes(saved, optimizer):
            self.refuse(other)
        if conflict := resuming.scaling_conflict(state_dict, self._written, self.cfg):
            self.refuse(conflict, "")

    def _check_model(self) -> None:
        if any(self.checkpointer.incompatible):
            remedy = "take another OUTPUT_DIR" if self.checkpointer.foreign else _ANEW
            self.refuse(f"it is of another model: {self.checkpointer.summary()}", remedy)

    def refuse(self, reason: str, remedy: str = _ANEW) -> None:
        """Raise ValueError: the last checkpoint cannot be resumed, for this reason and with this remedy."""
        folder = os.path.abspath(self.cfg.OUTPUT_DIR)
        raise ValueError(f"the last checkpoint in {folder} cannot be resumed, {reason}{remedy and f'; {remedy}'}")

    @classmethod
    def build_model(cls, cfg):
        """The model. Raises ValueError with the place where Detectron2 stumbles over keys that it does not check."""
        with model_errors():
            return checked(super().build_model(cfg), cfg)

    @classmethod
    def build_optimizer(cls, cfg, model):
        """``SOLVER.OPTIMIZER``."""
        return build_optimizer(cfg, model)

    @classmethod
    def build_train_loader(cls, cfg, seed: int | None = None):
        """Loader with the mapper of the training sets' kind; ``seed`` None takes ``SEED``.

        One of a subclass takes the same arguments, and its ``batch_sampler`` is one like
        :class:`rfpn.data.batches.PositionedBatches`: ``seek(seed, samples)`` sends it to a position, ``samples`` is that.
        """
        return build_train_loader(cfg, run_seed(cfg) if seed is None else seed)

    @classmethod
    def build_test_loader(cls, cfg, dataset_name):
        """Loader with the mapper of the data set's kind. ValueError for a kind that the model cannot read."""
        return build_test_loader(cfg, dataset_name)

    @classmethod
    def test(cls, cfg, model, evaluators=None):
        """As Detectron2's; all processes take the main one's running statistics, which are those that checkpoints hold."""
        if comm.get_world_size() > 1:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, 0)
        return super().test(cfg, model, evaluators)

    @classmethod
    def build_evaluator(cls, cfg, dataset_name, output_folder=None):
        """Evaluators by the data set's ``evaluator_type``."""
        return build_evaluator(cfg, dataset_name, output_folder)
