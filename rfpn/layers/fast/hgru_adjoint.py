"""Gradients of one hGRU step and of its column sums, by hand (hgru_adjoint_stages says how)."""

from typing import NamedTuple

import torch
from torch import Tensor

from rfpn.layers.fast import spectral
from rfpn.layers.fast.hgru_stages import Moments


class Step(NamedTuple):
    """What a step from h leaves for its gradient.

    gated, inner: transforms of the gated state and of s, (M, C, S1, S2); z1, z2: canvases of both convolutions, with their
    statistics, (C,); s: canvas.
    """

    gated: Tensor
    inner: Tensor
    z1: Tensor
    mean1: Tensor
    rstd1: Tensor
    z2: Tensor
    mean2: Tensor
    rstd2: Tensor
    s: Tensor

    @property
    def m1(self) -> Moments:
        """Statistics of z1."""
        return Moments(self.mean1, self.rstd1)

    @property
    def m2(self) -> Moments:
        """Statistics of z2."""
        return Moments(self.mean2, self.rstd2)


def step_gradient(
    bound, step: Step, x: Tensor, h: Tensor, cotangent: Tensor, direction: Tensor | None, vector: Tensor | None
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Gradient of ⟨cotangent, F(x, h)⟩ + ⟨direction, Jᵀ·vector⟩ for x, h and every parameter of the cell.

    Args:
        bound: FastHGRU. x, h, cotangent, direction, vector: (N, C, H, W); no direction for the first term alone.
    """
    stages, w, lags = bound.adjoint_stages, bound.weights, bound.lags
    entries, count = len(step.s), h.numel() // h.shape[1]
    tangent = _Tangent(bound, step, x, h, direction) if direction is not None else _NoTangent
    canvas = step.s.new_zeros((2 * entries if direction is not None else entries, *step.s.shape[1:]))
    update = stages.update_gradient(
        step.z2, tangent.z2, step.m2, tangent.m2, step.s, tangent.s, h, direction, cotangent, vector, w
    )
    k2, scale2, shift2 = stages.norm_coefficients(update.sums, step.m2, tangent.m2, w.scale2, count)
    stages.norm_gradient(update.c, update.tc, step.z2, tangent.z2, step.m2, k2, canvas)
    y2, ty2, excitation = _through_convolution(canvas, bound.spectra[1], (step.inner, tangent.inner), lags)
    inhibit = stages.inhibit_gradient(step.z1, tangent.z1, step.m1, tangent.m1, x, h, direction, y2, ty2, update, w)
    k1, scale1, shift1 = stages.norm_coefficients(inhibit.sums, step.m1, tangent.m1, w.scale1, count)
    stages.norm_gradient(inhibit.c, inhibit.tc, step.z1, tangent.z1, step.m1, k1, canvas)
    y1, ty1, inhibition = _through_convolution(canvas, bound.spectra[0], (step.gated, tangent.gated), lags)
    da, dta, dh, bias1 = stages.gate_gradient(h, direction, y1, ty1, inhibit.h, w)
    s = spectral.unpack(step.s, h)
    kappa, gamma, omega, bias2 = update.scales
    ts = None if direction is None else spectral.unpack(tangent.s, h)
    gradients = {
        "gate_inhibition.weight": stages.outer(da, h, dta, direction), "gate_inhibition.bias": bias1,
        "gate_excitation.weight": stages.outer(update.gate, s, update.tgate, ts), "gate_excitation.bias": bias2,
        "inhibition.weight": inhibition, "excitation.weight": excitation,
        "norm_inhibition.weight": scale1, "norm_inhibition.bias": shift1,
        "norm_excitation.weight": scale2, "norm_excitation.bias": shift2,
        "alpha": inhibit.scales[0], "mu": inhibit.scales[1], "omega": omega,
    }
    # without γ of its own, the printed form's κ serves as both
    shared = {"kappa": kappa, "gamma": gamma} if "gamma" in bound.parameters else {"kappa": kappa + gamma}
    return inhibit.x, dh, gradients | shared


class _Tangent:
    """The tangent of a step along a direction of h."""

    def __init__(self, bound, step: Step, x: Tensor, h: Tensor, direction: Tensor):
        stages, w = bound.adjoint_stages, bound.weights
        canvas, self.s = torch.zeros_like(step.s), torch.zeros_like(step.s)
        stages.gate_tangent(h, direction, canvas, w)
        self.gated, self.z1 = spectral.correlate(canvas, bound.spectra[0])
        self.m1 = stages.tangent_moments(step.z1, self.z1, step.m1, h)
        stages.inhibit_tangent(step.z1, self.z1, step.m1, self.m1, x, h, direction, self.s, w)
        self.inner, self.z2 = spectral.correlate(self.s, bound.spectra[1])
        self.m2 = stages.tangent_moments(step.z2, self.z2, step.m2, h)


class _NoTangent:
    gated = inner = s = z1 = z2 = m1 = m2 = None


def _through_convolution(canvas: Tensor, spectrum: Tensor, inputs: tuple[Tensor, Tensor | None], lags: tuple):
    """Cotangents of a convolution's input and of that input's tangent, canvases, and the kernel's gradient."""
    transformed, product = spectral.correlate(canvas, spectrum, transposed=True)
    if inputs[1] is None:
        return product, None, spectral.weight_gradient(inputs[0], transformed, lags)
    weight = spectral.weight_gradient(torch.cat(inputs), transformed, lags)
    return *product.chunk(2), weight
