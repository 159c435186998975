"""Time, memory and gradient error of recurrent layers: plain and fast forms, and peers that do the same work."""

import functools
import importlib.util
import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Callable, Iterator, NamedTuple, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rfpn.layers import GALAHGRUCell, HGRUCell, RecurrentLayer
from rfpn.layers.fast import bind

# name -> (autocast type or None, TF32 allowed)
PRECISIONS = {"fp32": (None, False), "tf32": (None, True), "bf16": (torch.bfloat16, False)}


class Measurement(NamedTuple):
    """Median milliseconds of a run, and the most memory allocated meanwhile in GiB (NaN without CUDA)."""

    milliseconds: float
    gibibytes: float


class Row(NamedTuple):
    """One line of a table.

    ratio: milliseconds over those of the job's baseline. error: ‖gradient − reference‖ / ‖reference‖ over all
    parameters and the drive; worst: the largest such error of a single one. NaN where there is no reference.
    """

    job: str
    form: str
    milliseconds: float
    gibibytes: float
    ratio: float
    error: float
    worst: float


@dataclass
class Job:
    """A training step of one recurrent layer on random drives and cotangents.

    size: (R, C, H, W). cell: makes the cell. options: of RecurrentLayer. baseline: the form that ratios refer to.
    """

    name: str
    size: tuple[int, int, int, int]
    cell: Callable[[], nn.Module]
    baseline: str
    options: dict = field(default_factory=dict)


def pathfinder(method: str, batch: int = 32, steps: int = 20, terms: int = 15, size: int = 150, kernel_size: int = 15) -> Job:
    """The Pathfinder hGRU: 25 channels. method: "crbp", "rbp" or "bptt"."""
    options = _options(method, steps, terms)
    return Job(f"pathfinder {method}", (batch, 25, size, size), lambda: HGRUCell(25, kernel_size), "plain fp32", options)


def mask_head(method: str, rois: int = 1024, steps: int = 20, terms: int = 15) -> Job:
    """The mask head's hGRU: 256 channels, 14×14, 3×3 kernels. method: "crbp", "rbp" or "bptt"."""
    options = _options(method, steps, terms)
    return Job(f"mask head {method}", (rois, 256, 14, 14), lambda: GALAHGRUCell(256, gate_steps=steps), "plain bf16", options)


def _options(method: str, steps: int, terms: int) -> dict:
    if method not in ("crbp", "rbp", "bptt"):
        raise ValueError(f"method must be crbp, rbp or bptt, got {method!r}")
    if method == "bptt":
        return {"steps": steps, "gradient": "bptt"}
    return {"steps": steps, "gradient": "rbp", "neumann_terms": terms, "lipschitz": method == "crbp"}


def measure(run: Callable[[], object], device: torch.device, repeats: int, warmup: int = 1) -> Measurement:
    """Run ``warmup`` times for compilation and caches, then ``repeats`` times."""
    for _ in range(warmup):
        run()
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    (milliseconds,) = alternate([run], device, repeats)
    return Measurement(milliseconds, torch.cuda.max_memory_allocated(device) / 2**30 if cuda else float("nan"))


