"""Training batches that follow from seed and position: any number of workers and processes, from any position on."""

import itertools
import random

import numpy as np
import pytest
import torch
from detectron2.utils import comm

from rfpn.config import get_cfg
from rfpn.data.batches import build_positioned_loader, seed_everything

SAMPLERS = ["TrainingSampler", "RandomSubsetTrainingSampler", "RepeatFactorTrainingSampler"]


def draw(record: dict) -> dict:
    """A mapper that is nothing but random: index and a number from each source."""
    return {"drawn": (record["index"], random.random(), float(np.random.rand()), float(torch.rand(())))}


def records(count: int = 10) -> list[dict]:
    return [
        {"index": i, "width": 30 + 20 * (i % 3), "height": 50, "annotations": [{"category_id": i % 4 // 3}]}
        for i in range(count)
    ]


def loader(seed=1, workers=0, batch=4, sampler="TrainingSampler", grouping=False):
    cfg = get_cfg()
    cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_WORKERS, cfg.DATALOADER.SAMPLER_TRAIN = batch, workers, sampler
    cfg.DATALOADER.ASPECT_RATIO_GROUPING = grouping
    cfg.DATALOADER.RANDOM_SUBSET_RATIO, cfg.DATALOADER.REPEAT_THRESHOLD = 0.5, 0.6
    return build_positioned_loader(cfg, records(), draw, seed)


def take(batches, count: int = 8) -> list[list[tuple]]:
    return [[sample["drawn"] for sample in batch] for batch in itertools.islice(batches, count)]


@pytest.mark.parametrize("grouping", [False, True])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_any_position_is_where_a_run_from_the_start_comes_by(sampler, grouping):
    whole = take(loader(sampler=sampler, grouping=grouping), 12)
    resumed = loader(seed=0, sampler=sampler, grouping=grouping)
    resumed.batch_sampler.seek(1, 7 * 4)
    assert take(resumed, 5) == whole[7:]


def test_a_position_within_a_batch_is_rounded_down_and_told():
    resumed = loader(batch=4)
    resumed.batch_sampler.seek(1, 3 * 4 + 3)
    assert resumed.batch_sampler.samples == 12
    assert take(resumed, 5) == take(loader(batch=4), 8)[3:]


def test_a_position_is_rounded_to_whole_batches_of_all_processes(monkeypatch):
    monkeypatch.setattr(comm, "get_world_size", lambda: 2)
    resumed = loader(batch=4)
    resumed.batch_sampler.seek(1, 3 * 4 + 2)
    assert resumed.batch_sampler.samples == 12


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_order_follows_from_the_seed(sampler):
    orders = [[[index for index, *_ in batch] for batch in take(loader(seed, sampler=sampler))] for seed in (1, 2, 1)]
    assert orders[0] == orders[2] != orders[1]


def test_every_epoch_is_a_new_permutation_and_every_sample_has_its_own_numbers():
    samples = sum(take(loader(), 10), [])
    orders = [[index for index, *_ in samples[i : i + 10]] for i in range(0, 40, 10)]
    assert all(sorted(order) == list(range(10)) for order in orders) and orders[0] != orders[1]
    assert all(len({sample[source] for sample in samples}) == 40 for source in (1, 2, 3))
    assert take(loader(seed=2)) != take(loader(seed=1))


@pytest.mark.parametrize("root, threshold, times", [(True, 0.8, 2), (False, 0.6, 3)])
def test_records_of_rare_classes_come_again(root, threshold, times):
    """Two of ten records have a class of frequency 0.2; the other is more frequent than either threshold."""
    cfg = get_cfg()
    if not root:
        if "REPEAT_SQRT" not in cfg.DATALOADER:
            pytest.skip("Detectron2 0.6 has no DATALOADER.REPEAT_SQRT")
        cfg.DATALOADER.REPEAT_SQRT = False
    cfg.DATALOADER.SAMPLER_TRAIN, cfg.DATALOADER.REPEAT_THRESHOLD = "RepeatFactorTrainingSampler", threshold
    cfg.DATALOADER.NUM_WORKERS, cfg.DATALOADER.ASPECT_RATIO_GROUPING, cfg.SOLVER.IMS_PER_BATCH = 0, False, 8 + 2 * times
    (epoch,) = take(build_positioned_loader(cfg, records(), draw, 1), 1)
    assert sorted(index for index, *_ in epoch) == sorted([0, 1, 2, 4, 5, 6, 8, 9] + [3, 7] * times)


def test_repeat_factors_need_annotations():
    cfg = get_cfg()
    cfg.DATALOADER.SAMPLER_TRAIN, cfg.DATALOADER.ASPECT_RATIO_GROUPING = "RepeatFactorTrainingSampler", False
    with pytest.raises(ValueError, match="DATALOADER.SAMPLER_TRAIN RepeatFactorTrainingSampler needs records with annotations"):
        build_positioned_loader(cfg, [{"file_name": "a.png"}], draw, 1)


def test_a_sampler_that_this_detectron2_lacks_is_named():
    cfg = get_cfg()
    cfg.DATALOADER.SAMPLER_TRAIN = "RandomSubsetTrainingSampler"
    cfg.DATALOADER.pop("RANDOM_SUBSET_RATIO", None)
    cfg.DATALOADER.ASPECT_RATIO_GROUPING = False
    with pytest.raises(ValueError, match="DATALOADER.SAMPLER_TRAIN RandomSubsetTrainingSampler needs a newer Detectron2"):
        build_positioned_loader(cfg, records(), draw, 1)


def test_workers_change_nothing():
    alone = take(loader())
    several = loader(workers=2)
    assert several.num_workers == 2
    assert take(several) == alone
    several.batch_sampler.seek(1, 3 * 4)
    assert take(several, 5) == alone[3:]


def test_processes_share_one_stream(monkeypatch):
    alone = take(loader())
    monkeypatch.setattr(comm, "get_world_size", lambda: 2)
    shares = []
    for rank in range(2):
        monkeypatch.setattr(comm, "get_rank", lambda: rank)
        half = loader()
        assert {len(batch) for batch in take(half)} == {2}
        half.batch_sampler.seek(1, 4 * 4)
        shares.append(take(half, 4))
    for whole, *parts in zip(alone[4:], *shares):
        assert sorted(whole) == sorted(sum(parts, []))


def test_groups_keep_to_one_side_of_the_aspect_ratio():
    batches = take(loader(grouping=True), 12)
    wide = [{records()[index]["width"] > 50 for index, *_ in batch} for batch in batches]
    assert all(len(sides) == 1 for sides in wide) and {True, False} == set.union(*wide)


def test_places_have_numbers_of_their_own():
    drawn = set()
    for place in [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]:
        seed_everything(5, *place)
        drawn.add((random.random(), np.random.rand(), float(torch.rand(()))))
    assert len(drawn) == 6


@pytest.mark.parametrize(
    "options, words",
    [
        ({"batch": 0}, "SOLVER.IMS_PER_BATCH must be a multiple of the 1 processes, got 0"),
        ({"sampler": "Sorted"}, "DATALOADER.SAMPLER_TRAIN must be one of"),
    ],
)
def test_what_cannot_work_is_named(options, words):
    with pytest.raises(ValueError, match=words):
        loader(**options)


def test_groups_need_sizes():
    cfg = get_cfg()
    with pytest.raises(ValueError, match="DATALOADER.ASPECT_RATIO_GROUPING"):
        build_positioned_loader(cfg, [{"file_name": "a.png"}], draw, 0)
