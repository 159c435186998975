import math

import pytest
import torch

from rfpn.analysis import memory
from rfpn.analysis.benchmark import Job, Measurement, checkpoint_steps
from rfpn.analysis.memory import METHODS, Point, layer_points, sweep
from rfpn.layers import HGRUCell, RecurrentLayer

CPU = torch.device("cpu")


def _make(method: str, steps: int) -> Job:
    options = {"steps": steps, "gradient": "bptt" if method == "bptt" else "rbp", "lipschitz": method == "crbp"}
    return Job(f"small cell {method}", (2, 3, 6, 6), lambda: HGRUCell(3, 3), "plain fp32", options)


def _measured():
    return Measurement(1.0, 2.0)


def _failing(error):
    def run():
        raise error

    return run


def _outcomes(points, **options):
    return [(row.method, row.steps, row.outcome) for row in sweep(points, **options)]


def test_every_method_at_every_number_of_steps():
    rows = list(sweep(layer_points(_make, METHODS, [3, 1], CPU, "fp32", 1)))
    assert [(row.method, row.steps) for row in rows] == [(method, steps) for steps in (1, 3) for method in METHODS]
    assert all(row.job == "small cell" and row.outcome == "measured" and row.milliseconds > 0 for row in rows)
    # the CPU counts no allocations
    assert all(math.isnan(row.gibibytes) for row in rows)


def test_methods_are_what_they_are_called(monkeypatch):
    seen = []

    def step(layer, x, g, autocast):
        seen.append((layer.gradient, layer.lipschitz, layer.steps, layer.fast, autocast))

    monkeypatch.setattr(memory, "training_step", step)
    list(sweep(layer_points(_make, METHODS, [7], CPU, "bf16", 1)))
    bf16 = torch.bfloat16
    settings = [("bptt", False, 7, "auto"), ("bptt", False, 7, "off"), ("rbp", False, 7, "auto"), ("rbp", True, 7, "auto")]
    # one run for caches and a timed one
    assert seen == [(*setting, bf16) for setting in settings for _ in range(2)]


def test_checkpointed_steps_keep_less_for_the_same_gradients():
    kept, gradients = [], []
    for change in (lambda layer: layer, checkpoint_steps):
        torch.manual_seed(0)
        layer = change(RecurrentLayer(HGRUCell(3, 3), 6, gradient="bptt"))
        x = torch.rand(2, 3, 6, 6)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            hidden = layer(x).hidden
        kept.append(sum(sizes))
        gradients.append(torch.autograd.grad(hidden.square().sum(), list(layer.parameters())))
    assert kept[1] < kept[0] / 3
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
    ],
)
def test_memory_that_runs_out_ends_one_curve(error):
    points = [
        Point("job", "bptt", 1, _measured),
        Point("job", "bptt", 2, _failing(error)),
        Point("job", "rbp", 2, _measured),
        Point("job", "bptt", 3, _failing(AssertionError("must not run"))),
        Point("other job", "bptt", 3, _measured),
    ]
    expected = [("bptt", 1, "measured"), ("bptt", 2, "out of memory"), ("rbp", 2, "measured"), ("bptt", 3, "skipped")]
    assert _outcomes(points) == [*expected, ("bptt", 3, "measured")]


def test_memory_that_runs_out_in_a_layer(monkeypatch):
    def step(layer, x, g, autocast):
        if layer.gradient == "bptt" and layer.steps > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(memory, "training_step", step)
    rows = sweep(layer_points(_make, ["bptt", "crbp"], [1, 2, 3], CPU, "fp32", 1))
    found = {(row.method, row.steps): row for row in rows}
    assert [found["bptt", steps].outcome for steps in (1, 2, 3)] == ["measured", "out of memory", "skipped"]
    assert [found["crbp", steps].outcome for steps in (1, 2, 3)] == ["measured"] * 3
    assert math.isnan(found["bptt", 2].milliseconds)


def test_a_failed_run_leaves_nothing_behind():
    alive = []

    def run():
        held = torch.zeros(3)
        alive.append(torch._C._WeakTensorRef(held))
        raise torch.OutOfMemoryError("CUDA out of memory")

    def check():
        assert alive[0].expired()
        return _measured()

    assert _outcomes([Point("job", "bptt", 1, run), Point("job", "rbp", 1, check)])[1] == ("rbp", 1, "measured")


def test_other_errors_are_not_hidden():
    with pytest.raises(RuntimeError, match="shapes"):
        list(sweep([Point("job", "rbp", 1, _failing(RuntimeError("shapes differ")))]))


def test_time_that_is_over_starts_nothing():
    points = [Point("job", "rbp", steps, _failing(AssertionError("must not run"))) for steps in (1, 2)]
    assert _outcomes(points, seconds=0) == [("rbp", 1, "out of time"), ("rbp", 2, "out of time")]
