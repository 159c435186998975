"""On a CPU the Pathfinder cell with large kernels runs in its fast form's torch operations."""

import pytest
import torch
from torch.autograd import forward_ad

from rfpn.layers import RecurrentLayer
from rfpn.layers.fast import bind
from rfpn.layers.fast.hgru import FastHGRU
from tests.layers.fast.fast_problems import assert_close, gala, hgru, interprets

pytestmark = pytest.mark.skipif(interprets(), reason="Triton's interpreter serves other kernels too")
X = torch.rand(3, 4, 13, 18)


def test_large_kernels_are_served():
    assert isinstance(bind(hgru(kernel_size=11), X), FastHGRU)


@pytest.mark.parametrize("cell", [hgru(kernel_size=9), gala(channels=64)], ids=["small kernels", "gala"])
def test_others_run_plain(cell):
    assert bind(cell, torch.rand(2, cell.channels, 13, 13)) is None


@pytest.mark.parametrize("size", [(1, 4, 1, 1), (2, 4, 0, 5)])
def test_drives_without_anything_to_normalise_run_plain(size):
    assert bind(hgru(kernel_size=11), torch.rand(size)) is None


def test_autocast_runs_plain():
    with torch.autocast("cpu", torch.bfloat16):
        assert bind(hgru(kernel_size=11), X) is None


def test_torch_func_gets_the_plain_form():
    layer = RecurrentLayer(hgru(kernel_size=11), 2, gradient="bptt")
    plain = RecurrentLayer(layer.cell, 2, gradient="bptt", fast="off")
    direction = torch.rand_like(X)
    (value, tangent), (_, expected) = (torch.func.jvp(lambda x: r(x).hidden, (X,), (direction,)) for r in (layer, plain))
    assert torch.equal(tangent, expected)
    assert_close(value, layer(X).hidden, 1e-5)


def test_a_compiled_step_of_a_form_that_was_made_before():
    cell = hgru(kernel_size=11)
    form, h = bind(cell, X), torch.zeros_like(X)
    torch.compiler.reset()
    with torch.no_grad():
        assert_close(torch.compile(form.step, backend="eager")(X, h), form.step(X, h), 1e-6)


@pytest.mark.parametrize("gradient", ["bptt", "rbp"])
def test_same_training_step(gradient):
    found = []
    for fast in ("auto", "off"):
        layer = RecurrentLayer(hgru(kernel_size=11), 4, gradient=gradient, lipschitz=True, coefficient=0.0, fast=fast)
        output = layer(X)
        (output.hidden.square().sum() + output.penalty).backward()
        found.append([output.hidden, output.penalty, *(p.grad for p in layer.parameters())])
    for ours, expected in zip(*found, strict=True):
        assert_close(ours, expected, 1e-3)
    assert not torch.equal(found[0][0], found[1][0])  # two forms indeed


def test_forward_mode_gets_the_plain_form():
    layer = RecurrentLayer(hgru(kernel_size=11), 2, gradient="bptt").eval()
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(layer(forward_ad.make_dual(X, X)).hidden).tangent
    with torch.no_grad():
        change = (layer(1.001 * X).hidden - layer(0.999 * X).hidden) / 0.002
    assert_close(tangent, change, 1e-2, "tangent")


@pytest.mark.parametrize("gradient", ["rbp", "bptt"])
def test_backward_under_autocast_keeps_the_precision_of_the_forward_pass(gradient):
    torch.manual_seed(0)
    cell, x = hgru(kernel_size=11), torch.rand(3, 4, 9, 8)
    layer = RecurrentLayer(cell, 4, gradient=gradient, lipschitz=True, coefficient=0.0)
    found = []
    for half in (False, True):
        output = layer(x)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            found.append(torch.autograd.grad(output.hidden.square().sum() + output.penalty, list(cell.parameters())))
    torch.testing.assert_close(*found)
