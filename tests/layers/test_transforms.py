"""torch.func, forward-mode differentiation, checkpoints, tracing and export of a layer."""

import copy
import pickle

import pytest
import torch
import torch.utils.checkpoint
from torch.utils.flop_counter import FlopCounterMode

from rfpn.layers import ConvLSTMCell, GALAHGRUCell, HGRUCell, RecurrentLayer
from tests.problems import TanhCell, random


@pytest.mark.parametrize("training", [True, False])
def test_torch_func(training):
    """Transforms of bptt and of evaluation; rbp's gradient is not that of its steps, and is refused."""
    x, v = random((3, 6)), random((3, 6), 1)
    layer = RecurrentLayer(TanhCell(), 5, gradient="bptt").train(training)
    torch.testing.assert_close(torch.func.vmap(lambda one: layer(one[None]).hidden[0])(x), layer(x).hidden)
    values, tangents = torch.func.jvp(lambda drive: layer(drive).hidden, (x,), (v,))
    step = 1e-6
    with torch.no_grad():
        wanted = (layer(x + step * v).hidden - layer(x - step * v).hidden) / (2 * step)
    torch.testing.assert_close(tangents, wanted, rtol=1e-6, atol=1e-8)
    gradient = torch.func.grad(lambda drive: layer(drive).hidden.sum())(x)
    x.requires_grad_()
    torch.testing.assert_close(gradient, torch.autograd.grad(layer(x).hidden.sum(), x)[0])
    implicit = RecurrentLayer(TanhCell(), 5).train(training)
    with pytest.raises(RuntimeError):
        torch.func.grad(lambda drive: implicit(drive).hidden.sum())(x)


@pytest.mark.parametrize("options", [{}, {"gradient": "bptt", "lipschitz": True}])
def test_what_transforms_do_not_serve_is_told_with_what_helps(options):
    """PyTorch's own words advise the very functions that were called."""
    layers, x = [RecurrentLayer(TanhCell(), 5, **options) for _ in range(2)], random((3, 6))
    weights, buffers = torch.func.stack_module_state(layers)
    ensemble = torch.vmap(lambda *state: torch.func.functional_call(layers[0], state, (x,)).hidden)
    for run in (lambda: ensemble(weights, buffers), lambda: torch.func.jacrev(lambda drive: layers[0](drive).hidden)(x)):
        with pytest.raises(RuntimeError, match="gradient 'bptt' without it, or torch.no_grad()"):
            run()
    with torch.no_grad():
        torch.testing.assert_close(ensemble(weights, buffers)[1], layers[1](x).hidden)


@pytest.mark.parametrize("gradient", ["rbp", "tbptt"])
def test_forward_mode_takes_all_steps(gradient):
    x, v = random((3, 6)), random((3, 6), 1)
    layer, step = RecurrentLayer(TanhCell(), 6, gradient=gradient, window=2).eval(), 1e-6
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        dual = layer(torch.autograd.forward_ad.make_dual(x, v)).hidden
        tangent = torch.autograd.forward_ad.unpack_dual(dual).tangent
        wanted = (layer(x + step * v).hidden - layer(x - step * v).hidden) / (2 * step)
    torch.testing.assert_close(tangent, wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("gradient", ["rbp", "bptt"])
def test_a_checkpoint_around_the_layer_changes_nothing(gradient):
    layer, x = RecurrentLayer(TanhCell(), 6, gradient=gradient, lipschitz=True), random((3, 6)).requires_grad_()
    found = []
    for run in (layer, lambda x: torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)):
        output = run(x)
        found.append(torch.autograd.grad(output.hidden.square().sum() + output.penalty, [x, *layer.parameters()]))
        assert {"residual", "penalty"} <= layer.diagnostics.keys()
        assert ("truncated_share" in layer.diagnostics) == (gradient == "rbp")
    torch.testing.assert_close(*found)


class Hidden(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x).hidden


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("cell", [HGRUCell(4, 11), GALAHGRUCell(4, groups=2), ConvLSTMCell(4, 3)])
def test_a_trace_takes_other_numbers_of_samples(cell):
    model = Hidden(RecurrentLayer(cell, 3)).eval()
    with torch.no_grad():
        traced = torch.jit.trace(model, torch.rand(2, 4, 7, 6), check_trace=False)
        for count in (5, 0):
            x = torch.rand(count, 4, 7, 6)
            torch.testing.assert_close(traced(x), model(x))


@pytest.mark.parametrize("cell", [HGRUCell(4, 3), GALAHGRUCell(4, groups=2), ConvLSTMCell(4, 3)])
def test_an_export_takes_other_numbers_of_samples(cell):
    model, samples = Hidden(RecurrentLayer(cell, 3)).eval(), {"x": {0: torch.export.Dim("samples")}}
    with torch.no_grad():
        exported = torch.export.export(model, (torch.rand(2, 4, 7, 6),), dynamic_shapes=samples, strict=False).module()
        for count in (5, 1):
            x = torch.rand(count, 4, 7, 6)
            assert torch.equal(exported(x), model(x))


def test_gradients_of_many_cotangents_leave_a_layer_that_can_be_copied():
    layer, x = RecurrentLayer(TanhCell(), 5), random((2, 6)).requires_grad_()
    wanted = torch.autograd.functional.jacobian(lambda drive: layer(drive).hidden, x)
    found = torch.autograd.functional.jacobian(lambda drive: layer(drive).hidden, x, vectorize=True)
    copy.deepcopy(layer)
    torch.testing.assert_close(found, wanted)
    hidden = layer(x).hidden
    rows = torch.vmap(lambda v: torch.autograd.grad(hidden, x, v, retain_graph=True)[0])(torch.eye(12).view(12, 2, 6))
    copy.deepcopy(layer)
    torch.testing.assert_close(rows, wanted.flatten(0, 1))


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad, torch.func.jacfwd])
def test_a_layer_can_be_copied_and_pickled_after_a_transform(transform):
    layer, x = RecurrentLayer(TanhCell(), 5, gradient="bptt"), random((2, 6))
    transform(lambda drive: layer(drive[None]).hidden.sum())(x if transform is torch.func.vmap else x[0])
    pickle.dumps(copy.deepcopy(layer))
    layer(x)
    assert layer.diagnostics["residual"].item() > 0


@pytest.mark.parametrize("options", [{}, {"lipschitz": True}, {"gradient": "tbptt", "window": 1, "lipschitz": True}])
def test_operations_of_a_training_step_can_be_counted(options):
    layer, x = RecurrentLayer(TanhCell(), 5, **options), random((2, 6)).requires_grad_()
    with FlopCounterMode(display=False) as counter:
        output = layer(x)
        (output.hidden.sum() + output.penalty).backward()
    assert counter.get_total_flops() > 0
