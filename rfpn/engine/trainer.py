"""Detectron2's training loop with this project's models, data and evaluators."""

import weakref

from detectron2.config import CfgNode
from detectron2.engine import DefaultTrainer, TrainerBase
from detectron2.engine.defaults import create_ddp_model
from detectron2.utils import comm

from rfpn.data.build import build_test_loader, build_train_loader, check_datasets
from rfpn.engine.checkpoint import Checkpointer
from rfpn.engine.hooks import RecurrentDiagnostics
from rfpn.engine.image_hook import PredictionImages
from rfpn.engine.optimizer import build_optimizer
from rfpn.engine.step import TrainStep
from rfpn.evaluation import build_evaluator


class Trainer(DefaultTrainer):
    """One loop for panoptic segmentation and Pathfinder, on CPU or GPU, on any number of processes."""

    def __init__(self, cfg: CfgNode):
        """Build everything a run needs.

        Raises:
            ValueError, KeyError, OSError: naming the key, data set or file at fault.
        """
        TrainerBase.__init__(self)
        cfg = self.auto_scale_workers(cfg, comm.get_world_size())
        check_datasets(cfg)
        model = self.build_model(cfg)
        optimizer = self.build_optimizer(cfg, model)
        loader = self.build_train_loader(cfg)
        devices = {} if cfg.MODEL.DEVICE.startswith("cuda") else {"device_ids": None}
        model = create_ddp_model(model, broadcast_buffers=False, **devices)
        self._trainer = TrainStep(
            model,
            loader,
            optimizer,
            amp_dtype=cfg.SOLVER.AMP.DTYPE if cfg.SOLVER.AMP.ENABLED else None,
            accumulate=cfg.SOLVER.ACCUMULATE,
            skip_nonfinite=cfg.SOLVER.SKIP_NONFINITE,
        )
        self.scheduler = self.build_lr_scheduler(cfg, optimizer)
        self.checkpointer = Checkpointer(model, cfg.OUTPUT_DIR, trainer=weakref.proxy(self))
        self.start_iter = 0
        self.max_iter = cfg.SOLVER.MAX_ITER
        self.cfg = cfg
        self.register_hooks(self.build_hooks())

    def build_hooks(self) -> list:
        """Detectron2's hooks, with the recurrent layers' scalars and pictures of predictions before the writers."""
        hooks = super().build_hooks()
        if not comm.is_main_process():
            return hooks
        return hooks[:-1] + [RecurrentDiagnostics(), PredictionImages(self.cfg), hooks[-1]]

    @classmethod
    def build_optimizer(cls, cfg, model):
        """``SOLVER.OPTIMIZER``."""
        return build_optimizer(cfg, model)

    @classmethod
    def build_train_loader(cls, cfg):
        """Loader with the mapper of the training sets' kind."""
        return build_train_loader(cfg)

    @classmethod
    def build_test_loader(cls, cfg, dataset_name):
        """Loader with the mapper of the data set's kind."""
        return build_test_loader(cfg, dataset_name)

    @classmethod
    def build_evaluator(cls, cfg, dataset_name, output_folder=None):
        """Evaluators by the data set's ``evaluator_type``."""
        return build_evaluator(cfg, dataset_name, output_folder)
