"""RecurrentLayer with fast forms against the same layer with plain ones."""

from contextlib import nullcontext

import pytest
import torch

from rfpn.layers import HGRUCell, RecurrentLayer
from rfpn.layers import fast as fast_package
from rfpn.layers.fast.gala import FastGALA
from rfpn.layers.fast.hgru import FastHGRU
from tests.layers.fast.fast_problems import DEVICES, assert_close, gala, hgru, interprets, spread

METHODS = {
    "bptt": {"gradient": "bptt"},
    "tbptt": {"gradient": "tbptt", "window": 2},
    "rbp": {"gradient": "rbp"},
    "c-bptt": {"gradient": "bptt", "lipschitz": True, "coefficient": 0.0},
    "c-rbp": {"gradient": "rbp", "lipschitz": True, "coefficient": 0.0},
    "c-rbp, signs": {"gradient": "rbp", "lipschitz": True, "coefficient": 0.0, "probe": "rademacher"},
    "c-rbp, sample signs": {"gradient": "rbp", "lipschitz": True, "coefficient": 0.0, "probe": "sample_signs"},
    "c-rbp, secant": {"gradient": "rbp", "lipschitz": True, "coefficient": 0.0, "probe": "secant"},
    "c-bptt, secant": {"gradient": "bptt", "lipschitz": True, "coefficient": 0.0, "probe": "secant"},
    "equilibrium": {"solver": "anderson", "adjoint": "solve"},
}
SHAPES = {"hgru": (3, 4, 9, 12), "gala": (3, 64, 5, 6)}


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if request.param == "cpu":  # where bind offers nothing without Triton: take the torch operations
        monkeypatch.setattr("rfpn.layers.recurrent.bind", _bind)
    return request.param


def _bind(cell, x):
    return FastHGRU(cell, x) if isinstance(cell, HGRUCell) else FastGALA(cell, torch.float32, x)


def _cell(kind, device):
    return hgru(device=device) if kind == "hgru" else gala(device=device)


def _run(layer, x, g):
    x = x.detach().requires_grad_()
    torch.manual_seed(3)
    output = layer(x)
    layer.zero_grad()
    ((output.hidden * g).sum() + output.penalty).backward()
    return output, {"x": x.grad, **{name: p.grad.clone() for name, p in layer.named_parameters()}}


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_same_output_penalty_and_gradients(method, kind, device):
    torch.manual_seed(2)
    x, g = torch.rand(SHAPES[kind], device=device), torch.randn(SHAPES[kind], device=device)
    layers = [RecurrentLayer(_cell(kind, device), 4, fast=fast, **METHODS[method]) for fast in ("off", "auto")]
    assert "Fast" in type(layers[1].form(x)).__name__
    (plain, wanted), (fast, found) = (_run(layer, x, g) for layer in layers)
    assert_close(fast.hidden, plain.hidden, 1e-5, "hidden")
    assert_close(fast.penalty, plain.penalty, 1e-4, "penalty")
    assert_close(fast.residual, plain.residual, 1e-3, "residual")
    for name, expected in wanted.items():
        assert_close(found[name], expected, 1e-3, name)


@pytest.mark.parametrize("kind", SHAPES)
def test_evaluation_and_time_course(kind, device):
    x = torch.rand(SHAPES[kind], device=device)
    plain, fast = (RecurrentLayer(_cell(kind, device), 4, fast=f, test_tolerance=1e-2).eval() for f in ("off", "auto"))
    with torch.no_grad():
        a, b = plain(x), fast(x)
        assert torch.equal(a.steps, b.steps)
        assert_close(b.hidden, a.hidden, 1e-5)
        for (expected, _), (value, _) in zip(plain.unroll(x, 3), fast.unroll(x, 3), strict=True):
            assert_close(value, expected, 1e-5)


@pytest.mark.parametrize("kind", SHAPES)
def test_other_memory_formats(kind, device):
    x = torch.rand(SHAPES[kind], device=device)
    g = torch.randn_like(x)
    layer = RecurrentLayer(_cell(kind, device), 4, lipschitz=True, coefficient=0.0)
    output, wanted = _run(layer, x, g)
    last = torch.channels_last
    other, found = _run(layer, x.to(memory_format=last), g.to(memory_format=last))
    assert_close(other.hidden, output.hidden, 1e-6)
    for name, expected in wanted.items():
        assert_close(found[name], expected, 1e-4, name)