def alternate(runs: Sequence[Callable[[], object]], device: torch.device, repeats: int) -> list[float]:
    """Median milliseconds of each of ``runs``, taken in turns, so that a host that slows down slows all of them."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, own in zip(runs, times):
            start = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            own.append(1000 * (time.perf_counter() - start))
    return [statistics.median(own) for own in times]


def compare(job: Job, device: torch.device, repeats: int = 5, peers: bool = False) -> Iterator[Row]:
    """Rows of plain and fast forms in single precision, TF32 (CUDA) and bfloat16.

    ``peers`` adds BPTT of as many steps with activation checkpointing and, where it is installed, TorchDEQ's layer.
    Peers have no penalty: compare them in jobs without one.
    """
    x, g = drive_and_cotangent(job, device)
    forms = _forms(job, device) | (_peers(job) if peers else {})
    reference, baseline, waiting = None, None, []
    for name, make in forms.items():
        autocast, tf32 = PRECISIONS[name.split()[-1]]
        torch.manual_seed(1)
        model = make().to(device).train()
        with allowed_tf32(tf32):
            gradient = training_step(model, x, g, autocast)
            # the same random weights under the same names as the reference: plain fp32 comes first
            reference = gradient if reference is None else reference
            errors = _errors(gradient, reference)
            measured = measure(lambda: training_step(model, x, g, autocast), device, repeats)
        waiting.append(Row(job.name, name, *measured, float("nan"), *errors))
        baseline = measured.milliseconds if name == job.baseline else baseline
        if baseline:
            yield from (row._replace(ratio=row.milliseconds / baseline) for row in waiting)
            waiting = []
        del model, gradient


def drive_and_cotangent(job: Job, device: torch.device) -> tuple[Tensor, Tensor]:
    """Drive x and cotangent g (R, C, H, W) of a job, always the same."""
    torch.manual_seed(0)
    x = torch.rand(job.size, device=device).square()
    return x, torch.randn_like(x) / x.numel() ** 0.5


def checkpoint_steps(layer: RecurrentLayer) -> RecurrentLayer:
    """The layer itself, whose backward pass now computes every recorded step anew from its state (plain form)."""
    layer.fast = "off"
    # without random numbers in a cell, the states of the generators need not be kept
    layer.step = functools.partial(checkpoint, layer.step, use_reentrant=False, preserve_rng_state=False)
    return layer


def _forms(job: Job, device: torch.device) -> dict[str, Callable[[], nn.Module]]:
    """Form, which ends in a name of PRECISIONS -> makes the layer."""

    def layer(fast):
        return lambda: RecurrentLayer(job.cell(), fast=fast, **job.options)

    forms = {"plain fp32": layer("off"), "plain bf16": layer("off")}
    if device.type == "cuda":
        forms["plain tf32"] = layer("off")
        forms |= {f"fast {precision}": layer("auto") for precision in ("bf16", "tf32", "fp32")}
    elif bind(job.cell(), torch.zeros(job.size)) is not None:
        forms["fast fp32"] = layer("auto")
    return forms


def _peers(job: Job) -> dict[str, Callable[[], nn.Module]]:
    def checkpointed():
        return checkpoint_steps(RecurrentLayer(job.cell(), job.options["steps"], gradient="bptt"))

    def deq():
        return _Equilibrium(job.cell(), _torchdeq(job.options["steps"], job.options.get("neumann_terms", 15)))

    peers = {"checkpointed bptt": checkpointed}
    if importlib.util.find_spec("torchdeq") is not None:
        peers["torchdeq"] = deq
    return {f"{name} {precision}": make for name, make in peers.items() for precision in ("fp32", "bf16")}


def _torchdeq(steps: int, terms: int) -> nn.Module:
    """TorchDEQ's layer set to the work of ``rbp``: as many steps, none of them judged, and as many terms.

    Its last step comes after its solver's, so the solver gets one less. Its backward solver starts from zero, so
    term 0 costs it one iteration. hook_ift is its form that linearises at h_{T−1} without evaluating the cell again.
    """
    from torchdeq import get_deq
    from torchdeq.solver import fixed_point_iter, register_solver

    # by default its solvers return the iterate of least residual
    register_solver("all_steps", functools.partial(fixed_point_iter, return_final=True))
    limits = {"f_max_iter": steps - 1, "b_max_iter": terms + 1, "f_tol": 0.0, "b_tol": 0.0}
    # the variant without statistics is its fastest, but knows no zero steps and does not work as its backward solver
    forward = "simple_fixed_point_iter" if steps > 1 else "all_steps"
    return get_deq(f_solver=forward, b_solver="all_steps", hook_ift=True, **limits)


class _Equilibrium(nn.Module):
    def __init__(self, cell: nn.Module, solver: nn.Module):
        super().__init__()
        self.cell, self.solver = cell, solver

    def forward(self, x: Tensor) -> Tensor:
        return self.solver(lambda state: self.cell(x, state), torch.zeros_like(x))[0][-1]


def training_step(model: nn.Module, x: Tensor, g: Tensor, autocast: torch.dtype | None) -> dict[str, Tensor]:
    """Gradients of one forward and backward pass."""
    model.zero_grad(set_to_none=True)
    x = x.detach().requires_grad_()
    with torch.autocast(x.device.type, autocast, enabled=autocast is not None):
        output = model(x)
        hidden, penalty = (output, 0) if isinstance(output, Tensor) else (output.hidden, output.penalty)
        loss = (hidden * g).sum() + 10 * penalty
    loss.backward()
    return {"x": x.grad, **{name: p.grad for name, p in model.named_parameters()}}


def _errors(gradient: dict[str, Tensor], reference: dict[str, Tensor]) -> tuple[float, float]:
    if gradient.keys() != reference.keys():
        return float("nan"), float("nan")
    square = {name: (gradient[name].double() - value.double()).square().sum() for name, value in reference.items()}
    norm = {name: value.double().square().sum() for name, value in reference.items()}
    whole = (sum(square.values()) / sum(norm.values())).sqrt()
    return float(whole), max(float((square[name] / norm[name]).sqrt()) for name in norm if norm[name] > 0)


@contextmanager
def allowed_tf32(tf32: bool) -> Iterator[None]:
    """TF32 as told, and the library's fastest convolutions."""
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, tf32
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=tf32):
            yield
    finally:
        matmul.allow_tf32 = before
