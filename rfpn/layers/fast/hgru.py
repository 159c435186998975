"""The Pathfinder hGRU's fast form: frequency-domain convolutions, fused stages, derivatives by hand."""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from rfpn.layers.fast import available, hgru_adjoint_stages, hgru_stages, spectral
from rfpn.layers.fast.form import FastForm
from rfpn.layers.fast.hgru_adjoint import Step, step_gradient
from rfpn.layers.fast.hgru_stages import Factors, Weights
from rfpn.layers.modes import autocast_dtype


class FastHGRU(FastForm):
    """An :class:`rfpn.layers.HGRUCell` made ready for one forward pass on drives of one shape.

    Everything that depends on the weights alone (transforms of the kernels) is computed once, here. Works in float32,
    or float64 where the drive is. Under bfloat16 autocast products of spectra take bfloat16 and sum in float32, and J's
    factors are kept in bfloat16; all else stays as it is. What it records can be differentiated once.
    """

    def __init__(self, cell, x: Tensor):
        """
        Args:
            cell: HGRUCell. x: (N, C, H, W) drive, float32 or float64; under bfloat16 autocast also bfloat16.
        """
        super().__init__(cell)
        self.kernel_size = cell.inhibition.kernel_size[0]
        half = autocast_dtype(x) == torch.bfloat16
        self._factor_dtype = torch.bfloat16 if half else x.dtype
        shape = spectral.canvas_shape(x, self.kernel_size)
        with torch.no_grad():
            spectra = [spectral.kernel_spectrum(conv.weight, shape[2:]) for conv in (cell.inhibition, cell.excitation)]
            self.spectra = [spectral.half_spectrum(spectrum) for spectrum in spectra] if half else spectra
            self.weights = _weights(cell)
            # the margins of both stay zero: stages write samples only
            self._gated, self._s = (x.new_zeros(shape, dtype=spectral.complex_dtype(x.dtype)) for _ in range(2))
        self.stages, self.adjoint_stages = hgru_stages, hgru_adjoint_stages
        if available(x):
            from rfpn.layers.fast import hgru_adjoint_triton, hgru_triton

            self.stages, self.adjoint_stages = hgru_triton, hgru_adjoint_triton

    @functools.cached_property
    def lags(self) -> tuple[Tensor, Tensor]:
        """What gradients of kernels need of inverse transforms: :func:`spectral.inverse_dft` of rows and columns."""
        rows, columns = (spectral.inverse_dft(size, self.kernel_size, self._s) for size in self._s.shape[2:])
        return rows, columns

    @torch.no_grad()
    def run(self, x: Tensor, h: Tensor, steps: int) -> Tensor:
        """The state after ``steps`` steps from h, both (N, C, H, W), without a graph."""
        x, h = _widened(x), _widened(h)
        if steps > 0:
            self.stages.gate(h, self._gated, self.weights)
        for step in range(steps):
            made = self._convolve(x, h, self._s)
            canvas = self._gated if step + 1 < steps else None
            h = self.stages.update(made.z2, made.m2, made.s, h, self.weights, canvas)
        return h

    def compute(self, x: Tensor, h: Tensor) -> tuple[Tensor, Step]:
        """The next state, (N, C, H, W), and what the step left."""
        x, h = _widened(x), _widened(h)
        made = self._own_step(x, h)
        return self.stages.update(made.z2, made.m2, made.s, h, self.weights, None), made

    def gradient(self, kept: list[Tensor], *maps: Tensor | None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """See :class:`rfpn.layers.fast.form.FastForm`."""
        return step_gradient(self, Step(*kept), *(None if t is None else _widened(t) for t in maps))

    @torch.no_grad()
    def linearize(self, x: Tensor, h: Tensor) -> "Linearization":
        """The step from h with its Jacobian."""
        x, h = _widened(x), _widened(h)
        made = self._own_step(x, h)
        state, factors = self.stages.linearize(
            made.z1, made.m1, made.z2, made.m2, made.s, x, h, self.weights, self._factor_dtype
        )
        gains = (self.weights.scale1 * made.m1.rstd, self.weights.scale2 * made.m2.rstd)
        return Linearization(state, factors, gains, made, self)

    def _own_step(self, x: Tensor, h: Tensor) -> Step:
        """A step whose canvases nobody else writes to."""
        self.stages.gate(h, self._gated, self.weights)
        return self._convolve(x, h, torch.zeros_like(self._s))

    def _convolve(self, x: Tensor, h: Tensor, s: Tensor) -> Step:
        """From the gated state to both convolutions and their statistics; ``s``: canvas for s, zero elsewhere."""
        gated, z1 = spectral.correlate(self._gated, self.spectra[0])
        m1 = self.stages.moments(z1, h, self.weights.epsilon)
        self.stages.inhibit(z1, m1, x, h, s, self.weights)
        inner, z2 = spectral.correlate(s, self.spectra[1])
        return Step(gated, inner, z1, *m1, z2, *self.stages.moments(z2, h, self.weights.epsilon), s)


class Linearization(NamedTuple):
    """One step F(x, h) and its Jacobian J = ∂F/∂h: state (N, C, H, W), factors, gains of both norms, what the step left."""

    state: Tensor
    factors: Factors
    gains: tuple[Tensor, Tensor]
    kept: Step
    bound: FastHGRU

    @torch.no_grad()
    def transpose(self, v: Tensor) -> Tensor:
        """Jᵀv, (N, C, H, W)."""
        f, stages, weights, spectra = self.factors, self.bound.stages, self.bound.weights, self.bound.spectra
        v = v.contiguous()
        canvas = self.bound._s
        stages.norm_adjoint(v, f.excite, f.z2, stages.product_sums(v, f.excite, f.z2), self.gains[1], canvas)
        y2 = spectral.correlate(canvas, spectra[1], transposed=True)[1]
        ds, sums = stages.through_excitation(y2, v, f, weights)
        stages.norm_adjoint(ds, f.inhibit, f.z1, sums, self.gains[0], canvas)
        y1 = spectral.correlate(canvas, spectra[0], transposed=True)[1]
        return stages.through_inhibition(y1, v, ds, f, weights)


def _widened(x: Tensor) -> Tensor:
    """A map in one piece, in float32 or wider: under autocast a drive, and a start made like it, comes in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).contiguous()


def _weights(cell) -> Weights:
    # kernels are handed no strides
    gates, norms = (cell.gate_inhibition, cell.gate_excitation), (cell.norm_inhibition, cell.norm_excitation)
    gamma = cell.kappa if cell.gamma is None else cell.gamma
    return Weights(
        *(part.detach().contiguous() for gate in gates for part in (gate.weight.flatten(1), gate.bias)),
        *(scale.detach().flatten().contiguous() for scale in (cell.alpha, cell.mu, cell.kappa, gamma, cell.omega)),
        *(part.detach().contiguous() for norm in norms for part in (norm.weight, norm.bias)),
        cell.norm_inhibition.eps,
        cell.form == "released",
    )