@pytest.mark.parametrize("change", [lambda layer: layer.to(memory_format=torch.channels_last), spread], ids=["last", "spread"])
@pytest.mark.parametrize("kind", SHAPES)
def test_weights_in_another_memory_format(kind, change, device):
    x, g = torch.rand(SHAPES[kind], device=device), torch.randn(SHAPES[kind], device=device)
    layer = RecurrentLayer(_cell(kind, device), 4, lipschitz=True, coefficient=0.0)
    output, wanted = _run(layer, x, g)
    other, found = _run(change(layer), x, g)
    assert_close(other.hidden, output.hidden, 1e-6)
    for name, expected in wanted.items():
        assert_close(found[name], expected, 1e-4, name)


def _recorded(kind, gradient, device):
    """A drive that needs a gradient, and its hidden state."""
    x = torch.rand(SHAPES[kind], device=device, requires_grad=True)
    return x, RecurrentLayer(_cell(kind, device), 3, gradient=gradient)(x).hidden


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("gradient", ["rbp", "bptt"])
def test_second_derivatives_are_refused(gradient, kind, device):
    x, hidden = _recorded(kind, gradient, device)
    with pytest.raises(RuntimeError, match="differentiated"):
        torch.autograd.grad(hidden.sum(), x, create_graph=True)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("gradient", ["rbp", "bptt"])
def test_many_cotangents_at_once_are_refused(gradient, kind, device):
    x, hidden = _recorded(kind, gradient, device)
    with pytest.raises(RuntimeError, match="one cotangent at a time.*fast='off'"):
        torch.autograd.grad(hidden, x, torch.rand(2, *hidden.shape, device=device), is_grads_batched=True)


COPIED = "weights were changed before the backward pass.*fast='off'"


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("gradient", ["rbp", "bptt"])
@pytest.mark.parametrize(
    "keep, words",
    [
        (nullcontext, "modified by an inplace operation"),
        # both keep copies, which autograd does not compare with the weights
        (torch.autograd.graph.allow_mutation_on_saved_tensors, COPIED),
        (torch.autograd.graph.save_on_cpu, COPIED),
    ],
)
def test_weights_written_to_before_backward_are_told_of(keep, words, gradient, kind, device):
    layer = RecurrentLayer(_cell(kind, device), 3, gradient=gradient)
    with keep():
        hidden = layer(torch.rand(SHAPES[kind], device=device)).hidden
        with torch.no_grad():
            layer.cell.alpha.mul_(1.5)
        with pytest.raises(RuntimeError, match=words):
            hidden.sum().backward()


@pytest.mark.parametrize("kind", SHAPES)
def test_weights_changed_between_two_steps_are_told_of(kind, device):
    """Of some, the first step made copies."""
    layer = RecurrentLayer(_cell(kind, device), 3)
    with torch.no_grad():
        steps = layer.unroll(torch.rand(SHAPES[kind], device=device), 3)
        next(steps)
        layer.cell.excitation.weight.mul_(-1)
        with pytest.raises(RuntimeError, match="weights were changed between two steps"):
            next(steps)


@pytest.mark.parametrize("kind", SHAPES)
def test_states_of_another_size_are_refused(kind, device):
    x = torch.rand(SHAPES[kind], device=device)
    layer = RecurrentLayer(_cell(kind, device), 3)
    for state in (x[:1], x[..., :-1], torch.rand(x.shape[0], x.shape[1] + 1, *x.shape[2:], device=device)):
        with pytest.raises(ValueError, match="state"):
            next(layer.unroll(x, 2, state))


class _HalfStart(RecurrentLayer):
    def initial_state(self, x):
        return torch.zeros_like(x, dtype=torch.bfloat16)


