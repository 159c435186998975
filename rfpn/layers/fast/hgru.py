"""The Pathfinder hGRU's fast form: frequency-domain convolutions, fused stages, hand-made transposed products."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rfpn.fixed_point import probe_vector
from rfpn.layers.fast import available, hgru_stages, spectral
from rfpn.layers.fast.hgru_stages import Factors, Moments, Weights
from rfpn.layers.fast.hgru_tangent import step_with_tangent
from rfpn.layers.plain import RecordedStep


class FastHGRU:
    """An :class:`rfpn.layers.HGRUCell` made ready for one forward pass on drives of one shape.

    Everything that depends on the weights alone (transforms of the kernels) is computed once, here. Works in float32,
    or float64 where the drive is; autocast changes nothing.
    """

    def __init__(self, cell, x: Tensor):
        """
        Args:
            cell: HGRUCell. x: (N, C, H, W) drive, float32 or float64.
        """
        self.cell = cell
        self.parameters = dict(cell.named_parameters())
        self.kernel_size = cell.inhibition.kernel_size[0]
        shape = spectral.canvas_shape(x, self.kernel_size)
        with torch.no_grad():
            self.spectra = tuple(
                spectral.kernel_spectrum(conv.weight, shape[2:]) for conv in (cell.inhibition, cell.excitation)
            )
            self.weights = _weights(cell)
            # the margins of both stay zero: stages write samples only
            self._gated, self._s = (x.new_zeros(shape, dtype=spectral.complex_dtype(x.dtype)) for _ in range(2))
        self.stages = hgru_stages
        if available(x):
            from rfpn.layers.fast import hgru_triton

            self.stages = hgru_triton

    @torch.no_grad()
    def iterate(self, x: Tensor, h: Tensor, steps: int) -> Tensor:
        """The state after ``steps`` steps from h, both (N, C, H, W), without a graph."""
        x, h = x.contiguous(), h.contiguous()
        if steps > 0:
            self.stages.gate(h, self._gated, self.weights)
        for step in range(steps):
            z2, m2 = self._convolve(x, h)[2:]
            canvas = self._gated if step + 1 < steps else None
            h = self.stages.update(z2, m2, self._s, h, self.weights, canvas)
        return h

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        """The next state, recorded by autograd where it is on."""
        if not torch.is_grad_enabled():
            return self.iterate(x, h, 1)
        return self.step_with_tangent(x, h, None, self.parameters)[0]

    def step_with_tangent(
        self, x: Tensor, h: Tensor, direction: Tensor | None, parameters: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """See :func:`rfpn.layers.fast.hgru_tangent.step_with_tangent`."""
        with torch.autocast(x.device.type, enabled=False):
            return step_with_tangent(x, h, direction, parameters, self.spectra, self.weights.epsilon, self.weights.outer)

    @torch.no_grad()
    def linearize(self, x: Tensor, h: Tensor) -> "Linearization":
        """The step from h with its Jacobian."""
        x, h = x.contiguous(), h.contiguous()
        self.stages.gate(h, self._gated, self.weights)
        z1, m1, z2, m2 = self._convolve(x, h)
        state, factors = self.stages.linearize(z1, m1, z2, m2, self._s, x, h, self.weights)
        gains = (self.weights.scale1 * m1.rstd, self.weights.scale2 * m2.rstd)
        return Linearization(state, factors, gains, self)

    def record(self, x: Tensor, previous: Tensor, probe: str | None) -> RecordedStep:
        """One step from ``previous`` with its Jacobian; see :meth:`rfpn.layers.plain.PlainForm.record`."""
        step = self.linearize(x, previous)
        # a leaf is the start of the recorded steps: nothing asks for its gradient
        source = previous.detach() if previous.is_leaf else previous
        vector = None if probe is None else probe_vector(step.state, probe)
        state, sums = _Recorded.apply(self, step, x, source, vector, *self.parameters.values())
        return RecordedStep(state, sums, step.transpose)

    def _convolve(self, x: Tensor, h: Tensor) -> tuple[Tensor, Moments, Tensor, Moments]:
        """From the gated state to both convolutions and their statistics; leaves s on its canvas."""
        z1 = spectral.correlate(self._gated, self.spectra[0])
        m1 = self.stages.moments(z1, h, self.weights.epsilon)
        self.stages.inhibit(z1, m1, x, h, self._s, self.weights)
        z2 = spectral.correlate(self._s, self.spectra[1])
        return z1, m1, z2, self.stages.moments(z2, h, self.weights.epsilon)


class Linearization(NamedTuple):
    """One step F(x, h) and its Jacobian J = ∂F/∂h: state (N, C, H, W), factors, gains of both norms, the bound cell."""

    state: Tensor
    factors: Factors
    gains: tuple[Tensor, Tensor]
    bound: FastHGRU

    @torch.no_grad()
    def transpose(self, v: Tensor) -> Tensor:
        """Jᵀv, (N, C, H, W)."""
        f, stages, weights, spectra = self.factors, self.bound.stages, self.bound.weights, self.bound.spectra
        v = v.contiguous()
        canvas = self.bound._s
        stages.norm_adjoint(v, f.excite, f.z2, stages.product_sums(v, f.excite, f.z2), self.gains[1], canvas)
        y2 = spectral.correlate(canvas, spectra[1], transposed=True)
        ds, sums = stages.through_excitation(y2, v, f, weights)
        stages.norm_adjoint(ds, f.inhibit, f.z1, sums, self.gains[0], canvas)
        y1 = spectral.correlate(canvas, spectra[0], transposed=True)
        return stages.through_inhibition(y1, v, ds, f, weights)


class _Recorded(torch.autograd.Function):
    """A linearised step as an autograd node; its backward pass replays step and tangent once (hgru_tangent)."""

    @staticmethod
    def forward(ctx, bound, step, x, h, vector, *parameters):
        ctx.bound = bound
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, h, vector, *parameters)
        return step.state.view_as(step.state), None if vector is None else step.transpose(vector)

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent, direction):
        x, h, vector, *parameters = ctx.saved_tensors
        needed = ctx.needs_input_grad[2:4] + ctx.needs_input_grad[5:]
        x, h, *parameters = (
            t.detach().requires_grad_(need) for t, need in zip((x, h, *parameters), needed)
        )
        named = dict(zip(ctx.bound.parameters, parameters))
        with torch.enable_grad():
            outputs = ctx.bound.step_with_tangent(x, h, direction, named)
        pairs = [(o, g) for o, g in zip(outputs, (cotangent, vector)) if o is not None and g is not None]
        leaves = [t for t in (x, h, *parameters) if t.requires_grad]
        gradients = iter(torch.autograd.grad([o for o, _ in pairs], leaves, [g for _, g in pairs]))
        grads = [next(gradients) if need else None for need in needed]
        return None, None, grads[0], grads[1], None, *grads[2:]


def _weights(cell) -> Weights:
    flat = {name: p.detach().flatten(1) if "gate" in name and p.dim() > 1 else p.detach().flatten()
            for name, p in cell.named_parameters() if p.dim() < 4 or "gate" in name}
    return Weights(
        flat["gate_inhibition.weight"], flat["gate_inhibition.bias"], flat["gate_excitation.weight"],
        flat["gate_excitation.bias"], flat["alpha"], flat["mu"], flat["kappa"], flat.get("gamma", flat["kappa"]),
        flat["omega"], flat["norm_inhibition.weight"], flat["norm_inhibition.bias"], flat["norm_excitation.weight"],
        flat["norm_excitation.bias"], cell.norm_inhibition.eps, cell.form == "released",
    )
