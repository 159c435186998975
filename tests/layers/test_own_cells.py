"""Cells and layers that users write."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from rfpn.layers import HGRUCell, RecurrentLayer
from tests.problems import LinearCell, random


class InPlace(LinearCell):
    def forward(self, x, h):
        return h.mul_(0.9).add_(0.1 * torch.tanh(x))


@pytest.mark.parametrize("training", [True, False])
def test_a_state_changed_in_place_is_refused(training):
    layer = RecurrentLayer(InPlace(), 3, gradient="bptt", test_tolerance=0.0 if training else 1e-4).train(training)
    with pytest.raises(ValueError, match="InPlace must leave the state as it is and return a new tensor"), torch.no_grad():
        layer(random((2, 6)))


class InPlaceFirst(LinearCell):
    """Returns a new tensor, but has changed the state that it was given."""

    def forward(self, x, h):
        return h.mul_(0.9) + 0.1 * torch.tanh(x)


class InPlaceView(LinearCell):
    def forward(self, x, h):
        return h.mul_(0.5).add_(x).view_as(h)


@pytest.mark.parametrize("cell", [InPlaceFirst, InPlaceView])
@pytest.mark.parametrize("options", [{}, {"test_tolerance": 1e-4}, {"gradient": "bptt"}])
def test_residuals_never_come_from_a_state_that_was_changed(cell, options):
    layer = RecurrentLayer(cell(), 3, **options).eval()
    with pytest.raises(ValueError, match="must leave the state as it is"), torch.no_grad():
        layer(random((2, 6)))


class InPlaceDrive(LinearCell):
    """Adds up the drives of all steps, in the caller's tensor."""

    def forward(self, x, h):
        x += 0.1 * h @ self.weight
        return torch.tanh(x)


@pytest.mark.parametrize("options", [{}, {"test_tolerance": 1e-4}, {"gradient": "bptt"}, {"solver": "anderson"}])
@pytest.mark.parametrize("training", [True, False])
def test_a_drive_changed_in_place_is_refused(options, training):
    layer = RecurrentLayer(InPlaceDrive(), 3, **options).train(training)
    with pytest.raises(ValueError, match="InPlaceDrive must leave the drive, and what shares its memory, as they are"):
        layer(random((2, 6)))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_readout_that_works_in_place_leaves_the_next_steps_alone(mode):
    layer, x = RecurrentLayer(LinearCell(), 4, gradient="bptt"), random((2, 6))
    wanted, shown, unrolled = [], [], []
    with mode():
        output = layer(x, lambda hidden: wanted.append(hidden.relu()))
        again = layer(x, lambda hidden: shown.append(hidden.relu_()))
        for hidden, _ in layer.unroll(x, 4):
            unrolled.append(hidden.relu_())
    for found in (shown, unrolled):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert torch.equal(again.hidden, output.hidden) and torch.equal(again.residual, output.residual)


class Clamped(RecurrentLayer):
    def step(self, x, state):
        return super().step(x, state).clamp(max=0.1)


@pytest.mark.parametrize("kernel", [3, 11])
def test_a_step_of_ones_own_is_taken_although_the_cell_has_a_fast_form(kernel):
    torch.manual_seed(0)
    cell, x = HGRUCell(4, kernel), torch.rand(2, 4, 8, 8)
    own = RecurrentLayer(cell, 4)
    own.step = lambda x, state: RecurrentLayer.step(own, x, state).clamp(max=0.1)
    with torch.no_grad():
        assert RecurrentLayer(cell, 4)(x).hidden.max() > 0.2
        assert Clamped(cell, 4)(x).hidden.max() == own(x).hidden.max() == torch.tensor(0.1)


def test_inference_mode_has_no_versions_to_compare():
    with torch.inference_mode():
        x = random((2, 6))
        assert RecurrentLayer(LinearCell(), 3)(x).hidden.isfinite().all()
    # a drive of that mode meets a state of another
    with torch.no_grad():
        assert RecurrentLayer(LinearCell(), 3)(x).hidden.isfinite().all()


class WithNumber(LinearCell):
    hidden = 64


class WithPart(LinearCell):
    """Its submodule bears the name of the protocol's method."""

    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(6, 6).double()


@pytest.mark.parametrize("cell", [WithPart(), WithNumber()])
def test_a_submodule_or_number_named_hidden_is_not_the_output(cell):
    x = random((2, 6))
    assert torch.equal(RecurrentLayer(cell, 2)(x).hidden, cell(x, cell(x, torch.zeros_like(x))))


@pytest.mark.parametrize(
    "x, words",
    [
        (torch.zeros(2, 6, dtype=torch.uint8), r"drive \(R, C, ...\), got torch.uint8 \(2, 6\)"),
        (torch.zeros(6), r"got torch.float32 \(6,\)"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_drives_that_are_none_are_named(x, words, training):
    with pytest.raises(ValueError, match=words):
        RecurrentLayer(LinearCell(), 3).train(training)(x)


def test_no_penalty_of_a_cell_that_ignores_its_state_and_learns_nothing():
    class Still(torch.nn.Module):
        def forward(self, x, h):
            return torch.tanh(x)

    assert RecurrentLayer(Still(), 3, lipschitz=True)(torch.rand(2, 3)).penalty == 0


class Attending(torch.nn.Module):
    """Tokens that attend to each other, (R, N, C), through PyTorch's fused attention."""

    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)

    def forward(self, x, h):
        return torch.tanh(0.5 * self.attention(h, h, h, need_weights=False)[0] + x)


@pytest.mark.parametrize("gradient", ["rbp", "bptt"])
def test_the_secant_penalty_serves_fused_attention_which_has_no_second_derivatives(gradient):
    torch.manual_seed(0)
    x, cell = random((3, 5, 4)), Attending()
    layer = RecurrentLayer(cell, 4, gradient=gradient, lipschitz=True, coefficient=0.0, probe="secant")
    found = torch.autograd.grad(layer(x).penalty, list(cell.parameters()))
    with sdpa_kernel(SDPBackend.MATH):
        wanted = torch.autograd.grad(layer(x).penalty, list(cell.parameters()))
    torch.testing.assert_close(found, wanted)


LEARNING = [("bptt", 5, True), ("tbptt", 3, True), ("tbptt", 4, False), ("rbp", 1, False)]


@pytest.mark.parametrize("gradient, steps, learns", LEARNING)
def test_which_methods_have_a_gradient_of_a_learned_start(gradient, steps, learns):
    class Learned(RecurrentLayer):
        def initial_state(self, x):
            return super().initial_state(x) + start

    start = torch.full((1, 6), 0.1, dtype=torch.float64, requires_grad=True)
    Learned(LinearCell(), steps, gradient=gradient, window=3)(random((2, 6))).hidden.sum().backward()
    assert (start.grad is not None) == learns
