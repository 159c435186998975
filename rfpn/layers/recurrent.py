"""RecurrentLayer: a cell, a number of steps and a gradient method."""

from typing import Callable, Iterator, NamedTuple

import torch
from torch import Tensor, nn

from rfpn.fixed_point import (
    FixedPoint,
    LinearSolution,
    NeumannSum,
    anderson,
    implicit_gradient,
    iterate_until,
    linear_solve,
    penalty_of_sums,
    relative_residual,
    secant_quotients,
    stopping_tolerance,
)
from rfpn.layers.checks import check_drive, check_next_state, start_of
from rfpn.layers.diagnostics import backward_diagnostics, forward_diagnostics
from rfpn.layers.fast import bind, graphs
from rfpn.layers.modes import autocast_dtype, changed, leaf_of, version
from rfpn.layers.no_graph import no_graph
from rfpn.layers.options import RULES, SECANT, check_options
from rfpn.layers.plain import PlainForm


class RecurrentOutput(NamedTuple):
    """What a RecurrentLayer returns.

    hidden: (R, C, H, W) last hidden state h_T, not to be changed in place.
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
    * ``solver="anderson"`` with ``adjoint="solve"`` makes a deep equilibrium model (Bai et al., 2019).

    ``diagnostics`` holds detached scalars of the last passes, nothing where torch.func transforms them. After a forward pass:
    ``penalty``, mean ``residual``, ``unconverged_share`` (of residuals above the tolerance in force, or 0.01). After a backward
    pass with ``rbp`` also ``truncated_share``, ``neumann_length``; ``adjoint="solve"``: ``solve_length``, ``solve_residual``.

    A cell is any module that maps (x, state) to the next state and treats the first dimension as samples. Optional:
    ``state_channels`` (channels of the state where they differ from x's), ``hidden(state)`` (the part that is output),
    ``batch_statistics`` (True if samples influence each other). Norms that keep running statistics update them at every step.
    ``torch.compile`` of a model around the layer works (the step whose Jacobian is asked for runs as it is), but compiles for
    each number of steps anew: with ``extra_steps`` compile the cell. A cell that is compiled, or has fused attention, can have
    no penalty but ``secant``: neither has second derivatives. A subclass may learn its ``initial_state`` by ``bptt``, or
    ``tbptt`` of at most ``window`` steps; ``rbp`` leaves it alone. Under ``rbp`` only a step is held:
    ``torch.utils.checkpoint`` around it would run all steps anew for each term, with ``use_reentrant=True`` at a penalty of 0.
    """

    # seeds the drawn number of steps; a trainer sets it alike in all processes, None leaves it to torch's random state
    steps_seed: int | None = None

    def __init__(
        self,
        cell: nn.Module,
        steps: int,
        *,
        extra_steps: int = 0,
        test_steps: int | None = None,
        test_tolerance: float = 0.0,
        solver: str = "steps",
        solver_tolerance: float = 1e-4,
        gradient: str = "rbp",
        window: int = 3,
        adjoint: str = "neumann",
        neumann_terms: int = 15,
        neumann_tolerance: float = 0.0,
        growth_limit: float = 2.0,
        lipschitz: bool = False,
        coefficient: float = 0.9,
        reduction: str = "mean_square",
        probe: str = "ones",
        two_sided: bool = False,
        fast: str = "auto",
    ):
        """
        Args:
            steps: T ≥ 1 in training. test_steps: in evaluation; None for T, also where that is set later.
            extra_steps: T in training is drawn anew for each pass, up to ``steps + extra_steps``. Needs solver ``steps``.
            test_tolerance: evaluation stops each sample once its residual is at most this; 0 runs all steps. Where samples
                influence each other, ``rbp`` records a step of all from where each stopped, which is off by less than that.
            solver: ``steps`` iterates T times; ``anderson`` accelerates, with at most T evaluations of the cell (one
                more is recorded), and stops each sample at ``solver_tolerance``, in evaluation at ``test_tolerance``
                where that is set. Needs ``rbp``.
            gradient: one of ``GRADIENTS``. window: steps with gradient under ``tbptt``.
            adjoint: how ``rbp`` inverts I − Jᵀ: ``neumann`` sums the series, ``solve`` runs GMRES.
            neumann_terms, neumann_tolerance, growth_limit: of either adjoint, see
                :func:`rfpn.fixed_point.neumann_series` and :func:`rfpn.fixed_point.linear_solve`.
            lipschitz: compute the penalty in training.
            coefficient, reduction, probe, two_sided: see :func:`rfpn.fixed_point.lipschitz_penalty`; probe ``secant``
                takes :func:`rfpn.fixed_point.secant_quotients` in place of column sums, for one (rbp) or two more steps.
            fast: "auto" uses a fast form of the cell where there is one for the drive; "off" never does.

        Raises:
            ValueError: naming the setting that is out of range, or two that exclude each other.
            TypeError: the cell is no module.
        """
        super().__init__()
        self.cell = cell
        self.steps, self.extra_steps = steps, extra_steps
        self.test_steps = test_steps
        self.solver, self.solver_tolerance, self.test_tolerance = solver, solver_tolerance, test_tolerance
        self.gradient, self.window, self.adjoint = gradient, window, adjoint
        self.neumann_terms, self.neumann_tolerance, self.growth_limit = neumann_terms, neumann_tolerance, growth_limit
        self.lipschitz, self.fast = lipschitz, fast
        self.coefficient, self.reduction, self.probe, self.two_sided = coefficient, reduction, probe, two_sided
        self.diagnostics: dict[str, Tensor] = {}
        check_options({name: getattr(self, name) for name in RULES})
        if not isinstance(cell, nn.Module):
            raise TypeError(f"RecurrentLayer cell must be a module, made already, got {cell!r}")

    @property
    def test_steps(self) -> int:
        """Steps in evaluation: ``steps``, unless others were set."""
        return self.steps if self._test_steps is None else self._test_steps

    @test_steps.setter
    def test_steps(self, steps: int | None) -> None:
        self._test_steps = steps

    def initial_state(self, x: Tensor) -> Tensor:
        """h_0 = 0 for drive x (R, C, H, W), in x's type; under autocast in float32 or wider, as all states then are."""
        channels = getattr(self.cell, "state_channels", x.shape[1])
        dtype = x.dtype if autocast_dtype(x) is None else torch.promote_types(x.dtype, torch.float32)
        return x.new_zeros((x.shape[0], channels, *x.shape[2:]), dtype=dtype)

    def hidden(self, state: Tensor) -> Tensor:
        """The part of a state that the layer outputs."""
        part = getattr(self.cell, "hidden", None)
        # a cell may well have a submodule or a number of that name
        return state if not callable(part) or isinstance(part, nn.Module) else part(state)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        """One step of the cell, in the state's type.

        TypeError or ValueError if the cell returns no new state like it, or changes what it was given.
        """
        name, of_state, of_drive = type(self.cell).__name__, version(state), version(x)
        new = self.cell(x, state)
        check_next_state(name, new, state)
        # otherwise the residual would compare a state with itself
        if new is state or changed(state, of_state):
            raise ValueError(f"{name} must leave the state as it is and return a new tensor")
        # all steps are driven by the same x, which is the caller's
        if changed(x, of_drive):
            raise ValueError(f"{name} must leave the drive, and what shares its memory, as they are: x + a instead of x += a")
        return new.to(state.dtype)

    def form(self, x: Tensor):
        """What runs the cell on drive x: a fast form that is ready for x, or the plain one (rfpn.layers.plain)."""
        fast = self.fast == "auto" and not self._overridden("step")  # fast forms know no other
        return (bind(self.cell, x) if fast else None) or PlainForm(self.step)

    def unroll(self, x: Tensor, steps: int, state: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield copies of h_1 … h_T, recorded where autograd is on, each with its residual (R,), of the whole state."""
        check_drive("RecurrentLayer", x)
        form, state = self.form(x), start_of(self, x) if state is None else state
        for _ in range(steps):
            previous, state = state, form.step(x, state)
            yield self.hidden(state).clone(), relative_residual(state, previous)

    def forward(self, x: Tensor, each: Callable[[Tensor], object] | None = None) -> RecurrentOutput:
        """Drive x (R, C, H, W) -> :class:`RecurrentOutput`; R may be 0.

        ``each`` is called with a copy of the hidden state after every step that has gradients of its own, which under
        ``bptt`` are all; not in a search (solver ``anderson``, ``test_tolerance``).
        """
        check_drive("RecurrentLayer", x)
        steps = self.steps if self.training else self.test_steps
        check_options({name: getattr(self, name) for name in RULES})  # may have been set since
        if self.tolerance() > 0 or self.solver == "anderson":
            return self._run_until(self.form(x), x, steps)
        if self.training and self.extra_steps:
            generator = None if self.steps_seed is None else torch.Generator().manual_seed(self.steps_seed)
            steps += int(torch.randint(self.extra_steps + 1, (), generator=generator, device="cpu"))
        if each is None and (replayed := self._replay(x, steps)):
            state, residual = replayed
            penalty = state.new_zeros(())
        else:
            state, previous, penalty = self._run(x, steps, each)
            residual = relative_residual(state, previous)
        return self._output(state, penalty, torch.full_like(residual, steps, dtype=torch.int64), residual)

    def _run(self, x: Tensor, steps: int, each: Callable | None) -> tuple[Tensor, Tensor, Tensor]:
        """All steps, the last ones recorded: last state, the one before, penalty."""
        form = self.form(x)
        recorded = {"bptt": steps, "tbptt": min(self.window, steps), "rbp": 1}[self.gradient]
        before = steps - recorded
        state = no_graph(x, self._advance, form, x, before) if before else start_of(self, x)
        return self._record(form, x, state, recorded, each)

    def _advance(self, form, x: Tensor, steps: int) -> Tensor:
        replayed = self._replay(x, steps)
        return replayed[0] if replayed else form.iterate(x, start_of(self, x), steps)

    def _replay(self, x: Tensor, steps: int) -> tuple[Tensor, Tensor] | None:
        """The state after ``steps`` steps from 0 and its residual, from a CUDA graph; None where none can serve."""
        return None if self._overridden("initial_state", "step") else graphs.run(self, x, steps)

    def _overridden(self, *names: str) -> bool:
        # not vars(), at which the compiler of PyTorch 2.6 breaks off
        return any(getattr(type(self), n) is not getattr(RecurrentLayer, n) or n in self.__dict__ for n in names)

    def _run_until(self, form, x: Tensor, steps: int) -> RecurrentOutput:
        """Search each sample's fixed point; ``rbp`` records the step that led to it, others record the whole search."""
        start, penalty, implicit = start_of(self, x), x.new_zeros(()), self.gradient == "rbp"
        found = no_graph(x, self._search, form, x, start, steps) if implicit else self._search(form, x, start, steps)
        if not (implicit and torch.is_grad_enabled()):
            return self._output(found.state, penalty, found.steps, found.residual)
        state, previous, penalty = self._record(form, x, found.previous, 1, None)
        # not the search's residual: where samples influence each other, this step of all is not each one's best step
        return self._output(state, penalty, found.steps, relative_residual(state, previous))

    # stopping depends on values, on which compilers break off anyway; that of PyTorch 2.11 loses the result there
    @torch._disable_dynamo
    def _search(self, form, x: Tensor, start: Tensor, steps: int) -> FixedPoint:
        if self.solver == "anderson":
            found = anderson(form.step, x, start, steps, self.tolerance())
            # the search was in float32 or wider
            return found._replace(state=found.state.to(start.dtype), previous=found.previous.to(start.dtype))
        independent = not getattr(self.cell, "batch_statistics", False)
        return iterate_until(form.step, x, start, steps, self.tolerance(), independent)

    def _record(self, form, x: Tensor, state: Tensor, steps: int, each: Callable | None) -> tuple[Tensor, Tensor, Tensor]:
        """Run the steps that autograd records: last state, the one before, penalty."""
        gradient = torch.is_grad_enabled()
        penalised, implicit = gradient and self.training and self.lipschitz, gradient and self.gradient == "rbp"
        # the Jacobian is taken at a leaf; without rbp, a start that needs a gradient itself keeps its graph instead.
        # No leaf where none is needed: torch.func admits none
        leaf = implicit or (penalised and not state.requires_grad)
        previous = leaf_of(state) if leaf else state.view_as(state)
        for _ in range(steps - 1):
            previous = form.step(x, previous)
            self._show(previous, each)
        if penalised or implicit:
            state, penalty = self._record_jacobian(form, x, previous, penalised, implicit)
        else:
            state, penalty = form.step(x, previous), state.new_zeros(())
        self._show(state, each)
        return state, previous, penalty

    def _show(self, state: Tensor, each: Callable | None) -> None:
        # a copy: a readout that begins in place, as with a rectification, must not change what the next step starts from
        if each is not None:
            each(self.hidden(state).clone())

    # compiled functions have no second derivatives, and compilers give what they saved for a first one away;
    # torch.compiler.disable would take two seconds more at import
    @torch._disable_dynamo
    def _record_jacobian(self, form, x: Tensor, previous: Tensor, penalised: bool, implicit: bool) -> tuple[Tensor, Tensor]:
        """A step from ``previous``, which requires grad, whose Jacobian is asked for: the state, and its penalty or 0."""
        probe = self.probe if penalised else None
        state, sums, transpose = form.record(x, previous, None if probe == SECANT else probe)
        if probe == SECANT:
            # both states are held fixed, with any gradient method: motions are not to shrink through earlier steps
            held = state if implicit else form.step(x, previous.detach())
            sums = secant_quotients(form.step(x, state.detach()), held, previous)
        penalty = state.new_zeros(()) if sums is None else self.penalty_of_sums(sums)
        if implicit:
            series = form.neumann_series if self.adjoint == "neumann" else self._solve
            limits = (self.neumann_terms, self.growth_limit, self.neumann_tolerance)
            state = implicit_gradient(state, previous, *limits, self._report, series, transpose)
        return state, penalty

    def _solve(self, *arguments) -> LinearSolution:
        # the small system of one sample knows nothing of what comes to it from others
        return linear_solve(*arguments, joint=getattr(self.cell, "batch_statistics", False))

    def penalty_of_sums(self, sums: Tensor) -> Tensor:
        """The layer's Lipschitz penalty, before any weight, from column sums (R, ...) or secant quotients (R,)."""
        return penalty_of_sums(sums, self.coefficient, self.reduction, self.two_sided)

    def tolerance(self) -> float:
        """Residual at which a sample may stop in the present mode; 0 for never."""
        return stopping_tolerance(self.solver, self.solver_tolerance, 0.0 if self.training else self.test_tolerance)

    def _output(self, state: Tensor, penalty: Tensor, steps: Tensor, residual: Tensor) -> RecurrentOutput:
        # a new dict, set last: torch.utils.checkpoint's second run stops before this line and leaves the first run's
        self.diagnostics = forward_diagnostics(residual, penalty, self.tolerance())
        return RecurrentOutput(self.hidden(state), penalty, steps, residual)

    def _report(self, solution: NeumannSum | LinearSolution) -> None:
        self.diagnostics.update(backward_diagnostics(solution, self.adjoint))
