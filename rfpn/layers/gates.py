"""Parts that cells share: gate modules, norms, the start values of gate biases and factors."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rfpn.layers.checks import COUNT, check_setting

GATE_BIAS_STARTS = ("released", "chronos")


def gate_bias_start(channels: int, steps: int, start: str = "released") -> Tensor:
    """Start value of an input gate's bias, (C,); the update gate takes its negative.

    ``chronos``: log of U(1, T − 1), meant to spread the gates' time constants over T steps (Tallec & Ollivier, 2018).
    ``released``: U(1, T − 1) itself, as the paper's code does, which leaves the logarithm out.

    Args:
        steps: T ≥ 1; 1 and 2 both draw 1.
    """
    check_setting("gate bias start", start, GATE_BIAS_STARTS)
    check_setting("gate steps", steps, COUNT)
    bias = torch.empty(channels).uniform_(1, max(steps - 1, 1))
    return bias.log() if start == "chronos" else bias


class GALAGate(nn.Module):
    """The GALA input gate: what (channels) times where (space), after Linsley et al., 2019.

    a = V1∗ζ(V0∗h + c0) ⊙ [S1∗ζ(S0∗h + d0)] + b, ζ = softplus;
    V0 1×1 C→C/r, V1 1×1 C/r→C, S0 3×3 C→C/2, S1 3×3 C/2→1. Input and output (R, C, H, W); the output is not squashed.
    """

    def __init__(self, channels: int, reduction: int = 4):
        super().__init__()
        check_setting("GALA gate reduction", reduction, COUNT)
        if channels % reduction or channels % 2:
            raise ValueError(f"GALA gate needs channels divisible by 2 and by the reduction {reduction}, got {channels}")
        self.channel_in = nn.Conv2d(channels, channels // reduction, 1)
        self.channel_out = nn.Conv2d(channels // reduction, channels, 1, bias=False)
        self.spatial_in = nn.Conv2d(channels, channels // 2, 3, padding=1)
        self.spatial_out = nn.Conv2d(channels // 2, 1, 3, padding=1, bias=False)
        self.bias = nn.Parameter(torch.zeros(channels))
        for conv in (self.channel_in, self.channel_out, self.spatial_in, self.spatial_out):
            nn.init.kaiming_normal_(conv.weight)
        nn.init.zeros_(self.channel_in.bias)
        nn.init.zeros_(self.spatial_in.bias)

    def forward(self, h: Tensor) -> Tensor:
        """(R, C, H, W) -> (R, C, H, W) pre-activation of the gate."""
        what = widened(self.channel_out, F.softplus(widened(self.channel_in, h)))
        where = widened(self.spatial_out, F.softplus(widened(self.spatial_in, h)))
        return what * where + self.bias.view(-1, 1, 1)


def widened(conv: nn.Module, x: Tensor) -> Tensor:
    """conv(x) in the type of x: under autocast the convolution alone works in half precision.

    All between convolutions then keeps the state's float32. CPU autocast lets norms follow their input's type
    otherwise, and with torch 2.6 the second derivatives of a group norm in bfloat16 are 10% off.
    """
    return conv(x).to(x.dtype)


def batch_statistics_norm(channels: int, start: float = 1.0) -> nn.BatchNorm2d:
    """Batch norm by the statistics of its own batch, in evaluation too, as released. start: of its weights."""
    norm = nn.BatchNorm2d(channels, eps=1e-3, track_running_stats=False)
    nn.init.constant_(norm.weight, start)
    return norm


def channel_scale(channels: int, value: float) -> nn.Parameter:
    """A learned factor per channel, (C, 1, 1)."""
    return nn.Parameter(torch.full((channels, 1, 1), value))
