"""Hooks for Detectron2's training loop."""

from detectron2.engine import HookBase
from detectron2.utils.events import get_event_storage

from rfpn.layers import RecurrentLayer


class RecurrentDiagnostics(HookBase):
    """Logs every recurrent layer's residual, penalty, truncated share and Neumann length as scalars.

    Values are read from the device only every ``period`` iterations; they are those of this process.
    """

    def __init__(self, period: int = 20):
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
