"""Peak memory and time of a training step against the number of steps T, for several gradient methods."""

import gc
import time
from typing import Callable, Iterable, Iterator, NamedTuple

import torch

from rfpn.analysis.benchmark import (
    PRECISIONS,
    Job,
    Measurement,
    allowed_tf32,
    checkpoint_steps,
    drive_and_cotangent,
    measure,
    training_step,
)
from rfpn.layers import RecurrentLayer

# gradient method -> the gradient of RecurrentLayer and its penalty
METHODS = {
    "bptt": ("bptt", False),
    "checkpointed_bptt": ("bptt", False),
    "rbp": ("rbp", False),
    "crbp": ("rbp", True),
}
MEASURED, OUT_OF_MEMORY, SKIPPED, OUT_OF_TIME = "measured", "out of memory", "skipped", "out of time"


class Point(NamedTuple):
    """What is to be measured: ``run`` does it. steps: T, None for a model without recurrent layers."""

    job: str
    method: str
    steps: int | None
    run: Callable[[], Measurement]


class MemoryRow(NamedTuple):
    """One point of a curve.

    outcome: "measured"; "out of memory"; "skipped", as fewer steps of the same method ran out of memory; "out of
    time". Milliseconds and GiB are NaN unless measured, GiB always without CUDA.
    """

    job: str
    method: str
    steps: int | None
    milliseconds: float
    gibibytes: float
    outcome: str


def sweep(points: Iterable[Point], seconds: float = float("inf")) -> Iterator[MemoryRow]:
    """Measure one point after another. Memory that runs out ends its curve alone; give each curve in ascending T.

    seconds: after them, no further measurement is started.
    """
    exhausted, end, unknown = set(), time.monotonic() + seconds, Measurement(float("nan"), float("nan"))
    for job, method, steps, run in points:
        measured = None
        if (job, method) in exhausted:
            outcome = SKIPPED
        elif time.monotonic() >= end:
            outcome = OUT_OF_TIME
        else:
            measured = _attempt(run)
            outcome = OUT_OF_MEMORY if measured is None else MEASURED
        if outcome == OUT_OF_MEMORY:
            exhausted.add((job, method))
        yield MemoryRow(job, method, steps, *(measured or unknown), outcome)


def layer_points(
    make: Callable[[str, int], Job],
    methods: Iterable[str],
    steps: Iterable[int],
    device: torch.device,
    precision: str,
    repeats: int,
) -> Iterator[Point]:
    """Points of a recurrent layer, fewest steps first; the form is the one that a user gets.

    Args:
        make: "bptt", "rbp" or "crbp" and T -> job. methods: names in METHODS. precision: name in PRECISIONS.
    """
    for count in sorted(steps):
        for method in methods:
            gradient, penalised = METHODS[method]
            job = make("crbp" if penalised else gradient, count)

            def run(job=job, checkpointed=method == "checkpointed_bptt"):
                return measure_layer(job, checkpointed, device, precision, repeats)

            yield Point(job.name.rpartition(" ")[0], method, count, run)


def measure_layer(job: Job, checkpointed: bool, device: torch.device, precision: str, repeats: int) -> Measurement:
    """Time and peak memory of a job's training step, with weights, drive and cotangent."""
    x, g = drive_and_cotangent(job, device)
    layer = RecurrentLayer(job.cell(), **job.options).to(device).train()
    if checkpointed:
        checkpoint_steps(layer)
    autocast, tf32 = PRECISIONS[precision]
    with allowed_tf32(tf32):
        return measure(lambda: training_step(layer, x, g, autocast), device, repeats)


def _attempt(run: Callable[[], Measurement]) -> Measurement | None:
    """None where memory ran out."""
    # frees what earlier runs left; a failed one's tensors hung on its error, which is gone by now
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    try:
        return run()
    except RuntimeError as error:
        if not _ran_out(error):
            raise
    return None


def _ran_out(error: RuntimeError) -> bool:
    """Libraries report memory in their own ways: "CUFFT_ALLOC_FAILED", "Triton Error [CUDA]: out of memory"."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "ALLOC_FAILED" in text or "out of memory" in text
