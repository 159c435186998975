"""Jobs that test_distributed.py starts under torchrun, one process a rank; on GPUs where there are enough.

    torchrun --nproc-per-node 2 tests/engine/distributed_job.py gradients|steps|accumulate|empty|stopping|nonfinite|exception
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from detectron2.structures import BitMasks, Boxes, Instances
from detectron2.utils import comm
from detectron2.utils.events import EventStorage
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[2]))
from rfpn.engine.launch import launch  # noqa: E402
from rfpn.engine.step import TrainStep  # noqa: E402
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


def distribute(head: HGRUMaskHead) -> DistributedDataParallel:
    index = [head.deconv.weight.device.index] if head.deconv.weight.is_cuda else None
    return DistributedDataParallel(head, device_ids=index, broadcast_buffers=False)


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
        losses = self.head(*batch(comm.get_rank(), self.count(index), seed=index))
        if self.spoil == (comm.get_rank(), index):
            losses["loss_lipschitz"] = losses["loss_lipschitz"] * float("nan")
        return losses


def train(model: torch.nn.Module, steps: int, **options) -> TrainStep:
    index = [device().index] if device().type == "cuda" else None
    wrapped = DistributedDataParallel(model, device_ids=index, broadcast_buffers=False)
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


def accumulate() -> None:
    """Gradients of several batches are added up before one step; ranks talk once a step and stay equal."""
    model = Wrapped(make_head())
    train(model, 3, accumulate=2)
    assert_equal_parameters(model)


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
    model = Wrapped(make_head(), spoil=(1, 2))
    try:
        train(model, 4)
    except FloatingPointError as error:
        assert "loss_lipschitz" in str(error) and "iteration 1" in str(error), error
    else:
        raise AssertionError("no rank may go on")
    assert all(p.isfinite().all() for p in model.parameters())


def exception() -> None:
    """One rank fails; the job must end."""
    if comm.get_rank() == 1:
        raise RuntimeError("rank 1 fails on purpose")
    train(Wrapped(make_head()), 3)


def main(name: str) -> None:
    globals()[name]()
    comm.synchronize()
    if comm.is_main_process():
        print(f"{name} passed on {comm.get_world_size()} ranks, {device().type}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    launch(main, sys.argv[1])
