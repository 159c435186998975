"""Cells that users write."""

import pytest
import torch

from rfpn.layers import RecurrentLayer
from tests.problems import LinearCell, random


class InPlace(LinearCell):
    def forward(self, x, h):
        return h.mul_(0.9).add_(0.1 * torch.tanh(x))


@pytest.mark.parametrize("training", [True, False])
def test_a_state_changed_in_place_is_refused(training):
    layer = RecurrentLayer(InPlace(), 3, gradient="bptt", test_tolerance=0.0 if training else 1e-4).train(training)
    with pytest.raises(ValueError, match="InPlace must leave the state as it is and return a new tensor"), torch.no_grad():
        layer(random((2, 6)))


class WithPart(LinearCell):
    """Its submodule bears the name of the protocol's method."""

    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(6, 6).double()


def test_a_submodule_named_hidden_is_not_the_output():
    cell, x = WithPart(), random((2, 6))
    assert torch.equal(RecurrentLayer(cell, 2)(x).hidden, cell(x, cell(x, torch.zeros_like(x))))
