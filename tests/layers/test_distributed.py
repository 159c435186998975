"""Two processes (gloo, CPU) against one process on the joined batch."""

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from rfpn.layers import RecurrentLayer
from tests.layers.test_recurrent import METHODS
from tests.problems import GainCell, TanhCell, assert_close, random

WORLD = 2


def build(method) -> nn.Module:
    layer = RecurrentLayer(TanhCell(), 6, **METHODS[method])
    layer.test_tolerance = 1e-6
    return layer


def batch(step: int, rank: int) -> torch.Tensor:
    return random((4, 6), seed=10 * step + rank)


def backward(model, x):
    output = model(x)
    # one backward pass; a mean over samples, so that the mean over processes is that of the joined batch
    (output.hidden.square().sum() / 4 + output.penalty).backward()


def train(method: str, rank: int) -> dict:
    model = DistributedDataParallel(build(method))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    results = {}
    for step in range(10):
        optimizer.zero_grad()
        backward(model, batch(step, rank))
        if step == 0:
            results["gradients"] = {name: p.grad.clone() for name, p in model.module.named_parameters()}
        optimizer.step()
    results["parameters"] = {name: p.detach().clone() for name, p in model.module.named_parameters()}
    optimizer.zero_grad()
    # the second process has no samples
    backward(model, batch(0, rank) if rank == 0 else batch(0, rank)[:0])
    results["one empty"] = {name: p.grad.clone() for name, p in model.module.named_parameters()}
    return results


def evaluate(rank: int) -> torch.Tensor:
    """Steps used by one easy and one hard batch, which stop at different times."""
    model = RecurrentLayer(GainCell(), 500, test_tolerance=1e-6).eval()
    steps = model(GainCell.input([0.1 if rank == 0 else 0.9])).steps
    distributed.barrier()
    return steps


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    results = {method: train(method, rank) for method in METHODS}
    results["steps"] = evaluate(rank)
    torch.save(results, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    multiprocessing.spawn(work, (str(folder),), WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("method", METHODS)
def test_E7_averaged_gradients_are_those_of_the_joined_batch(results, method):
    model = build(method)
    output = model(torch.cat([batch(0, rank) for rank in range(WORLD)]))
    (output.hidden.square().sum() / (4 * WORLD) + output.penalty).backward()
    wanted = {name: p.grad for name, p in model.named_parameters()}
    for result in results:
        assert_close(result[method]["gradients"], wanted, 1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_E8_parameters_are_equal_on_both_processes_after_10_steps(results, method):
    start = dict(build(method).named_parameters())
    one, two = (result[method]["parameters"] for result in results)
    for name in start:
        assert torch.equal(one[name], two[name]) and not torch.equal(one[name], start[name])


@pytest.mark.parametrize("method", METHODS)
def test_C1_C7_one_process_without_samples(results, method):
    one, two = (result[method]["one empty"] for result in results)
    for name in one:
        assert torch.equal(one[name], two[name]) and one[name].isfinite().all() and one[name].abs().sum() > 0


def test_C4_processes_may_stop_at_different_steps(results):
    easy, hard = (int(result["steps"]) for result in results)
    assert easy < hard < 500
