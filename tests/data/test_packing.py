"""Batches packed by workers come out as they went in."""

import pickle
import signal

import numpy as np
import pytest
import torch
from detectron2.structures import BitMasks, Boxes, Instances, PolygonMasks

from rfpn.data.packing import PackedLoader, pack, unpack
from rfpn.data.workers import interrupted_after


def _sample(i, side=4):
    instances = Instances((side, side))
    instances.gt_boxes = Boxes(torch.rand(i, 4))
    instances.gt_masks = BitMasks(torch.rand(i, side, side) > 0.5)
    return {"image": torch.full((1, side, side), i, dtype=torch.uint8), "name": f"sample_{i}", "instances": instances}


def _assert_same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        assert list(one) == list(other) and one["name"] == other["name"]
        assert torch.equal(one["image"], other["image"])
        assert torch.equal(one["instances"].gt_boxes.tensor, other["instances"].gt_boxes.tensor)
        assert torch.equal(one["instances"].gt_masks.tensor, other["instances"].gt_masks.tensor)


def test_all_tensors_of_a_batch_are_one():
    samples = [_sample(i, side=4 + i) for i in range(4)]
    pickled, buffer = pack(samples)
    assert buffer.is_shared() and len(buffer) >= sum(sample["image"].numel() for sample in samples)
    found = unpack(pickled, buffer)
    _assert_same(found, samples)
    assert {tensor.untyped_storage().data_ptr() for tensor in (found[0]["image"], found[3]["instances"].gt_boxes.tensor)} == {
        buffer.data_ptr()
    }


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.float64, torch.int64, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (5, 3)])
def test_types_and_shapes(dtype, shape):
    tensors = [torch.ones(7, dtype=torch.uint8), torch.rand(shape).to(dtype), (torch.rand(4, 6) > 0.5).T]
    found = unpack(*pack(tensors))
    for one, other in zip(found, tensors, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


def test_tensors_of_a_batch_do_not_overlap():
    first, second = unpack(*pack([torch.zeros(5, dtype=torch.uint8), torch.zeros(5)]))
    first.fill_(255)
    assert not second.any()


@pytest.mark.parametrize(
    "value", [torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2)), torch.eye(2).to_sparse()]
)
def test_what_is_no_plain_tensor_is_pickled_as_it_is(value):
    (found,) = unpack(*pack([value]))
    assert type(found) is type(value) and found.layout == value.layout and found.requires_grad == value.requires_grad
    assert torch.equal(found.to_dense() if found.is_sparse else found, value.to_dense() if value.is_sparse else value)


def test_other_values_travel_too():
    samples = [{"polygons": PolygonMasks([[np.arange(6.0)]]), "none": None, "numbers": (1, 2.5)}, {"another": "key"}]
    found = unpack(*pack(samples))
    assert pickle.dumps(found[0]["numbers"]) == pickle.dumps((1, 2.5)) and found[1] == {"another": "key"}
    assert np.array_equal(found[0]["polygons"].polygons[0][0], np.arange(6.0))


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_yields_lists_of_samples(workers):
    samples = [_sample(i) for i in range(5)]
    batches = list(PackedLoader(samples, batch_size=2, num_workers=workers))
    assert [len(batch) for batch in batches] == [2, 2, 1]
    _assert_same([sample for batch in batches for sample in batch], samples)


def test_workers_without_shared_memory_end_in_one_line(monkeypatch):
    """PyTorch's own workers tell nobody, and the main process waits for ever."""

    def full(self):
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    with pytest.raises(OSError, match="no shared memory .*No space left.*DATALOADER.NUM_WORKERS 0"):
        list(PackedLoader([_sample(0)], num_workers=1, multiprocessing_context="fork"))


class _Interrupted(list):
    """Each sample comes with a Ctrl-C to the process that reads it."""

    def __getitem__(self, index):
        signal.raise_signal(signal.SIGINT)
        return super().__getitem__(index)


def test_workers_leave_ctrl_c_to_the_main_process():
    """A worker that it ends would be reported as lost for lack of memory."""
    samples = [_sample(i) for i in range(4)]
    batches = list(PackedLoader(_Interrupted(samples), batch_size=2, num_workers=2))
    _assert_same([sample for batch in batches for sample in batch], samples)


def test_ctrl_c_while_workers_start_comes_afterwards():
    handler, reached = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt):
        with interrupted_after():
            signal.raise_signal(signal.SIGINT)
            reached.append("end of the block")
        reached.append("what follows")
    assert reached == ["end of the block"] and signal.getsignal(signal.SIGINT) is handler
