"""Gradients of one GALA hGRU step and of its column sums, by hand (gala_adjoint_stages says how)."""

import torch
from torch import Tensor


def step_gradient(
    bound, x: Tensor, h: Tensor, cotangent: Tensor, direction: Tensor | None, vector: Tensor | None
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Gradient of ⟨cotangent, F(x, h)⟩ + ⟨direction, Jᵀ·vector⟩ for x, h and every parameter of the cell.

    The step is computed again, so that nothing but h has to be kept for it.

    Args:
        bound: FastGALA. Maps (R, H, W, C), channels last; no direction for the first term alone.
    """
    stages, w, half = bound.adjoint_stages, bound.weights, bound.half
    tangent = direction is not None
    states = (torch.cat([h, direction]) if tangent else h).to(half)
    channel, spatial = states @ w.channel_in.mT, bound.spatial_in(states)
    y = stages.gate_dual(channel, spatial, states, w) if tangent else bound.stages.gate(channel, spatial, states, w, False)[0]
    z1 = bound.inhibition(y)
    s = stages.inhibit_dual(z1, x, states, w) if tangent else bound.stages.inhibit(z1, x, states, w, False)[0]
    z2, mixed = bound.excitation(s), s @ bound.excite_gate.mT

    update = stages.update_gradient(z2, mixed, h, direction, cotangent, vector, w)
    del z2, mixed
    ds, mixed = bound.excitation.adjoint(update.z2), update.mixed @ bound.excite_gate
    inhibit = stages.inhibit_gradient(z1, x, h, direction, ds, mixed, update.h, w)
    del z1, ds, mixed
    gate = stages.gate_gradient(channel, spatial, h, direction, bound.inhibition.adjoint(inhibit.z1), inhibit.h, w)
    rois = len(h)
    dh = gate.h + gate.channel[:rois] @ w.channel_in + bound.spatial_in.adjoint(gate.spatial[:rois])
    scale2, shift2, bias2 = update.sums
    scale1, shift1, alpha, mu = inhibit.sums
    return inhibit.x, dh, {
        "gate_inhibition.channel_in.weight": _outer(gate.channel, states),
        "gate_inhibition.channel_in.bias": gate.channel_bias,
        "gate_inhibition.channel_out.weight": _outer(gate.what, gate.activity),
        "gate_inhibition.spatial_in.weight": bound.spatial_in.gradient(states, gate.spatial),
        "gate_inhibition.spatial_in.bias": gate.spatial_bias,
        "gate_inhibition.spatial_out.weight": _outer(gate.spatial_activity, gate.taps),
        "gate_inhibition.bias": gate.bias1,
        "gate_excitation.weight": _outer(update.mixed, s),
        "gate_excitation.bias": bias2,
        "inhibition.weight": bound.inhibition.gradient(y, inhibit.z1),
        "excitation.weight": bound.excitation.gradient(s, update.z2),
        "norm_inhibition.weight": scale1,
        "norm_inhibition.bias": shift1,
        "norm_excitation.weight": scale2,
        "norm_excitation.bias": shift2,
        "alpha": alpha,
        "mu": mu,
    }


def _outer(cotangent: Tensor, value: Tensor) -> Tensor:
    """Gradient of a matrix, (Co, Ci): Σ cotangent⊗value over pixels."""
    return cotangent.flatten(0, 2).mT @ value.flatten(0, 2)
