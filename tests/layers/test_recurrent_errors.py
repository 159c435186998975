"""What RecurrentLayer refuses, and how it says so."""

import pytest
import torch
from torch import nn

from rfpn.layers import HGRUCell, RecurrentLayer
from tests.problems import LinearCell


@pytest.mark.parametrize(
    "options, named",
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"extra_steps": -1}, "extra_steps"),
        ({"test_steps": 0}, "test_steps"),
        ({"window": 0}, "window"),
        ({"neumann_terms": -1}, "neumann_terms"),
        ({"growth_limit": 0.5}, "growth_limit"),
        ({"growth_limit": float("nan")}, "growth_limit"),
        ({"growth_limit": float("inf")}, "growth_limit"),
        ({"test_tolerance": -1.0}, "test_tolerance"),
        ({"neumann_tolerance": -1.0}, "neumann_tolerance"),
        ({"solver_tolerance": -1.0}, "solver_tolerance"),
        ({"coefficient": 1.0}, r"\[0, 1\), got 1.0"),
        ({"reduction": "max"}, "mean_square, sum_square, norm"),
        ({"gradient": "c-rbp"}, "bptt, tbptt, rbp"),
        ({"lipschitz": "off"}, "lipschitz must be one of False, True, got 'off'"),
        ({"two_sided": 2}, "two_sided must be one of False, True, got 2"),
        ({"solver": "broyden"}, "steps, anderson"),
        ({"adjoint": "exact"}, "neumann, solve"),
        ({"fast": "on"}, "fast must be one of auto, off, got 'on'"),
        ({"solver": "anderson", "gradient": "bptt"}, "solver 'anderson' needs RecurrentLayer gradient 'rbp', got 'bptt'"),
        ({"adjoint": "solve", "gradient": "tbptt"}, "adjoint 'solve' needs RecurrentLayer gradient 'rbp', got 'tbptt'"),
        ({"solver": "anderson", "extra_steps": 2}, "extra_steps 2 needs RecurrentLayer solver 'steps', got 'anderson'"),
    ],
)
def test_bad_settings_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        RecurrentLayer(LinearCell(), **{"steps": 3, **options})


def test_cells_that_are_none_are_named():
    class Pair(nn.Module):
        def forward(self, x, state):
            return state, state

    with pytest.raises(TypeError, match="Pair must return the next state, a tensor, not tuple: concatenate several"):
        RecurrentLayer(Pair(), 2)(torch.rand(1, 2, 3, 3))
    with pytest.raises(TypeError, match="cell must be a module, made already, got <class"):
        RecurrentLayer(Pair, 2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_cells_of_other_numbers_are_named(dtype):
    """Their imaginary parts, say, would be dropped at every step."""

    class Other(nn.Module):
        def forward(self, x, h):
            return (x + h).to(dtype)

    with pytest.raises(TypeError, match=f"Other must return floating-point numbers, got {dtype}"):
        RecurrentLayer(Other(), 2)(torch.rand(1, 2, 3, 3))


def test_steps_set_later_are_checked():
    layer = RecurrentLayer(HGRUCell(2, 3), 2)
    layer.steps = 0
    with pytest.raises(ValueError, match="RecurrentLayer steps must be at least 1, got 0"):
        layer(torch.rand(1, 2, 3, 3))


def test_cell_that_changes_the_shape_is_named():
    with pytest.raises(ValueError, match=r"Growing .*\(2, 3, 5, 5\) into \(2, 6, 5, 5\).*state_channels"):

        class Growing(nn.Module):
            def forward(self, x, h):
                return torch.cat([x, h], dim=1)

        RecurrentLayer(Growing(), 2)(torch.rand(2, 3, 5, 5))


@pytest.mark.parametrize("gradient", ["rbp", "bptt"])
def test_a_start_without_the_samples_of_the_drive_is_told_apart_from_other_channels(gradient):
    class Learned(RecurrentLayer):
        def initial_state(self, x):
            return torch.zeros(1, 3, 1, 1)

    class Adding(nn.Module):
        def forward(self, x, h):
            return torch.tanh(x + h)

    with pytest.raises(ValueError, match=r"Adding .*\(1, 3, 1, 1\) into \(2, 3, 5, 5\): let initial_state return that shape"):
        Learned(Adding(), 2, gradient=gradient)(torch.rand(2, 3, 5, 5))


@pytest.mark.parametrize("shape", [(2, 4, 1, 1), (2, 4, 13, 13)])
@pytest.mark.parametrize("gradient", ["rbp", "bptt"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("grad", [True, False])
def test_a_start_of_another_size_is_refused_by_fast_forms_too(shape, gradient, steps, grad):
    class Started(RecurrentLayer):
        def initial_state(self, x):
            return torch.zeros(shape)

    with torch.set_grad_enabled(grad), pytest.raises(ValueError, match="a state like the drive is needed"):
        Started(HGRUCell(4, 11), steps, gradient=gradient)(torch.rand(2, 4, 12, 12))


@pytest.mark.parametrize(
    "start, error, words",
    [
        ((torch.zeros(2, 4, 5, 5),) * 2, TypeError, "must return a tensor, not tuple: concatenate several states"),
        ({"h": torch.zeros(2, 4, 5, 5)}, TypeError, "must return a tensor, not dict"),
        (torch.zeros(2, 4, 5, 5, dtype=torch.int64), ValueError, "must return floating-point numbers, got torch.int64"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"gradient": "bptt"}, {"solver": "anderson"}], ids=str)
def test_starts_that_are_no_states_are_named(start, error, words, options):
    class Started(RecurrentLayer):
        def initial_state(self, x):
            return start

    layer = Started(HGRUCell(4, 3), 2, **options)
    with pytest.raises(error, match=f"Started.initial_state {words}"):
        layer(torch.rand(2, 4, 5, 5))
    with pytest.raises(error, match=f"Started.initial_state {words}"):
        next(layer.unroll(torch.rand(2, 4, 5, 5), 1))


@pytest.mark.parametrize(
    "name, value", [("adjoint", "neuman"), ("reduction", "foo"), ("solver", "foo"), ("gradient", "foo"), ("window", 0)]
)
def test_settings_that_are_changed_later_are_checked_too(name, value):
    layer = RecurrentLayer(LinearCell(), 3)
    setattr(layer, name, value)
    with pytest.raises(ValueError, match=f"RecurrentLayer {name}"):
        layer(torch.zeros(4, 6, dtype=torch.float64))
