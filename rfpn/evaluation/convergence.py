"""How far the recurrent states of a model settled on the evaluated images."""

import torch
from detectron2.evaluation import DatasetEvaluator
from detectron2.utils import comm

from rfpn.fixed_point import unconverged


class ConvergenceEvaluator(DatasetEvaluator):
    """Residuals ‖h_T − h_{T−1}‖ / ‖h_T‖ of all RoIs, or images, under the key ``convergence``.

    ``residual``: their mean. ``unconverged_share``: the share, in 0..1, that is above the tolerance or not finite.
    Models that report none give no scores.
    """

    def __init__(self, tolerance: float = 0.0):
        """
        Args:
            tolerance: residual at which a state counts as settled; 0 for 0.01.
        """
        self._tolerance = tolerance
        self.reset()

    def reset(self):
        """Forget all images."""
        self._residuals: list[torch.Tensor] = []

    def process(self, inputs: list, outputs: list):
        """Takes outputs with ``instances`` that have ``mask_residual``, or with a ``residual`` of one value or several."""
        for output in outputs:
            if "residual" in output:
                self._residuals.append(output["residual"].reshape(-1))
            elif "instances" in output and output["instances"].has("mask_residual"):
                self._residuals.append(output["instances"].mask_residual)

    def evaluate(self) -> dict | None:
        """``{"convergence": scores}`` on the main process, None on the others, ``{}`` where no residual was reported."""
        own = torch.cat([r.float() for r in self._residuals]).cpu() if self._residuals else torch.zeros(0)
        gathered = comm.gather(own.numpy())
        if not comm.is_main_process():
            return None
        residuals = torch.cat([torch.from_numpy(some) for some in gathered])
        if not len(residuals):
            return {}
        share = unconverged(residuals, self._tolerance).float().mean().item()
        return {"convergence": {"residual": residuals.mean().item(), "unconverged_share": share}}
