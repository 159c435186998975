"""RecurrentLayer: a cell, a number of steps and a gradient method."""

from typing import Iterator, NamedTuple

import torch
from torch import Tensor, nn

from rfpn.fixed_point import (
    NeumannSum,
    check_penalty,
    implicit_gradient,
    iterate,
    iterate_until,
    lipschitz_penalty,
    relative_residual,
)

GRADIENTS = ("bptt", "tbptt", "rbp")


class RecurrentOutput(NamedTuple):
    """What a RecurrentLayer returns.

    hidden: (R, C, H, W) last hidden state h_T.
    penalty: scalar, Lipschitz penalty before any weight; 0 where it is off, in evaluation and without grad.
    steps: (R,) int64, steps of processing each sample used.
    residual: (R,) ‖h_T − h_{T−1}‖ / ‖h_T‖, without gradient.
    """

    hidden: Tensor
    penalty: Tensor
    steps: Tensor
    residual: Tensor


class RecurrentLayer(nn.Module):
    """Run a cell for T steps on a constant drive and give it gradients by ``bptt``, ``tbptt`` or ``rbp``.

    * ``bptt``: autograd through all steps (P-SI Eq 7). ``tbptt``: through the last ``window`` steps.
    * ``rbp``: no graph but that of the last step; its cotangent is replaced by a Neumann sum (P-Eq 4).
    * ``lipschitz`` adds the penalty (P-Eq 6) to any of them; C-RBP is ``rbp`` with it, C-BPTT is ``bptt`` with it.

    After a forward (and, for what the Neumann sum says, a backward) pass, ``diagnostics`` holds detached scalars:
    ``residual``, ``penalty``, ``truncated_share`` and ``neumann_length`` (means over samples).

    A cell is any module that maps (x, state) to the next state and treats the first dimension as samples. Optional:
    ``state_channels`` (channels of the state where they differ from x's), ``hidden(state)`` (the part that is output).
    """

    def __init__(
        self,
        cell: nn.Module,
        steps: int,
        *,
        test_steps: int | None = None,
        test_tolerance: float = 0.0,
        gradient: str = "rbp",
        window: int = 3,
        neumann_terms: int = 15,
        neumann_tolerance: float = 0.0,
        growth_limit: float = 2.0,
        lipschitz: bool = False,
        coefficient: float = 0.9,
        reduction: str = "mean_square",
        probe: str = "ones",
    ):
        """
        Args:
            steps: T ≥ 1 in training. test_steps: in evaluation; None for T.
            test_tolerance: evaluation stops each sample once its residual is at most this; 0 runs all steps.
            gradient: one of ``GRADIENTS``. window: steps with gradient under ``tbptt``.
            neumann_terms, neumann_tolerance, growth_limit: see :func:`rfpn.fixed_point.neumann_series`.
            lipschitz: compute the penalty in training.
            coefficient, reduction, probe: see :func:`rfpn.fixed_point.lipschitz_penalty`.

        Raises:
            ValueError: naming the setting that is out of range.
        """
        super().__init__()
        test_steps = steps if test_steps is None else test_steps
        for name, value, least in (
            ("steps", steps, 1), ("test_steps", test_steps, 1), ("window", window, 1), ("neumann_terms", neumann_terms, 0)
        ):
            if value < least:
                raise ValueError(f"RecurrentLayer {name} must be at least {least}, got {value}")
        for name, value in (("test_tolerance", test_tolerance), ("neumann_tolerance", neumann_tolerance)):
            if not value >= 0:
                raise ValueError(f"RecurrentLayer {name} must be at least 0, got {value}")
        if not growth_limit >= 1:
            raise ValueError(f"RecurrentLayer growth_limit must be at least 1, got {growth_limit}")
        if gradient not in GRADIENTS:
            raise ValueError(f"RecurrentLayer gradient must be one of {', '.join(GRADIENTS)}, got {gradient!r}")
        check_penalty(coefficient, reduction, probe)
        self.cell = cell
        self.steps = steps
        self.test_steps = test_steps
        self.test_tolerance = test_tolerance
        self.gradient = gradient
        self.window = window
        self.neumann_terms = neumann_terms
        self.neumann_tolerance = neumann_tolerance
        self.growth_limit = growth_limit
        self.lipschitz = lipschitz
        self.coefficient = coefficient
        self.reduction = reduction
        self.probe = probe
        self.diagnostics: dict[str, Tensor] = {}

    def initial_state(self, x: Tensor) -> Tensor:
        """h_0 = 0 for drive x (R, C, H, W), in float32 or wider: the state keeps its precision under autocast."""
        channels = getattr(self.cell, "state_channels", x.shape[1])
        dtype = torch.promote_types(x.dtype, torch.float32)
        return x.new_zeros((len(x), channels, *x.shape[2:]), dtype=dtype)

    def hidden(self, state: Tensor) -> Tensor:
        """The part of a state that the layer outputs."""
        return self.cell.hidden(state) if hasattr(self.cell, "hidden") else state

    def unroll(self, x: Tensor, steps: int, state: Tensor | None = None) -> Iterator[Tensor]:
        """Yield the hidden states h_1 … h_T one by one, recorded by autograd where it is on."""
        state = self.initial_state(x) if state is None else state
        for _ in range(steps):
            state = self.cell(x, state)
            yield self.hidden(state)

    def forward(self, x: Tensor) -> RecurrentOutput:
        """Drive x (R, C, H, W) -> :class:`RecurrentOutput`; R may be 0."""
        if not self.training and self.test_tolerance > 0:
            result = iterate_until(self.cell, x, self.initial_state(x), self.test_steps, self.test_tolerance)
            return self._output(result.state, x.new_zeros(()), result.steps, result.residual)
        steps = self.steps if self.training else self.test_steps
        previous = self._without_graph(x, steps - self._recorded_steps(steps))
        penalised = self.training and self.lipschitz and torch.is_grad_enabled()
        # a leaf, so that the Jacobian of the first recorded step can be asked for
        previous.requires_grad_(torch.is_grad_enabled() and (penalised or self.gradient == "rbp"))
        for _ in range(self._recorded_steps(steps) - 1):
            previous = self.cell(x, previous)
        state = self.cell(x, previous)
        penalty = state.new_zeros(())
        if penalised:
            penalty = lipschitz_penalty(state, previous, self.coefficient, self.reduction, self.probe)
        residual = relative_residual(state, previous)
        if self.gradient == "rbp" and torch.is_grad_enabled():
            state = implicit_gradient(
                state, previous, self.neumann_terms, self.growth_limit, self.neumann_tolerance, self._report_series
            )
        return self._output(state, penalty, torch.full_like(residual, steps, dtype=torch.int64), residual)

    def _recorded_steps(self, steps: int) -> int:
        """How many of the last steps autograd records."""
        return {"bptt": steps, "tbptt": min(self.window, steps), "rbp": 1}[self.gradient]

    def _without_graph(self, x: Tensor, steps: int) -> Tensor:
        state = self.initial_state(x)
        if steps == 0:
            return state
        with torch.no_grad():
            state = iterate(self.cell, x, state, steps)
        if torch.is_autocast_enabled(x.device.type):
            # weights that autocast copied without a graph must not serve the recorded steps
            torch.clear_autocast_cache()
        return state

    def _output(self, state: Tensor, penalty: Tensor, steps: Tensor, residual: Tensor) -> RecurrentOutput:
        self.diagnostics["residual"] = residual.sum() / max(len(residual), 1)
        self.diagnostics["penalty"] = penalty.detach()
        return RecurrentOutput(self.hidden(state), penalty, steps, residual)

    def _report_series(self, series: NeumannSum) -> None:
        samples = max(len(series.length), 1)
        self.diagnostics["truncated_share"] = series.truncated.sum() / samples
        self.diagnostics["neumann_length"] = series.length.sum() / samples
