"""Jobs that test_distributed.py starts under torchrun, one process a rank; on GPUs where there are enough.

    torchrun --nproc-per-node 2 tests/engine/distributed_job.py JOB ...

JOB is gradients, steps, drawn, accumulate, metrics, statistics, empty, stopping, nonfinite, resume or exception.
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
from detectron2.structures import BitMasks, Boxes, Instances
from detectron2.utils import comm
from detectron2.utils.events import EventStorage
from PIL import Image
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[2]))
from rfpn.data.pathfinder.registration import register_pathfinder  # noqa: E402
from rfpn.engine.launch import launch  # noqa: E402
from rfpn.engine.setup import load_cfg  # noqa: E402
from rfpn.engine.step import TrainStep  # noqa: E402
from rfpn.engine.trainer import Trainer  # noqa: E402
from rfpn.modeling import HGRUMaskHead  # noqa: E402

ROIS = 6


def device() -> torch.device:
    enough = torch.cuda.is_available() and torch.cuda.device_count() >= comm.get_local_size()
    return torch.device("cuda", comm.get_local_rank()) if enough else torch.device("cpu")


def make_head(gradient="rbp", penalty=True, **options) -> HGRUMaskHead:
    torch.manual_seed(0)
    recurrent = {"steps": 5, "gradient": gradient, "lipschitz": penalty, "coefficient": 0.0, **options}
    head = HGRUMaskHead(
        32, num_classes=2, deconv_channels=8, norm_groups=8, lipschitz_weight=float(penalty), recurrent=recurrent
    )
    with torch.no_grad():
        # far from the start, where most of the gradient would be below float32's resolution
        head.predictor.weight.normal_(std=0.1)
    return head.to(device())


def batch(rank: int, count: int = ROIS, seed: int = 0):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    features = torch.rand(count, 32, 14, 14, generator=generator)
    instances = Instances((64, 64))
    instances.proposal_boxes = Boxes(torch.tensor([[4.0, 4.0, 40.0, 40.0]]).repeat(count, 1))
    instances.gt_classes = torch.zeros(count, dtype=torch.int64)
    instances.gt_masks = BitMasks(torch.rand(count, 64, 64, generator=generator) > 0.5)
    return features.to(device()), [instances.to(device())]


def distribute(model: torch.nn.Module) -> DistributedDataParallel:
    index = [device().index] if device().type == "cuda" else None
    return DistributedDataParallel(model, device_ids=index, broadcast_buffers=False)


def gradients() -> None:
    """Averaged gradients equal those of one process on the joined batch, for every gradient method."""
    ranks = comm.get_world_size()
    for gradient, penalty in (("bptt", False), ("bptt", True), ("rbp", False), ("rbp", True)):
        # float64: some gradients here are differences of large numbers
        head = distribute(make_head(gradient, penalty).double())
        x, instances = batch(comm.get_rank())
        with EventStorage():
            sum(head(x.double(), instances).values()).backward()
        averaged = {name: p.grad.clone() for name, p in head.module.named_parameters()}
        parts = [batch(rank) for rank in range(ranks)]
        single = make_head(gradient, penalty).double()
        single.norm = torch.nn.BatchNorm2d(32).to(device()).double()
        with EventStorage():
            joined = single(torch.cat([x for x, _ in parts]).double(), [i for _, instances in parts for i in instances])
            sum(joined.values()).backward()
        for name, p in single.named_parameters():
            error = (averaged[name] - p.grad).norm() / p.grad.norm().clamp(min=1e-6)
            assert error < 1e-5, f"{gradient} penalty={penalty} {name}: {error}"


class Batches:
    def __iter__(self):
        index = 0
        while True:
            index += 1
            yield index


class Wrapped(torch.nn.Module):
    """A head whose data come from the iteration's number."""

    def __init__(self, head, count=lambda index: ROIS, spoil=None):
        super().__init__()
        self.head, self.count, self.spoil = head, count, spoil

    def forward(self, index):
        features, (instances,) = batch(comm.get_rank(), self.count(index), seed=index)
        place = next(self.head.parameters()).device
        losses = self.head(features.to(place), [instances.to(place)])
        if self.spoil == (comm.get_rank(), index):
            losses["loss_lipschitz"] = losses["loss_lipschitz"] * float("nan")
        return losses


