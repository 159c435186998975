"""Horizontal gated recurrent units (Linsley et al., 2018) in the two forms that the paper trains (P-SI "hGRU").

These are the plain, readable forms; faster ones are tested against them.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rfpn.layers.checks import COUNT, check_setting, check_sizes, check_step
from rfpn.layers.gates import GALAGate, batch_statistics_norm, channel_scale, gate_bias_start, widened
from rfpn.layers.parts import parts_of

FORMS = ("released", "printed")


class HGRUCell(nn.Module):
    """hGRU of the Pathfinder models: E×E kernels, batch norm over the batch's own statistics.

    g1 = σ(U1∗h + b1);  c1 = BN(W_inh∗(h⊙g1));  s = ζ(x − ζ(c1⊙(α h + μ)));
    g2 = σ(U2∗s + b2);  c2 = BN(W_exc∗s);  h̃ = ζ(κ s + γ c2 + ω s⊙c2);  h ← ζ((1 − g2)⊙h + g2⊙h̃),  ζ = softplus.

    ``form="printed"`` drops the outer ζ and uses one ν for κ and γ, as the paper prints it.
    Both norms use the statistics of the batch in training and in evaluation and keep none, so a forward pass of any
    length updates nothing, and an image's result depends on the images beside it.
    """

    batch_statistics = True

    def __init__(
        self,
        channels: int,
        kernel_size: int = 15,
        form: str = "released",
        gate_bias: str = "released",
        gate_steps: int = 8,
        norm_start: float = 0.1,
    ):
        """
        Args:
            channels: C of drive and state. kernel_size: E, odd.
            form: "released" or "printed". gate_bias, gate_steps: see :func:`gate_bias_start`.
            norm_start: start of the norms' weights.
        """
        super().__init__()
        check_sizes("hGRU", channels, kernel_size)
        check_setting("hGRU form", form, FORMS)
        self.channels = channels
        self.state_channels = channels
        self.form = form
        self.gate_inhibition = nn.Conv2d(channels, channels, 1)
        self.gate_excitation = nn.Conv2d(channels, channels, 1)
        self.inhibition = nn.Conv2d(channels, channels, kernel_size, padding=kernel_size // 2, bias=False)
        self.excitation = nn.Conv2d(channels, channels, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm_inhibition = batch_statistics_norm(channels, norm_start)
        self.norm_excitation = batch_statistics_norm(channels, norm_start)
        self.alpha = channel_scale(channels, 0.1)
        self.mu = channel_scale(channels, 1.0)
        self.kappa = channel_scale(channels, 0.5)
        self.gamma = channel_scale(channels, 1.0) if form == "released" else None
        self.omega = channel_scale(channels, 0.5)
        for conv in (self.gate_inhibition, self.gate_excitation, self.inhibition, self.excitation):
            nn.init.orthogonal_(conv.weight)
        bias = gate_bias_start(channels, gate_steps, gate_bias)
        self.gate_inhibition.bias.data.copy_(bias)
        self.gate_excitation.bias.data.copy_(-bias)
        self.made_of = parts_of(self)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """One step: drive x (N, C, H, W), state h (N, C, H, W) -> next state (N, C, H, W); ValueError for other shapes."""
        check_step("hGRU", self.channels, x, h, self.state_channels)
        g1 = torch.sigmoid(widened(self.gate_inhibition, h))
        c1 = self.norm_inhibition(widened(self.inhibition, h * g1))
        s = F.softplus(x - F.softplus(c1 * (self.alpha * h + self.mu)))
        g2 = torch.sigmoid(widened(self.gate_excitation, s))
        c2 = self.norm_excitation(widened(self.excitation, s))
        gamma = self.kappa if self.gamma is None else self.gamma
        candidate = F.softplus(self.kappa * s + gamma * c2 + self.omega * s * c2)
        mixed = (1 - g2) * h + g2 * candidate
        return F.softplus(mixed) if self.form == "released" else mixed


class GALAHGRUCell(nn.Module):
    """hGRU of the mask head: 3×3 kernels, group norm, GALA input gate; treats every RoI alone.

    g1 = σ(a(h)) with the GALA gate a;  c1 = GN(W_inh∗(h⊙g1));  s = ζ(x − c1⊙(α h + μ));
    g2 = σ(U∗s + b2);  h̃ = ζ(GN(W_exc∗s));  h ← (1 − g2)⊙h + g2⊙h̃.
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int = 3,
        groups: int = 32,
        gate_reduction: int = 4,
        gate_bias: str = "released",
        gate_steps: int = 20,
        norm_start: float = 0.1,
    ):
        """
        Args:
            channels: C, divisible by ``groups``. kernel_size: E, odd. groups: of both group norms.
            gate_reduction: r of the GALA gate. gate_bias, gate_steps: see :func:`gate_bias_start`.
            norm_start: start of the norms' weights.
        """
        super().__init__()
        check_sizes("hGRU", channels, kernel_size)
        check_setting("hGRU norm groups", groups, COUNT)
        if channels % groups:
            raise ValueError(f"hGRU channels must be divisible by the number of norm groups, got {channels} and {groups}")
        self.channels = channels
        self.state_channels = channels
        self.gate_inhibition = GALAGate(channels, gate_reduction)
        self.gate_excitation = nn.Conv2d(channels, channels, 1)
        self.inhibition = nn.Conv2d(channels, channels, kernel_size, padding=kernel_size // 2, bias=False)
        self.excitation = nn.Conv2d(channels, channels, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm_inhibition = nn.GroupNorm(groups, channels)
        self.norm_excitation = nn.GroupNorm(groups, channels)
        self.alpha = channel_scale(channels, 0.1)
        self.mu = channel_scale(channels, 1.0)
        for conv in (self.gate_excitation, self.inhibition, self.excitation):
            nn.init.kaiming_normal_(conv.weight)
        for norm in (self.norm_inhibition, self.norm_excitation):
            nn.init.constant_(norm.weight, norm_start)
        bias = gate_bias_start(channels, gate_steps, gate_bias)
        self.gate_inhibition.bias.data.copy_(bias)
        self.gate_excitation.bias.data.copy_(-bias)
        self.made_of = parts_of(self)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """One step: drive x (R, C, H, W), state h (R, C, H, W) -> next state (R, C, H, W); ValueError for other shapes."""
        check_step("hGRU", self.channels, x, h, self.state_channels)
        g1 = torch.sigmoid(self.gate_inhibition(h))
        c1 = self.norm_inhibition(widened(self.inhibition, h * g1))
        s = F.softplus(x - c1 * (self.alpha * h + self.mu))
        g2 = torch.sigmoid(widened(self.gate_excitation, s))
        candidate = F.softplus(self.norm_excitation(widened(self.excitation, s)))
        return (1 - g2) * h + g2 * candidate
