"""CUDA graphs of steps without gradient: they compute what single steps do, with the weights as they are."""

import copy
import gc
import io
import weakref

import pytest
import torch

from rfpn.layers import RecurrentLayer
from rfpn.layers.fast import graphs
from tests.layers.fast.fast_problems import assert_close, gala

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CHANNELS, STEPS = 64, 6


@pytest.fixture(autouse=True)
def strict_precision(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def captures(monkeypatch):
    """Count captures."""
    counted, capture = [], graphs._capture
    monkeypatch.setattr(graphs, "_capture", lambda *args: counted.append(args) or capture(*args))
    return counted


def _drive(rois, seed=1):
    torch.manual_seed(seed)
    return torch.randn(rois, CHANNELS, 14, 14, device="cuda")


def _layer(**options):
    return RecurrentLayer(gala(CHANNELS, device="cuda"), STEPS, **options).eval()


def _stepwise(layer, x, monkeypatch):
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(graphs, "run", lambda *_: None)
        return layer(x)


def _strides(t):
    """Strides of axes longer than 1: others mean nothing."""
    return [stride for size, stride in zip(t.shape, t.stride()) if size > 1]


@pytest.mark.parametrize("gradient", ["rbp", "bptt"])
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_cuda_graph_equals_single_steps(half, gradient, monkeypatch, captures):
    layer = _layer(gradient=gradient)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=half):
        for rois in (1, 7, 16, 100, 130, 7, 112, 1):
            x = _drive(rois, seed=rois)
            found, wanted = layer(x), _stepwise(layer, x, monkeypatch)
            # another number of RoIs may get another convolution algorithm
            padded = graphs.bucket(rois) != rois
            tolerance = 1e-2 if half else 1e-5 if padded else 1e-6
            assert_close(found.hidden, wanted.hidden, tolerance, f"hidden of {rois}")
            assert_close(found.residual, wanted.residual, 5e-2 if half else 1e-3, f"residual of {rois}")
            assert _strides(found.hidden) == _strides(wanted.hidden) and found.hidden.dtype == wanted.hidden.dtype
            assert torch.equal(found.steps, wanted.steps) and found.penalty == 0
    assert len(captures) == 4 and not graphs._graphs[layer.cell].failed


def test_cuda_graph_of_one_step_and_of_another_memory_format(monkeypatch):
    layer, x = _layer(test_steps=1), _drive(7)
    with torch.no_grad():
        wanted = _stepwise(layer, x, monkeypatch)
        for drive in (x, x.to(memory_format=torch.channels_last)):
            found = layer(drive)
            assert_close(found.hidden, wanted.hidden, 1e-5)
            assert_close(found.residual, wanted.residual, 1e-5)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_cuda_graph_sees_weights_changed_in_place_and_replaced(half, monkeypatch, captures):
    layer, x = _layer(), _drive(7)

    def agrees():
        found, wanted = layer(x).hidden, _stepwise(layer, x, monkeypatch).hidden
        assert_close(found, wanted, 1e-2 if half else 1e-5)
        return found

    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=half):
        first = agrees()
        for parameter in layer.parameters():
            parameter.mul_(1.1)
        second = agrees()
        assert len(captures) == 1
        assert (second - first).norm() > 2e-2 * first.norm()
        layer.cell.inhibition.weight = torch.nn.Parameter(layer.cell.inhibition.weight * 2)
        third = agrees()
        assert len(captures) == 2 and not torch.equal(third, second)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("gradient", ["rbp", "tbptt"])
def test_cuda_training_with_graphs_equals_single_steps(gradient, half, monkeypatch, captures):
    layer = _layer(gradient=gradient, lipschitz=True, coefficient=0.0).train()
    optimizer = torch.optim.SGD(layer.parameters(), 0.01)

    def gradients(x):
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            output = layer(x)
        optimizer.zero_grad()
        (output.hidden.square().mean() + output.penalty).backward()
        return torch.cat([p.grad.flatten() for p in layer.parameters()])

    for rois in (7, 100, 7):
        x = _drive(rois, seed=rois)
        with monkeypatch.context() as patch:
            patch.setattr(graphs, "run", lambda *_: None)
            wanted = gradients(x)
        assert_close(gradients(x), wanted, 3e-2 if half else 1e-4, f"gradient with {rois} RoIs")
        optimizer.step()
    assert len(captures) == 2


