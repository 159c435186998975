"""Memory without the garbage collector's help: what a pass leaves behind is freed when its output goes."""

import gc
import resource
import weakref
from pathlib import Path

import pytest
import torch

from rfpn.layers import RecurrentLayer
from tests.layers.test_recurrent import METHODS
from tests.problems import ConvCell


class WatchedCell(ConvCell):
    """A ConvCell that knows which of the states it took and gave are still alive, in Python or in a graph."""

    def __init__(self):
        super().__init__()
        self.states = []

    def forward(self, x, h):
        new = super().forward(x, h)
        self.states += [weakref.ref(h), weakref.ref(new)]
        return new

    def alive(self) -> int:
        return len({id(state()) for state in self.states if state() is not None})


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("use", ["dropped", "backward", "penalty only", "hidden only"])
@pytest.mark.parametrize("method", METHODS)
def test_nothing_stays_alive(no_collector, method, use):
    cell = WatchedCell()
    layer = RecurrentLayer(cell, 4, **METHODS[method])
    for _ in range(3):
        output = layer(torch.rand(2, 4, 5, 5))
        if use == "backward":
            (output.hidden.sum() + output.penalty).backward()
        elif use == "penalty only" and output.penalty.requires_grad:
            output.penalty.backward()
        elif use == "hidden only":
            output.hidden.sum().backward()
        del output
        assert cell.alive() == 0


@pytest.mark.parametrize("steps", [3, 30])
def test_rbp_holds_the_states_of_one_step_only(no_collector, steps):
    cell = WatchedCell()
    output = RecurrentLayer(cell, steps, lipschitz=True)(torch.rand(2, 4, 5, 5))
    assert cell.alive() == 2 and output.hidden.requires_grad


def test_bptt_holds_the_states_of_all_steps(no_collector):
    # shows that the count above would see a leak
    cell = WatchedCell()
    output = RecurrentLayer(cell, 30, gradient="bptt")(torch.rand(2, 4, 5, 5))
    assert cell.alive() == 31 and output.hidden.requires_grad


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from Linux")
@pytest.mark.parametrize("drop", [True, False])
def test_memory_is_flat_over_200_training_steps(no_collector, drop):
    layer = RecurrentLayer(ConvCell(), 3, lipschitz=True, coefficient=0.0, neumann_terms=2)
    x = torch.rand(4, 4, 64, 64)  # 256 KiB a state

    def train(count):
        for i in range(count):
            output = layer(x)
            if not drop or i % 2:
                (output.hidden.mean() + output.penalty).backward()

    train(20)
    before = resident_bytes()
    train(200)
    # one state leaked a step would be 50 MiB
    assert resident_bytes() - before < 25 * 2**20
