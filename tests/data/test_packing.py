"""Batches packed by workers come out as they went in."""

import pytest
import torch

from rfpn.data.packing import PackedLoader, pack, unpack


def _sample(i, side=4):
    return {"image": torch.full((1, side, side), i, dtype=torch.uint8), "name": f"sample_{i}", "boxes": torch.ones(i, 4)}


def _assert_same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        assert list(one) == list(other) and one["name"] == other["name"]
        assert all(torch.equal(one[key], other[key]) for key in ("image", "boxes"))


def test_equal_sizes_travel_as_one_tensor():
    samples = [_sample(i) for i in range(1, 4)]
    packed = pack(samples)
    assert packed["image"].shape == (3, 1, 4, 4) and isinstance(packed["boxes"], list)
    _assert_same(unpack(packed), samples)


def test_types_and_sizes_are_never_mixed():
    samples = [_sample(1), {**_sample(1), "image": torch.ones(1, 4, 4)}]
    assert isinstance(pack(samples)["image"], list)
    _assert_same(unpack(pack([_sample(1), _sample(2, side=5)])), [_sample(1), _sample(2, side=5)])


def test_samples_of_unlike_keys_stay():
    samples = [{"image": torch.ones(1)}, {"image": torch.ones(1), "more": 1}]
    assert unpack(pack(samples)) is samples


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_yields_lists_of_samples(workers):
    samples = [_sample(i) for i in range(5)]
    batches = list(PackedLoader(samples, batch_size=2, num_workers=workers))
    assert [len(batch) for batch in batches] == [2, 2, 1]
    _assert_same([sample for batch in batches for sample in batch], samples)


def test_workers_without_shared_memory_end_in_one_line(monkeypatch):
    """PyTorch's own workers tell nobody, and the main process waits for ever."""

    class Full:
        @staticmethod
        def dumps(batch):
            raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    monkeypatch.setattr("rfpn.data.packing.ForkingPickler", Full)
    with pytest.raises(OSError, match="no shared memory .*No space left.*DATALOADER.NUM_WORKERS 0"):
        list(PackedLoader([_sample(0)], num_workers=1, multiprocessing_context="fork"))
