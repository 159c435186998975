"""Training batches that follow from a seed and a position alone, so that a stopped run goes on where it was."""

import collections
import itertools
import random
from functools import partial
from typing import Callable, Iterator, Sequence

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.data import DatasetFromList, MapDataset
from detectron2.data.samplers import RandomSubsetTrainingSampler, RepeatFactorTrainingSampler, TrainingSampler
from detectron2.utils import comm
from torch.utils.data import DataLoader, Dataset, Sampler

from rfpn.data.packing import PackedLoader


def seed_of(seed: int, *place: int) -> int:
    """A seed for one place of a run: other places give unrelated ones."""
    return int(np.random.SeedSequence(seed, spawn_key=place).generate_state(1)[0])


def seed_everything(seed: int, *place: int) -> None:
    """Seed the random numbers of Python, numpy and torch for one place (sample, iteration, ...) of a run."""
    number = seed_of(seed, *place)
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


class PositionedBatches(Sampler):
    """This process's batches of an endless sampler, from any position on.

    Yields lists of (seed, position, index): position counts the samples drawn by all processes together, index is that
    of a record. Batches are drawn in the main process and so depend on the seed, but not on the number of workers; the
    samples of all processes together do not depend on the number of processes either, as long as there are no groups.
    """

    def __init__(
        self, sampler: Callable[[int], Sampler], batch_size: int, seed: int, groups: Sequence[int] | None = None
    ):
        """
        Args:
            sampler: makes a sampler from a seed, which gives this process's share of an endless stream of indices.
            batch_size: samples of one batch on this process. seed: of the sampler and of every sample.
            groups: of every record; a batch holds records of one group. None for no groups.
        """
        self.sampler = sampler
        self.batch_size = batch_size
        self.seed = seed
        self.groups = groups
        self.samples = 0

    def seek(self, seed: int, samples: int) -> None:
        """Let the next iteration start after so many samples (of all processes) of the stream with this seed.

        They are rounded down to whole batches, which matters where batches had another size: some samples come again.
        """
        together = self.batch_size * comm.get_world_size()
        self.seed, self.samples = seed, samples // together * together

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        done = self.samples // (self.batch_size * comm.get_world_size())
        yield from itertools.islice(self._from_the_start(), done, None)

    def _from_the_start(self):
        first, step = comm.get_rank(), comm.get_world_size()
        waiting = collections.defaultdict(list)
        for position, index in zip(itertools.count(first, step), self.sampler(self.seed)):
            batch = waiting[None if self.groups is None else self.groups[index]]
            batch.append((self.seed, position, index))
            if len(batch) == self.batch_size:
                yield batch[:]
                batch.clear()


class SeededSamples(Dataset):
    """A map-style dataset asked by (seed, position, index): what is random in a sample follows from its position."""

    def __init__(self, dataset: Dataset):
        self.dataset = dataset

    def __getitem__(self, key: tuple[int, int, int]):
        seed, position, index = key
        seed_everything(seed, position)
        return self.dataset[index]


def build_positioned_loader(cfg: CfgNode, records: list, mapper: Callable, seed: int) -> DataLoader:
    """Endless loader of mapped records; its ``batch_sampler`` is a :class:`PositionedBatches`.

    Raises:
        ValueError: naming the key that cannot work.
    """
    processes = comm.get_world_size()
    if cfg.SOLVER.IMS_PER_BATCH < 1 or cfg.SOLVER.IMS_PER_BATCH % processes:
        raise ValueError(
            f"SOLVER.IMS_PER_BATCH must be a multiple of the {processes} processes, got {cfg.SOLVER.IMS_PER_BATCH}"
        )
    groups = _aspect_ratio_groups(records) if cfg.DATALOADER.ASPECT_RATIO_GROUPING else None
    sampler = _sampler(cfg, records)
    return PackedLoader(
        SeededSamples(MapDataset(DatasetFromList(records, copy=False), mapper)),
        batch_sampler=PositionedBatches(sampler, cfg.SOLVER.IMS_PER_BATCH // processes, seed, groups),
        num_workers=cfg.DATALOADER.NUM_WORKERS,
    )


def _sampler(cfg: CfgNode, records: list) -> Callable[[int], Sampler]:
    name = cfg.DATALOADER.SAMPLER_TRAIN
    if name == "TrainingSampler":
        return lambda seed: TrainingSampler(len(records), seed=seed)
    if name == "RepeatFactorTrainingSampler":
        node = cfg.DATALOADER
        if not all("annotations" in record for record in records):
            raise ValueError(f"DATALOADER.SAMPLER_TRAIN {name} needs records with annotations; set it to TrainingSampler")
        # Detectron2's main branch has this setting, 0.6 has not
        root = {"sqrt": node.REPEAT_SQRT} if "REPEAT_SQRT" in node else {}
        factors = RepeatFactorTrainingSampler.repeat_factors_from_category_frequency(records, node.REPEAT_THRESHOLD, **root)
        return lambda seed: RepeatFactorTrainingSampler(factors, seed=seed)
    if name == "RandomSubsetTrainingSampler":
        if "RANDOM_SUBSET_RATIO" not in cfg.DATALOADER:
            raise ValueError(f"DATALOADER.SAMPLER_TRAIN {name} needs a newer Detectron2, with RANDOM_SUBSET_RATIO")
        subset = partial(RandomSubsetTrainingSampler, len(records), cfg.DATALOADER.RANDOM_SUBSET_RATIO)
        return lambda seed: subset(seed_shuffle=seed, seed_subset=seed)
    names = "TrainingSampler, RepeatFactorTrainingSampler, RandomSubsetTrainingSampler"
    raise ValueError(f"DATALOADER.SAMPLER_TRAIN must be one of {names}, got {name!r}")


def _aspect_ratio_groups(records: list) -> list[int]:
    if not all("width" in record and "height" in record for record in records):
        raise ValueError("DATALOADER.ASPECT_RATIO_GROUPING needs records with width and height; set it to False")
    return [int(record["width"] > record["height"]) for record in records]