def train(model: torch.nn.Module, steps: int, **options) -> TrainStep:
    wrapped = distribute(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01, momentum=0.9)
    trainer = TrainStep(wrapped, Batches(), optimizer, **options)
    trainer.train(0, steps)
    return trainer


def assert_equal_parameters(model: torch.nn.Module) -> None:
    for name, value in model.named_parameters():
        copies = [torch.empty_like(value) for _ in range(comm.get_world_size())]
        dist.all_gather(copies, value.detach())
        assert all(torch.equal(copy, value) for copy in copies), f"{name} differs between ranks"


def steps() -> None:
    """Ten steps of C-RBP on different data leave bit-equal parameters on all ranks."""
    model = Wrapped(make_head())
    train(model, 10)
    assert_equal_parameters(model)


def drawn() -> None:
    """Numbers of steps drawn anew are the same on all ranks, whose other random numbers differ."""
    head, numbers = make_head(extra_steps=20), []
    head.recurrent.register_forward_hook(lambda *call: numbers.append(int(call[2].steps[0])))
    train(Wrapped(head), 6, seed=1)
    assert comm.all_gather(numbers) == [numbers] * comm.get_world_size() and len(set(numbers)) > 2, numbers
    own = float(torch.rand(()))
    assert len(set(comm.all_gather(own))) == comm.get_world_size()


def accumulate() -> None:
    """Gradients of several batches are added up before one step; ranks talk once a step and stay equal."""
    model = Wrapped(make_head())
    train(model, 3, accumulate=2)
    assert_equal_parameters(model)


def metrics() -> None:
    """Logged losses are means over ranks, the logged wait for data is the longest."""

    class Ranked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones((), device=device()))

        def forward(self, index):
            return {"loss_a": self.weight * comm.get_rank(), "loss_b": self.weight * 2}

    class Slow(Batches):
        def __iter__(self):
            for index in super().__iter__():
                time.sleep(0.2 * comm.get_rank())
                yield index

    step = TrainStep(distribute(Ranked()), Slow(), torch.optim.SGD([torch.nn.Parameter(torch.ones(()))], lr=0.0))
    step.train(0, 1)
    if comm.is_main_process():
        scalars = {name: value for name, (value, _) in step.storage.latest().items()}
        last = comm.get_world_size() - 1
        assert scalars["loss_a"] == last / 2 and scalars["loss_b"] == 2 and scalars["total_loss"] == 2 + last / 2, scalars
        assert 0.2 * last <= scalars["data_time"] < 0.2 * last + 1, scalars


def statistics() -> None:
    """Evaluation takes the main process's running statistics on all ranks, as a checkpoint does."""
    model = torch.nn.BatchNorm2d(3).to(device())
    model.running_mean.fill_(comm.get_rank() + 1.0)
    cfg = load_cfg("", ["DATASETS.TEST", ()])
    assert Trainer.test(cfg, model, []) == {}
    assert (model.running_mean == 1.0).all()


def empty() -> None:
    """No RoI on one rank, then on all of them, and unequal numbers: every step ends."""
    model = Wrapped(make_head(), count=lambda index: [comm.get_rank() * 3, 0, 2 + comm.get_rank()][index % 3])
    train(model, 6)
    assert_equal_parameters(model)


def stopping() -> None:
    """Early stop per RoI on an easy and a hard batch: ranks use different numbers of steps and meet again."""
    head = make_head(test_steps=50, test_tolerance=1e-2).eval()
    x, _ = batch(comm.get_rank())
    with torch.no_grad():
        output = head.recurrent(x * (0.0 if comm.get_rank() == 0 else 5.0))
    assert len(comm.all_gather(int(output.steps.sum()))) == comm.get_world_size()


