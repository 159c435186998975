"""Pictures of predictions in TensorBoard."""

import numpy as np
from detectron2.engine import HookBase
from detectron2.utils.events import get_event_storage
from torch.nn.parallel import DistributedDataParallel


class PredictionImages(HookBase):
    """At every evaluation, puts image, ground truth and prediction of each test set's first images into the storage.

    Runs on the main process alone; the writers' hook comes after it. Without images it does nothing.
    """

    def __init__(self, cfg):
        """``cfg``: ``TEST.LOG_IMAGES`` images of each of ``DATASETS.TEST``, every ``TEST.EVAL_PERIOD`` iterations."""
        self._cfg = cfg

    def after_step(self):
        """Periodically, but for the last iteration."""
        period, done = self._cfg.TEST.EVAL_PERIOD, self.trainer.iter + 1
        if period > 0 and done % period == 0 and done < self.trainer.max_iter:
            self._draw()

    def after_train(self):
        """At the end, unless training failed."""
        if self.trainer.iter + 1 >= self.trainer.max_iter:
            self._draw()

    def _draw(self) -> None:
        if self._cfg.TEST.LOG_IMAGES == 0:
            return
        # libraries that draw take half a second to import, which an error at the start need not wait for
        from rfpn.analysis.overlay import build_overlay
        from rfpn.analysis.samples import draw_samples

        model = self.trainer.model
        overlay = build_overlay(model.module if isinstance(model, DistributedDataParallel) else model, self._cfg)
        for dataset in self._cfg.DATASETS.TEST:
            for sample in draw_samples(overlay, dataset, self._cfg.TEST.LOG_IMAGES):
                picture = np.ascontiguousarray(sample.sheet().transpose(2, 0, 1))
                get_event_storage().put_image(f"{dataset}/{sample.name}", picture)