def test_cuda_graph_after_other_types_and_devices(monkeypatch):
    layer, x = _layer(), _drive(7)
    with torch.no_grad():
        wanted = layer(x).hidden
        assert_close(layer.double()(x.double()).hidden, wanted, 1e-4)
        assert graphs._graphs[layer.cell].graphs.popitem()[1] is None
        assert_close(layer.float().cpu()(x.cpu()).hidden, wanted, 1e-4)
        assert_close(layer.cuda()(x).hidden, wanted, 1e-6)
    assert all(graphs._graphs[layer.cell].graphs.values())


def test_cuda_outputs_outlive_later_replays():
    layer = _layer()
    with torch.no_grad():
        first = layer(_drive(7))
        kept = [t.clone() for t in first]
        for rois in (7, 9, 40):
            layer(_drive(rois, seed=rois))
    assert all(torch.equal(a, b) for a, b in zip(first, kept))


def test_cuda_layer_with_graphs_can_be_copied_and_pickled():
    layer, x = _layer(), _drive(7)
    with torch.no_grad():
        wanted = layer(x).hidden
        other = copy.deepcopy(layer)
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        for copied in (other, torch.load(file, weights_only=False)):
            assert_close(copied(x).hidden, wanted, 1e-6)
        for parameter in other.parameters():
            parameter.zero_()
        assert_close(layer(x).hidden, wanted, 1e-6)


def test_cuda_graphs_end_with_their_cell():
    layer = _layer()
    with torch.no_grad():
        layer(_drive(7))
    cell, kept = weakref.ref(layer.cell), weakref.ref(graphs._graphs[layer.cell])
    del layer
    gc.collect()
    assert cell() is None and kept() is None


def test_cuda_graph_serves_inference_mode_and_outside_it(captures):
    layer, x = _layer(), _drive(7)
    with torch.inference_mode():
        wanted = layer(x).hidden
    with torch.no_grad():
        assert_close(layer(x).hidden, wanted, 1e-6)
    with torch.inference_mode():
        assert_close(layer(x).hidden, wanted, 1e-6)
    assert len(captures) == 1


def test_cuda_runs_step_by_step_where_no_graph_serves(captures):
    layer = _layer(gradient="bptt")
    layer(_drive(7)).hidden.sum().backward()
    with torch.no_grad():
        assert len(layer(_drive(0)).hidden) == 0
        assert layer(_drive(520)).hidden.isfinite().all()
    assert not captures


def test_cuda_capture_outlasts_garbage_that_holds_a_graph(monkeypatch):
    other, layer, x, steps = _layer(), _layer(), _drive(7), graphs._steps
    with torch.no_grad():
        other(x)
    held = [graphs._graphs.pop(other.cell)]
    kept = weakref.ref(held[0])

    def littering(*args):
        if torch.cuda.is_current_stream_capturing():
            cycle = [held.pop()]
            cycle.append(cycle)
            del cycle
            # more than any threshold of the collector
            [[] for _ in range(2 * gc.get_threshold()[0])]
        return steps(*args)

    monkeypatch.setattr(graphs, "_steps", littering)
    with torch.no_grad():
        hidden = layer(x).hidden
    assert not held and gc.isenabled() and not graphs._graphs[layer.cell].failed
    assert_close(hidden, _stepwise(layer, x, monkeypatch).hidden, 1e-5)
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("invalid", [False, True], ids=["raised", "invalid"])
def test_cuda_capture_that_fails_leaves_the_steps_working(invalid, monkeypatch, caplog):
    layer, x, steps = _layer(), _drive(7), graphs._steps

    def failing(*args):
        if torch.cuda.is_current_stream_capturing():
            if invalid:
                # CUDA then refuses the capture's end, too
                args[1].sum().item()
            raise RuntimeError("cannot be captured")
        return steps(*args)

    with torch.no_grad(), monkeypatch.context() as patch:
        patch.setattr(graphs, "_steps", failing)
        stream = torch.cuda.current_stream()
        found = [layer(x).hidden for _ in range(2)]
    assert torch.cuda.current_stream() == stream and not torch.cuda.is_current_stream_capturing()
    for hidden in found:
        assert_close(hidden, _stepwise(layer, x, monkeypatch).hidden, 1e-6)
    assert sum("No CUDA graph" in message for message in caplog.messages) == 1
    # random numbers and other cells' captures work on
    assert torch.equal(_drive(7), x) and gc.isenabled()
    other = _layer()
    with torch.no_grad():
        found = other(x).hidden
    assert all(graphs._graphs[other.cell].graphs.values()) and not graphs._graphs[other.cell].failed
    assert_close(found, _stepwise(other, x, monkeypatch).hidden, 1e-5)
