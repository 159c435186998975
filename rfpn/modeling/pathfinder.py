"""The Pathfinder models: input filters, a recurrent layer or its feedforward control, a readout per pixel (P§3.1)."""

import math
from typing import Iterator

import torch
from detectron2.config import configurable
from detectron2.modeling import META_ARCH_REGISTRY
from torch import Tensor, nn

from rfpn.layers import ConvLSTMCell, HGRUCell, RecurrentLayer
from rfpn.layers.checks import Range, check_setting
from rfpn.layers.filters import pathfinder_filter_bank
from rfpn.layers.gates import batch_statistics_norm
from rfpn.modeling.feedforward import FeedforwardLayers
from rfpn.modeling.losses import check_gamma, focal_loss
from rfpn.modeling.recurrent import check_penalised, kernel_size, recurrent_options

CELLS = ("hgru", "conv_lstm")
LAYERS = ("recurrent", "feedforward")
LOSSES = ("focal", "cross_entropy")
CHANNELS = Range(1, 25, whole=True)
FEEDFORWARD_LAYERS = Range(1, 1000, whole=True)


@META_ARCH_REGISTRY.register()
class PathfinderNet(nn.Module):
    """Drive x = (G∗image + b)², a layer, then batch norm and a 1×1 convolution to logits of background and target.

    Batch norms (readout, hGRU, feedforward control) use the statistics of the batch in training and in evaluation, as
    released: an image's result depends on its batch, so evaluate with the batch size of training. Under several
    processes each uses its own images.
    """

    @configurable
    def __init__(
        self,
        *,
        layer: nn.Module,
        channels: int = 25,
        drive_bias: bool = True,
        focal_gamma: float = 2.0,
        lipschitz_weight: float = 0.0,
        supervise_all_steps: bool = False,
    ):
        """
        Args:
            layer: RecurrentLayer or FeedforwardLayers on C channels.
            channels: C, 1 to 25; fewer than 25 are spread evenly over the filter bank.
            drive_bias: give the filters a bias b.
            focal_gamma: γ of the loss, 0 for cross entropy. lipschitz_weight: of the penalty in the loss.
            supervise_all_steps: mean loss of the readouts of all steps, with gradients through all of them.

        Raises:
            ValueError: naming the argument that cannot work.
        """
        super().__init__()
        bank = pathfinder_filter_bank()
        check_setting("PathfinderNet channels", channels, CHANNELS)
        recurrent = isinstance(layer, RecurrentLayer)
        if supervise_all_steps and not (recurrent and layer.gradient == "bptt" and not layer.extra_steps):
            raise ValueError("PathfinderNet supervise_all_steps needs a recurrent layer with gradient 'bptt', no extra_steps")
        check_penalised("PathfinderNet", lipschitz_weight, layer)
        self.filters = nn.Conv2d(1, channels, bank.shape[-1], padding=bank.shape[-1] // 2, bias=drive_bias)
        self.filters.weight.data.copy_(bank[torch.linspace(0, len(bank) - 1, channels).round().long()])
        self.layer = layer
        self.norm = batch_statistics_norm(channels)
        self.readout = nn.Conv2d(channels, 2, 1)
        nn.init.xavier_normal_(self.readout.weight)
        # the prior of a target pixel is 0.01
        self.readout.bias.data.copy_(torch.tensor([math.log(0.99 / 0.01), 0.0]))
        self.focal_gamma = focal_gamma
        self.lipschitz_weight = lipschitz_weight
        self.supervise_all_steps = supervise_all_steps

    @classmethod
    def from_config(cls, cfg) -> dict:
        """Arguments from a config. Raises ValueError naming the key that cannot work."""
        node, recurrent = cfg.MODEL.PATHFINDER, cfg.MODEL.RECURRENT
        for key, value, rule in (
            ("PATHFINDER.LAYER", node.LAYER, LAYERS),
            ("PATHFINDER.LOSS", node.LOSS, LOSSES),
            ("PATHFINDER.CHANNELS", node.CHANNELS, CHANNELS),
            ("PATHFINDER.FEEDFORWARD_LAYERS", node.FEEDFORWARD_LAYERS, FEEDFORWARD_LAYERS),
            ("RECURRENT.CELL", recurrent.CELL, CELLS),
        ):
            check_setting(f"MODEL.{key}", value, rule)
        check_gamma("MODEL.PATHFINDER.FOCAL_GAMMA", node.FOCAL_GAMMA)
        if node.SUPERVISE_ALL_STEPS and (node.LAYER, recurrent.GRADIENT, recurrent.EXTRA_STEPS) != ("recurrent", "bptt", 0):
            raise ValueError(
                "MODEL.PATHFINDER.SUPERVISE_ALL_STEPS needs LAYER 'recurrent', RECURRENT.GRADIENT 'bptt' and EXTRA_STEPS 0"
            )
        if node.LAYER == "feedforward" and recurrent.LIPSCHITZ.WEIGHT > 0:
            raise ValueError("MODEL.RECURRENT.LIPSCHITZ.WEIGHT must be 0 with MODEL.PATHFINDER.LAYER 'feedforward'")
        return {
            "layer": _build_layer(cfg),
            "channels": node.CHANNELS,
            "drive_bias": node.LAYER == "recurrent",
            "focal_gamma": node.FOCAL_GAMMA if node.LOSS == "focal" else 0.0,
            "lipschitz_weight": recurrent.LIPSCHITZ.WEIGHT,
            "supervise_all_steps": node.SUPERVISE_ALL_STEPS,
        }

    @property
    def device(self) -> torch.device:
        return self.filters.weight.device

    def forward(self, batched_inputs: list[dict]):
        """
        Args:
            batched_inputs: dicts with ``image`` (1, H, W), grey values 0 to 255, all of one size, and in training
                ``sem_seg`` (H, W), 1 on the target and 0 elsewhere.

        Returns:
            In training a dict of scalar losses ``loss_segmentation`` and, where the penalty is on,
            ``loss_lipschitz``. In evaluation a list of dicts with ``sem_seg`` (2, H, W), logits, and, where the layer is
            recurrent, ``residual``, the scalar ‖h_T − h_{T−1}‖ / ‖h_T‖.
        """
        drive = self.drive(batched_inputs)
        if not self.training:
            features, _, residual = self._features(drive)
            logits = self.logits(features)
            if residual is None:
                return [{"sem_seg": one} for one in logits]
            return [{"sem_seg": one, "residual": of_one} for one, of_one in zip(logits, residual)]
        target = torch.stack([x["sem_seg"] for x in batched_inputs]).to(self.device)
        losses = []

        def judge(features: Tensor) -> None:
            losses.append(focal_loss(self.logits(features), target, self.focal_gamma))

        if self.supervise_all_steps:
            penalty = self.layer(drive, judge).penalty
        else:
            features, penalty, _ = self._features(drive)
            judge(features)
        result = {"loss_segmentation": torch.stack(losses).mean()}
        if self.lipschitz_weight > 0:
            result["loss_lipschitz"] = penalty * self.lipschitz_weight
        return result

    def drive(self, batched_inputs: list[dict]) -> Tensor:
        """x = (G∗image/255 + b)², (N, C, H, W), in the filters' type.

        Also under autocast: squares of half precision lose too much.

        Raises:
            ValueError: the images are not grey, not of one size, or one pixel in all.
        """
        sizes = {tuple(map(int, x["image"].shape)) for x in batched_inputs}
        if len(sizes) != 1 or len(size := sizes.pop()) != 3 or size[0] != 1:
            raise ValueError("PathfinderNet needs grey images (1, H, W) of one size; see INPUT.PATHFINDER_SIZE")
        if len(batched_inputs) * size[1] * size[2] == 1:
            raise ValueError("PathfinderNet cannot normalise a single pixel; see INPUT.PATHFINDER_SIZE")
        images = torch.stack([x["image"] for x in batched_inputs]).to(self.device).to(self.filters.weight.dtype) / 255
        with torch.autocast(self.device.type, enabled=False):
            return self.filters(images).square()

    def logits(self, features: Tensor) -> Tensor:
        """Readout: hidden state (N, C, H, W) -> logits (N, 2, H, W) of background and target."""
        return self.readout(self.norm(features))

    @torch.no_grad()
    def time_course(self, batched_inputs: list[dict], steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield logits (N, 2, H, W) and residuals (N,) after each of the steps 1 … ``steps``, from one unrolling.

        Raises:
            ValueError: the layer is the feedforward control.
        """
        if not isinstance(self.layer, RecurrentLayer):
            raise ValueError("the feedforward control has no steps; use a config with MODEL.PATHFINDER.LAYER 'recurrent'")
        for hidden, residual in self.layer.unroll(self.drive(batched_inputs), steps):
            yield self.logits(hidden), residual

    def _features(self, drive: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Last hidden state, penalty and residual (N,); the latter two None for the feedforward control."""
        output = self.layer(drive)
        if not isinstance(self.layer, RecurrentLayer):
            return output, None, None
        return output.hidden, output.penalty, output.residual


def _build_layer(cfg) -> nn.Module:
    node, recurrent = cfg.MODEL.PATHFINDER, cfg.MODEL.RECURRENT
    size = kernel_size(recurrent, 15)
    if node.LAYER == "feedforward":
        return FeedforwardLayers(node.CHANNELS, size, node.FEEDFORWARD_LAYERS)
    options = recurrent_options(cfg)
    if recurrent.CELL == "conv_lstm":
        return RecurrentLayer(ConvLSTMCell(node.CHANNELS, size), **options)
    start = (recurrent.GATE_BIAS, recurrent.GATE_STEPS or 8, recurrent.NORM_START)
    cell = HGRUCell(node.CHANNELS, size, recurrent.FORM, *start)
    return RecurrentLayer(cell, **options)
