"""Time, memory and gradient error of recurrent layers: plain and fast forms, and peers that do the same work."""

import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Callable, Iterator, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rfpn.layers import GALAHGRUCell, HGRUCell, RecurrentLayer


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


def pathfinder(method: str, batch: int = 32, steps: int = 20, terms: int = 15, size: int = 150) -> Job:
    """The Pathfinder hGRU: 25 channels, 15×15 kernels. method: "crbp", "rbp" or "bptt"."""
    options = _options(method, steps, terms)
    return Job(f"pathfinder {method}", (batch, 25, size, size), lambda: HGRUCell(25, 15), "plain fp32", options)


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


def measure(run: Callable[[], object], device: torch.device, repeats: int) -> Measurement:
    """Run once for compilation and caches, then ``repeats`` times."""
    run()
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        if cuda:
            torch.cuda.synchronize(device)
        times.append(1000 * (time.perf_counter() - start))
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if cuda else float("nan")
    return Measurement(statistics.median(times), memory)


def compare(job: Job, device: torch.device, repeats: int = 5, peers: bool = False) -> Iterator[Row]:
    """Rows of plain and fast forms in single precision, TF32 (CUDA) and bfloat16.

    ``peers`` adds BPTT of as many steps with activation checkpointing and, where it is installed, TorchDEQ's layer.
    Peers have no penalty: compare them in jobs without one.
    """
    torch.manual_seed(0)
    x = torch.rand(job.size, device=device).square()
    g = torch.randn_like(x) / x.numel() ** 0.5
    forms = _forms(job, device) | (_peers(job) if peers else {})
    reference, baseline, waiting = None, None, []
    for name, (make, autocast, tf32) in forms.items():
        torch.manual_seed(1)
        model = make().to(device).train()
        with _precision(tf32):
            gradient = _step(model, x, g, autocast)
            # the same random weights under the same names as the reference: plain fp32 comes first
            reference = gradient if reference is None else reference
            errors = _errors(gradient, reference)
            measured = measure(lambda: _step(model, x, g, autocast), device, repeats)
        waiting.append(Row(job.name, name, *measured, float("nan"), *errors))
        baseline = measured.milliseconds if name == job.baseline else baseline
        if baseline:
            yield from (row._replace(ratio=row.milliseconds / baseline) for row in waiting)
            waiting = []
        del model, gradient


def _forms(job: Job, device: torch.device) -> dict:
    """Form -> (makes the layer, autocast type or None, TF32 allowed)."""

    def layer(fast):
        return lambda: RecurrentLayer(job.cell(), fast=fast, **job.options)

    forms = {"plain fp32": (layer("off"), None, False), "plain bf16": (layer("off"), torch.bfloat16, False)}
    if device.type == "cuda":
        forms["plain tf32"] = (layer("off"), None, True)
        forms["fast bf16"] = (layer("auto"), torch.bfloat16, False)
        forms["fast tf32"] = (layer("auto"), None, True)
        forms["fast fp32"] = (layer("auto"), None, False)
    return forms


def _peers(job: Job) -> dict:
    peers = {
        f"checkpointed bptt {name}": (lambda: _Checkpointed(job.cell(), job.options["steps"]), autocast, False)
        for name, autocast in (("fp32", None), ("bf16", torch.bfloat16))
    }
    try:
        from torchdeq import get_deq
    except ImportError:
        return peers
    options = {"f_max_iter": job.options["steps"], "b_max_iter": job.options.get("neumann_terms", 15)}
    tolerances = {"f_tol": 0.0, "b_tol": 0.0, "ift": True}

    def deq():
        solver = get_deq(f_solver="fixed_point_iter", b_solver="fixed_point_iter", **options, **tolerances)
        return _Equilibrium(job.cell(), solver)

    return peers | {"torchdeq fp32": (deq, None, False), "torchdeq bf16": (deq, torch.bfloat16, False)}


class _Checkpointed(nn.Module):
    def __init__(self, cell: nn.Module, steps: int):
        super().__init__()
        self.cell, self.steps = cell, steps

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x)
        for _ in range(self.steps):
            state = checkpoint(self.cell, x, state, use_reentrant=False)
        return state


class _Equilibrium(nn.Module):
    def __init__(self, cell: nn.Module, solver: nn.Module):
        super().__init__()
        self.cell, self.solver = cell, solver

    def forward(self, x: Tensor) -> Tensor:
        return self.solver(lambda state: self.cell(x, state), torch.zeros_like(x))[0][-1]


def _step(model: nn.Module, x: Tensor, g: Tensor, autocast: torch.dtype | None) -> dict[str, Tensor]:
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
def _precision(tf32: bool) -> Iterator[None]:
    """TF32 as told, and the library's fastest convolutions."""
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, tf32
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=tf32):
            yield
    finally:
        matmul.allow_tf32 = before
