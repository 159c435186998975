"""The recurrent mask head of R-FPN: one hGRU in place of Mask R-CNN's four convolutions (P§4.2)."""

from detectron2.config import configurable
from detectron2.layers import ShapeSpec
from detectron2.modeling.roi_heads.mask_head import ROI_MASK_HEAD_REGISTRY, BaseMaskRCNNHead
from torch import Tensor, nn
from torch.nn import functional as F

from rfpn.layers import GALAHGRUCell, RecurrentLayer
from rfpn.layers.checks import check_setting
from rfpn.modeling.norms import named_norm
from rfpn.modeling.recurrent import check_penalised, kernel_size, recurrent_options

_POOLERS = ("ROIAlignV2", "ROIAlign", "ROIPool")


@ROI_MASK_HEAD_REGISTRY.register()
class HGRUMaskHead(BaseMaskRCNNHead):
    """GALA hGRU on the pooled features, then norm, ReLU(2×2 deconvolution), 1×1 to class masks.

    Training returns ``loss_mask`` and, where the penalty is on, ``loss_lipschitz``. Evaluation sets ``pred_masks``,
    ``mask_residual`` (‖h_T − h_{T−1}‖ / ‖h_T‖ of each RoI) and, where per-RoI stopping is on, ``mask_steps`` (steps each
    RoI used) on the instances.
    """

    # where NORM is SyncBN, naiveSyncBN_N is taken, as check_norms asks
    replaces_sync_bn = True

    @configurable
    def __init__(
        self,
        input_channels: int,
        *,
        num_classes: int,
        deconv_channels: int,
        kernel_size: int = 3,
        norm: str = "SyncBN",
        norm_groups: int = 32,
        gate_bias: str = "released",
        gate_steps: int = 20,
        norm_start: float = 0.1,
        lipschitz_weight: float = 0.0,
        recurrent: dict,
        **kwargs,
    ):
        """
        Args:
            input_channels: C of the pooled features; also the hidden state's.
            num_classes: number of masks, 1 if class agnostic.
            deconv_channels: channels of the upsampled features.
            norm: readout norm, a name Detectron2 knows; "SyncBN" works with zero RoIs and on one process too.
            norm_groups, kernel_size, gate_bias, gate_steps, norm_start: of the cell.
            lipschitz_weight: of the penalty in the loss.
            recurrent: keyword arguments of RecurrentLayer.
            kwargs: of BaseMaskRCNNHead (loss_weight, vis_period).

        Raises:
            ValueError: a penalty's weight without a penalty.
        """
        super().__init__(**kwargs)
        self.lipschitz_weight = lipschitz_weight
        start = {"gate_bias": gate_bias, "gate_steps": gate_steps, "norm_start": norm_start}
        cell = GALAHGRUCell(input_channels, kernel_size, groups=norm_groups, **start)
        self.recurrent = RecurrentLayer(cell, **recurrent)
        check_penalised("HGRUMaskHead", lipschitz_weight, self.recurrent)
        self.norm = _readout_norm(norm, input_channels)
        self.deconv = nn.ConvTranspose2d(input_channels, deconv_channels, 2, stride=2)
        self.predictor = nn.Conv2d(deconv_channels, num_classes, 1)
        nn.init.kaiming_normal_(self.deconv.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.deconv.bias)
        nn.init.normal_(self.predictor.weight, std=0.001)
        nn.init.zeros_(self.predictor.bias)

    @classmethod
    def from_config(cls, cfg, input_shape: ShapeSpec) -> dict:
        """Arguments from a config. Raises ValueError naming the key that cannot work."""
        node, head = cfg.MODEL.RECURRENT, cfg.MODEL.ROI_MASK_HEAD
        # heads of other projects pool by themselves (""), and rotated boxes have no masks
        check_setting("MODEL.ROI_MASK_HEAD.POOLER_TYPE with the hGRU mask head", head.POOLER_TYPE, _POOLERS)
        channels = input_shape.channels
        # other models have a choice here
        for key, only in (("CELL", "hgru"), ("FORM", "released")):
            check_setting(f"MODEL.RECURRENT.{key} with the hGRU mask head", node[key], (only,))
        if node.NORM_GROUPS < 1 or channels % node.NORM_GROUPS:
            raise ValueError(
                f"MODEL.RECURRENT.NORM_GROUPS must divide the {channels} channels of the mask head, got {node.NORM_GROUPS}"
            )
        # the GALA gate has branches of half and of a quarter of the channels
        if channels % 4:
            raise ValueError(f"MODEL.FPN.OUT_CHANNELS must be divisible by 4 for the hGRU mask head, got {channels}")
        if head.CONV_DIM < 1:
            raise ValueError(f"MODEL.ROI_MASK_HEAD.CONV_DIM must be at least 1, got {head.CONV_DIM}")
        return {
            **super().from_config(cfg, input_shape),
            "input_channels": channels,
            "num_classes": 1 if head.CLS_AGNOSTIC_MASK else cfg.MODEL.ROI_HEADS.NUM_CLASSES,
            "deconv_channels": head.CONV_DIM,
            "kernel_size": kernel_size(node, 3),
            "norm": head.NORM,
            "norm_groups": node.NORM_GROUPS,
            "gate_bias": node.GATE_BIAS,
            "gate_steps": node.GATE_STEPS or node.STEPS,
            "norm_start": node.NORM_START,
            "lipschitz_weight": node.LIPSCHITZ.WEIGHT,
            "recurrent": recurrent_options(cfg),
        }

    def layers(self, hidden: Tensor) -> Tensor:
        """Readout: hidden state (R, C, H, W) -> mask logits (R, num_classes, 2H, 2W)."""
        return self.predictor(F.relu(self.deconv(self.norm(hidden))))

    def forward(self, x: Tensor, instances: list):
        """Pooled features (R, C, H, W) and instances -> dict of losses in training, instances in evaluation."""
        output = self.recurrent(x)
        result = super().forward(output.hidden, instances)
        if self.training:
            if self.lipschitz_weight > 0:
                result["loss_lipschitz"] = output.penalty * self.lipschitz_weight
            return result
        # not len(), which tracing would take for a constant
        counts = [image.pred_boxes.tensor.shape[0] for image in result]
        for image, residual, steps in zip(result, output.residual.split(counts), output.steps.split(counts)):
            image.mask_residual = residual
            if self.recurrent.tolerance() > 0:
                image.mask_steps = steps
        return result


def _readout_norm(name: str, channels: int) -> nn.Module:
    # Detectron2's own synchronised norm also takes zero RoIs on some or all processes, and runs on CPU
    norm = named_norm("ROI_MASK_HEAD", "naiveSyncBN_N" if name == "SyncBN" else name, channels)
    return nn.Identity() if norm is None else norm
