"""What the fast forms share: steps as autograd nodes, behind the interface of :mod:`rfpn.layers.plain`."""

from types import ModuleType

import torch
from torch import Tensor

from rfpn.fixed_point import NeumannSum, neumann_series, probe_vector
from rfpn.layers.modes import changed, is_batched, version
from rfpn.layers.plain import RecordedStep


def refuse_batches(*cotangents: Tensor | None) -> None:
    """RuntimeError for cotangents of vmap's, which kernels do not know."""
    if any(cotangent is not None and is_batched(cotangent) for cotangent in cotangents):
        raise RuntimeError("a fast form takes one cotangent at a time, none of vmap's or is_grads_batched: use fast='off'")


def _check_state(x: Tensor, h: Tensor) -> None:
    """ValueError for a state h of another shape than the drive's: kernels would read beyond the end of a smaller one."""
    if h.shape != x.shape:
        raise ValueError(f"a state like the drive is needed, {tuple(x.shape)}, got {tuple(h.shape)}")


class _Recorded(torch.autograd.Function):
    """A step of a form as an autograd node; without a vector it needs no linearised step."""

    @staticmethod
    def forward(ctx, form, linear, x, h, vector, *parameters):
        """F(x, h) (R, C, H, W), and Jᵀ·vector or None."""
        ctx.form = form
        ctx.set_materialize_grads(False)
        state, kept = form.compute(x, h) if linear is None else (linear.state.view_as(linear.state), linear.kept)
        # parameters too: autograd then tells of weights that were written to before the backward pass
        ctx.save_for_backward(x, h, vector, *parameters, *kept)
        return state, None if vector is None else linear.transpose(vector)

    @staticmethod
    def backward(ctx, cotangent, direction):
        """Gradients of x, h and the parameters from those of F(x, h) and of Jᵀ·vector, each (R, C, H, W) or None.

        RuntimeError with create_graph, where the result would lack every second derivative without a word, for many
        cotangents at once, and for weights that were changed since.
        """
        if torch.is_grad_enabled():
            raise RuntimeError("what a fast form recorded can be differentiated once: use fast='off'")
        refuse_batches(cotangent, direction)
        parameters, (x, h, vector, *saved) = ctx.form.parameters, ctx.saved_tensors
        # autograd finds changed weights itself, but not where hooks of saved tensors have copied them
        ctx.form.refuse_changed_weights("before the backward pass: change them after it")
        cotangent = torch.zeros_like(h) if cotangent is None else cotangent
        # backward may be called under autocast, which must not change the types that products have already
        with torch.autocast(x.device.type, enabled=False):
            dx, dh, gradients = ctx.form.gradient(saved[len(parameters) :], x, h, cotangent, direction, vector)
        wanted = zip(ctx.needs_input_grad[5:], parameters.items())
        shaped = (gradients[name].view_as(p).to(p.dtype) if need else None for need, (name, p) in wanted)
        return None, None, dx, dh, None, *shaped


class FastForm:
    """A cell made ready for one forward pass. What it records can be differentiated once.

    Subclasses give ``run(x, h, steps)``, what :meth:`iterate` returns; ``compute(x, h)``, the next state and what tensors its
    gradient needs; ``linearize(x, h)``, a step with ``state``, ``transpose`` and these tensors as ``kept``; ``gradient(kept, x,
    h, cotangent, direction, vector)``, that of ⟨cotangent, F(x, h)⟩ + ⟨direction, Jᵀ·vector⟩ for x, h and, by name, every
    parameter.
    ``stages`` is the module whose functions work between the large products.
    """

    stages: ModuleType

    def __init__(self, cell: torch.nn.Module):
        self.parameters = dict(cell.named_parameters())
        self._versions = [version(parameter) for parameter in self.parameters.values()]

    def iterate(self, x: Tensor, h: Tensor, steps: int) -> Tensor:
        """The state ``steps`` steps after h, both (R, C, H, W), without a graph. ValueError as :meth:`step`."""
        _check_state(x, h)
        return self.run(x, h, steps)

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        """The next state, recorded by autograd where it is on. ValueError for a state of another shape than x's."""
        _check_state(x, h)
        self.refuse_changed_weights("between two steps: begin anew from the last state")
        if not torch.is_grad_enabled():
            return self.run(x, h, 1)
        return _Recorded.apply(self, None, x, h, None, *self.parameters.values())[0]

    def record(self, x: Tensor, previous: Tensor, probe: str | None) -> RecordedStep:
        """One step from ``previous`` with its Jacobian; see :meth:`rfpn.layers.plain.PlainForm.record`."""
        _check_state(x, previous)
        step = self.linearize(x, previous)
        # a leaf is the layer's own start of the recorded steps: nothing asks for its gradient
        source = previous.detach() if previous.is_leaf else previous
        vector = None if probe is None else probe_vector(step.state, probe)
        state, sums = _Recorded.apply(self, step, x, source, vector, *self.parameters.values())
        return RecordedStep(state, sums, lambda v: self._transpose(step, v))

    def refuse_changed_weights(self, when: str) -> None:
        """RuntimeError where weights, of which some are copied here and others not, were changed since this form was made."""
        # writes of fused optimizers and through .data raise no version and stay unseen
        if any(map(changed, self.parameters.values(), self._versions)):
            raise RuntimeError(f"weights were changed {when}, or use fast='off'")

    @staticmethod
    def _transpose(step, v: Tensor) -> Tensor:
        refuse_batches(v)
        # backward may be called under autocast, which must not change the types that products have already
        with torch.autocast(v.device.type, enabled=False):
            return step.transpose(v)

    def neumann_series(self, *arguments) -> NeumannSum:
        """See :func:`rfpn.fixed_point.neumann_series`."""
        return neumann_series(*arguments, add=self.stages.add_term)
