"""A cell as it stands, behind the interface that its fast forms (rfpn.layers.fast) share."""

from typing import Callable, NamedTuple

import torch
from torch import Tensor

from rfpn.fixed_point import column_sums, iterate, neumann_series


class RecordedStep(NamedTuple):
    """The last step of a forward pass, recorded by autograd.

    state: (R, ...) h_T. sums: (R, ...) Jᵀp that can be differentiated again, None without probe.
    transpose: v -> Jᵀv where that needs no autograd, else None.
    """

    state: Tensor
    sums: Tensor | None
    transpose: Callable[[Tensor], Tensor] | None


class PlainForm:
    """Steps of any update (x, h) -> next h through autograd."""

    neumann_series = staticmethod(neumann_series)

    def __init__(self, update: Callable[[Tensor, Tensor], Tensor]):
        self.step = update

    def iterate(self, x: Tensor, h: Tensor, steps: int) -> Tensor:
        """The state ``steps`` steps after h, without a graph."""
        # a decorator would keep torch.compile out
        with torch.no_grad():
            return iterate(self.step, x, h, steps)

    def record(self, x: Tensor, previous: Tensor, probe: str | None) -> RecordedStep:
        """One step from ``previous``, which requires grad where its Jacobian will be asked for.

        ``probe`` names p (:func:`rfpn.fixed_point.lipschitz_penalty`); None for no column sums.
        """
        # views: hooks that counters of operations put on a cell's inputs fail at leaves where a Jacobian is asked for
        state = self.step(x.view_as(x), previous.view_as(previous))
        if probe is None:
            return RecordedStep(state, None, None)
        # a cell that ignores its state and has nothing to learn leaves no graph
        wide = torch.promote_types(previous.dtype, torch.float32)
        sums = column_sums(state, previous, probe) if state.requires_grad else torch.zeros_like(previous, dtype=wide)
        return RecordedStep(state, sums, None)