@pytest.mark.parametrize("gradient", ["rbp", "bptt"])
def test_hgru_goes_on_in_float32_from_a_start_in_half_precision(gradient, device):
    """Such as a subclass may make of a drive under autocast; kernels have one type."""
    x, g = torch.rand(SHAPES["hgru"], device=device), torch.randn(SHAPES["hgru"], device=device)
    options = {"gradient": gradient, "lipschitz": True, "coefficient": 0.0}
    cell = hgru(device=device)
    wanted, found = (_run(kind(cell, 3, **options), x, g) for kind in (RecurrentLayer, _HalfStart))
    assert_close(found[0].hidden, wanted[0].hidden, 1e-6)
    for name, expected in wanted[1].items():
        assert_close(found[1][name], expected, 1e-5, name)


@pytest.mark.parametrize("drive", [torch.float32, torch.bfloat16])
def test_hgru_under_bfloat16_autocast(drive, device):
    torch.manual_seed(2)
    x, g = torch.rand(3, 4, 9, 12, device=device), torch.randn(3, 4, 9, 12, device=device)
    fast, plain = (RecurrentLayer(hgru(device=device), 6, lipschitz=True, coefficient=0.0, fast=f) for f in ("auto", "off"))
    x = x.to(drive)
    wanted = _run(plain, x.float(), g)
    with torch.autocast(device, torch.bfloat16):
        form = fast.form(x)
        assert {t.dtype for t in (*form.linearize(x, x.float()).factors, *form.spectra)} == {torch.bfloat16}
        output, found = _run(fast, x, g)
    assert output.hidden.dtype == torch.float32
    assert_close(output.hidden, wanted[0].hidden, 3e-3, "hidden")
    whole = [torch.cat([gradient.flatten() for gradient in gradients.values()]) for gradients in (found, wanted[1])]
    assert_close(*whole, 1e-2, "whole gradient")


@pytest.mark.skipif(interprets(), reason="Triton's interpreter gets products of bfloat16 wrong")
def test_gala_in_half_precision_stays_within_the_tolerance_of_autocast(device):
    torch.manual_seed(2)
    x, g = torch.randn(8, 64, 7, 7, device=device), torch.randn(8, 64, 7, 7, device=device)
    plain, fast = (RecurrentLayer(gala(groups=32, device=device), 8, lipschitz=True, fast=f) for f in ("off", "auto"))
    if device == "cpu":
        fast.form = lambda x: FastGALA(fast.cell, torch.bfloat16, x)
    wanted = _run(plain, x, g)[1]
    with torch.autocast(device, torch.bfloat16):
        output, found = _run(fast, x, g)
    assert output.hidden.dtype == output.penalty.dtype == torch.float32
    for name, expected in wanted.items():
        assert_close(found[name], expected, 5e-2, name)
    whole = [torch.cat([gradient.flatten() for gradient in gradients.values()]) for gradients in (found, wanted)]
    assert_close(*whole, 2e-2, "whole gradient")


@pytest.mark.parametrize("kind", SHAPES)
def test_zero_samples(kind):
    x = torch.zeros((0, *SHAPES[kind][1:]), requires_grad=True)
    layer = RecurrentLayer(_cell(kind, "cpu"), 3, lipschitz=True)
    output = layer(x)
    (output.hidden.sum() + output.penalty).backward()
    assert output.penalty == 0 and all(p.grad is not None and not p.grad.any() for p in layer.parameters())


def test_plain_form_and_a_warning_where_kernels_do_not_compile(monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("Failed to find C compiler.\nmore")

    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("rfpn.layers.fast.spectral_triton.multiply", fail)
    fast_package._kernels_run.cache_clear()
    assert fast_package.bind(hgru(), torch.rand(2, 4, 8, 8)) is None
    assert "plain forms do: Failed to find C compiler." in caplog.text
    fast_package._kernels_run.cache_clear()


def test_plain_form_where_triton_cannot_work(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert type(RecurrentLayer(hgru(), 2).form(torch.rand(2, 4, 8, 8))).__name__ == "PlainForm"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert type(RecurrentLayer(hgru(), 2).form(torch.rand(2, 4, 8, 8))).__name__ == "PlainForm"
