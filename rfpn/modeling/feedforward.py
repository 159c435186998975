"""The feedforward control of the Pathfinder models."""

from torch import Tensor, nn
from torch.nn import functional as F

from rfpn.layers.checks import COUNT, check_setting, check_sizes
from rfpn.layers.gates import batch_statistics_norm


class FeedforwardLayers(nn.Module):
    """``layers`` times convolution, batch norm, softplus: one layer for each step of the hGRU, no weight shared (P§3.1).

    The paper prints no equations. Of the published number of parameters, 845,527 with 15×15 kernels, this is what
    remains for a layer: one kernel with a bias and one norm; no gates.
    The norms use the statistics of the batch in training and in evaluation, as the hGRU's do.
    """

    def __init__(self, channels: int, kernel_size: int = 15, layers: int = 6):
        """
        Args:
            channels: C of input and output. kernel_size: E, odd. layers: number of convolutions, at least 1.
        """
        super().__init__()
        check_sizes("feedforward", channels, kernel_size)
        check_setting("feedforward layers", layers, COUNT)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels, channels, kernel_size, padding=kernel_size // 2) for _ in range(layers)
        )
        self.norms = nn.ModuleList(batch_statistics_norm(channels) for _ in range(layers))
        for convolution in self.convolutions:
            nn.init.orthogonal_(convolution.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Drive (N, C, H, W) -> features (N, C, H, W)."""
        for convolution, norm in zip(self.convolutions, self.norms):
            x = F.softplus(norm(convolution(x)))
        return x
