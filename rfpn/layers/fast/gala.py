"""The mask head hGRU's fast form: channels last, half-precision products, fused stages, derivatives by hand."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from rfpn.layers.fast import available, gala_adjoint_stages, gala_stages
from rfpn.layers.fast.gala_adjoint import step_gradient
from rfpn.layers.fast.form import FastForm
from rfpn.layers.fast.gala_stages import GateFactors, InhibitFactors, UpdateFactors, Weights


class FastGALA(FastForm):
    """A :class:`rfpn.layers.GALAHGRUCell` made ready for one forward pass on any number of RoIs.

    States are (R, C, H, W) outside, in the type they come in and channels last in memory; products work in ``half``.
    What it records can be differentiated once.
    """

    def __init__(self, cell, half: torch.dtype, x: Tensor):
        """
        Args:
            cell: GALAHGRUCell. half: type of matrix products. x: (R, C, H, W) drive, for its type and device.
        """
        self.half = half
        super().__init__(cell)
        with torch.no_grad():
            self.weights = _weights(cell, half)
            gates = cell.gate_inhibition
            self.spatial_in, self.inhibition, self.excitation = (
                _Kernel(conv, half) for conv in (gates.spatial_in, cell.inhibition, cell.excitation)
            )
            self.excite_gate = cell.gate_excitation.weight.flatten(1).to(half)
        self.stages, self.adjoint_stages = gala_stages, gala_adjoint_stages
        if available(x):
            from rfpn.layers.fast import gala_adjoint_triton, gala_triton

            self.stages, self.adjoint_stages = gala_triton, gala_adjoint_triton

    @torch.no_grad()
    def run(self, x: Tensor, h: Tensor, steps: int) -> Tensor:
        """The state after ``steps`` steps from h, both (R, C, H, W), without a graph."""
        x, h = _channels_last(x), _channels_last(h)
        half = h.to(self.half)
        for _ in range(steps):
            h, half = self._advance(x, h, half, False)[:2]
        return h.permute(0, 3, 1, 2)

    def compute(self, x: Tensor, h: Tensor) -> tuple[Tensor, tuple]:
        """The next state, (R, C, H, W), and nothing: its gradient computes the step again."""
        return self.run(x, h, 1), ()

    def gradient(self, kept: list[Tensor], *maps: Tensor | None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """See :class:`rfpn.layers.fast.form.FastForm`."""
        dx, dh, gradients = step_gradient(self, *(None if t is None else _channels_last(t) for t in maps))
        return dx.permute(0, 3, 1, 2), dh.to(maps[1].dtype).permute(0, 3, 1, 2), gradients

    @torch.no_grad()
    def linearize(self, x: Tensor, h: Tensor) -> "Linearization":
        """The step from h with its Jacobian."""
        h = _channels_last(h)
        state, _, *factors = self._advance(_channels_last(x), h, h.to(self.half), True)
        return Linearization(state.permute(0, 3, 1, 2), *factors, self)

    def _advance(self, x: Tensor, h: Tensor, half: Tensor, record: bool):
        """Maps (R, H, W, C): next state, the same in half precision, factors of the three stages."""
        w, stages = self.weights, self.stages
        y, gates = stages.gate(half @ w.channel_in.mT, self.spatial_in(half), half, w, record)
        s, inhibits = stages.inhibit(self.inhibition(y), x, half, w, record)
        state, half, updates = stages.update(self.excitation(s), s @ self.excite_gate.mT, h, w, self.half, record)
        return state, half, gates, inhibits, updates


class Linearization(NamedTuple):
    """One step F(x, h) and its Jacobian J = ∂F/∂h: state (R, C, H, W), factors of the stages, the bound cell."""

    state: Tensor
    gates: GateFactors
    inhibits: InhibitFactors
    updates: UpdateFactors
    bound: FastGALA
    kept: tuple = ()

    @torch.no_grad()
    def transpose(self, v: Tensor) -> Tensor:
        """Jᵀv, (R, C, H, W)."""
        bound, w, stages = self.bound, self.bound.weights, self.bound.stages
        v = _channels_last(v)
        dz2, mixed = stages.through_update(v, self.updates, w)
        ds, dz1 = stages.through_inhibit(bound.excitation.adjoint(dz2), mixed @ bound.excite_gate, self.inhibits, w)
        dy = bound.inhibition.adjoint(dz1)
        dchannel, dspatial = stages.through_gate(dy, self.gates, w)
        spatial = bound.spatial_in.adjoint(dspatial)
        return stages.collect(
            v, ds, dy, dchannel, spatial, self.gates, self.inhibits, self.updates, w
        ).permute(0, 3, 1, 2)


class _Kernel:
    """A convolution without bias and its adjoint, on maps (R, H, W, C)."""

    def __init__(self, conv, half: torch.dtype):
        weight = conv.weight.to(half)
        self.weight = weight.contiguous(memory_format=torch.channels_last)
        # the adjoint as a convolution: libraries have faster kernels for those than for data gradients
        self.flipped = weight.transpose(0, 1).flip(2, 3).contiguous(memory_format=torch.channels_last)
        self.padding = weight.shape[-1] // 2

    def __call__(self, x: Tensor) -> Tensor:
        return self._run(x, self.weight)

    def adjoint(self, cotangent: Tensor) -> Tensor:
        return self._run(cotangent, self.flipped)

    def gradient(self, x: Tensor, cotangent: Tensor) -> Tensor:
        """Gradient of the kernel (Co, Ci, E, E)."""
        x, cotangent = x.permute(0, 3, 1, 2), cotangent.permute(0, 3, 1, 2)
        return torch.nn.grad.conv2d_weight(x, self.weight.shape, cotangent, padding=self.padding)

    def _run(self, x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return F.conv2d(x.permute(0, 3, 1, 2), weight, padding=self.padding).permute(0, 2, 3, 1).contiguous()


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous()


def _weights(cell, half: torch.dtype) -> Weights:
    gate = cell.gate_inhibition
    parts = (
        gate.channel_in.weight.flatten(1).to(half), gate.channel_in.bias, gate.channel_out.weight.flatten(1).to(half),
        gate.spatial_in.bias, gate.spatial_out.weight[0].flatten(1).to(half), gate.bias, cell.gate_excitation.bias,
        cell.alpha.flatten(), cell.mu.flatten(), cell.norm_inhibition.weight, cell.norm_inhibition.bias,
        cell.norm_excitation.weight, cell.norm_excitation.bias,
    )
    # kernels are handed no strides
    return Weights(*(part.contiguous() for part in parts), cell.norm_inhibition.eps, cell.norm_inhibition.num_groups)