def nonfinite() -> None:
    """A NaN on one rank: all ranks skip one, then all end with the loss's name; weights stay equal and finite."""
    model = Wrapped(make_head(), spoil=(1, 2))
    trainer = train(model, 4, skip_nonfinite=1)
    assert trainer.skipped == 1
    assert_equal_parameters(model)
    assert_all_end(Wrapped(make_head(), spoil=(1, 2)), "iteration 1: not finite: loss_lipschitz")
    # the second of two accumulated batches
    assert_all_end(Wrapped(make_head(), spoil=(1, 4)), "iteration 1: not finite: loss_lipschitz", accumulate=2)
    # all losses are finite, one rank's gradient is not
    model = Wrapped(make_head())
    if comm.get_rank() == 1:
        model.head.predictor.weight.register_hook(lambda gradient: gradient * float("inf"))
    assert_all_end(model, "iteration 0: not finite: gradient")


def assert_all_end(model: torch.nn.Module, message: str, **options) -> None:
    """Every rank stops with this message and finite weights."""
    try:
        train(model, 4, **options)
    except FloatingPointError as error:
        assert message in str(error), error
    else:
        raise AssertionError("no rank may go on")
    assert all(p.isfinite().all() for p in model.parameters())


def resume() -> None:
    """A run that is stopped and resumed on all ranks ends bit by bit like a whole one, and so do its samples."""
    folder = comm.all_gather(tempfile.mkdtemp() if comm.is_main_process() else None)[0]
    if comm.is_main_process():
        generator = np.random.default_rng(0)
        for kind in ("imgs", "seg"):
            os.makedirs(os.path.join(folder, kind, "0"))
            for i in range(7):
                picture = generator.integers(0, 2, (16, 16), dtype=np.uint8) * 255
                Image.fromarray(picture).save(os.path.join(folder, kind, "0", f"sample_{i}.png"))
    comm.synchronize()
    register_pathfinder("resume_train", folder)
    whole, stopped, resumed = (
        run(folder, name, stop, resume) for name, stop, resume in (("a", 6, False), ("b", 4, False), ("b", 6, True))
    )
    assert stopped.samples == 16 and resumed.start_iter == 4 and resumed.samples == whole.samples == 24
    state = resumed.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in whole.model.state_dict().items())
    assert_equal_parameters(resumed.model)
    comm.synchronize()
    if comm.is_main_process():
        shutil.rmtree(folder)


def run(folder: str, name: str, iterations: int, resume: bool) -> Trainer:
    """A run of the Pathfinder model; the learning rate follows from the whole schedule of 6 iterations."""
    out = os.path.join(folder, name)
    options = ["DATASETS.TRAIN", ("resume_train",), "DATASETS.TEST", (), "INPUT.PATHFINDER_SIZE", 16, "OUTPUT_DIR", out]
    options += ["SOLVER.MAX_ITER", 6, "MODEL.RECURRENT.LIPSCHITZ.PROBE", "rademacher", "MODEL.DEVICE", str(device())]
    config = Path(__file__).parents[2] / "configs" / "quick_schedules" / "pathfinder_quick.yaml"
    cfg = load_cfg(str(config), [*options, "SEED", 0])
    os.makedirs(out, exist_ok=True)
    torch.manual_seed(0)
    trainer = Trainer(cfg)
    trainer.resume_or_load(resume)
    trainer.max_iter = iterations
    trainer.train()
    comm.synchronize()
    return trainer


def exception() -> None:
    """One rank fails in the third step, when the others wait for its gradients; the job must end."""
    model = Wrapped(make_head())
    if comm.get_rank() == 1:
        count = model.count
        model.count = lambda index: count(index) if index < 3 else fail()
    train(model, 5)


def fail() -> None:
    raise RuntimeError("rank 1 fails on purpose")


def main(args: SimpleNamespace) -> None:
    for name in args.names:
        globals()[name]()
        comm.synchronize()
        if comm.is_main_process():
            # at once: what waits in a buffer is lost where a later job fails
            print(f"{name} passed on {comm.get_world_size()} ranks, {device().type}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    launch(main, SimpleNamespace(names=sys.argv[1:], config_file="", opts=[]))
