"""Convolutional LSTM without peepholes (Shi et al., 2015), the paper's squashing control (P-SI "Convolution LSTM")."""

import torch
from torch import Tensor, nn

from rfpn.layers.checks import check_sizes, check_step


class ConvLSTMCell(nn.Module):
    """i, f, o = σ(Wx∗x + Wh∗h + b);  c ← f⊙c + i⊙tanh(Wxc∗x + Whc∗h + b);  h ← o⊙tanh(c).

    The state is [h, c], stacked over channels: (N, 2C, H, W), so that fixed points, Jacobians and penalties see all
    of it; :meth:`hidden` gives h.
    """

    def __init__(self, channels: int, kernel_size: int = 15):
        """
        Args:
            channels: C of drive and h. kernel_size: E, odd.
        """
        super().__init__()
        check_sizes("convLSTM", channels, kernel_size)
        self.channels = channels
        self.state_channels = 2 * channels
        # the four gates in the order i, f, candidate, o, computed by one convolution each for drive and state
        self.from_drive = nn.Conv2d(channels, 4 * channels, kernel_size, padding=kernel_size // 2)
        self.from_state = nn.Conv2d(channels, 4 * channels, kernel_size, padding=kernel_size // 2, bias=False)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        """One step: drive x (N, C, H, W), state (N, 2C, H, W) -> next state (N, 2C, H, W); ValueError for other shapes."""
        check_step("convLSTM", self.channels, x, state, self.state_channels)
        h, c = state.chunk(2, dim=1)
        i, f, candidate, o = (self.from_drive(x) + self.from_state(h)).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(candidate)
        return torch.cat([torch.sigmoid(o) * torch.tanh(c), c], dim=1)

    def hidden(self, state: Tensor) -> Tensor:
        """The part that a readout sees: (N, 2C, H, W) -> h (N, C, H, W)."""
        return state.chunk(2, dim=1)[0]
