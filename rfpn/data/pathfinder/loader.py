"""Batches for scoring Pathfinder models, whose norms use the statistics of the batch."""

from detectron2.config import CfgNode
from detectron2.data.common import DatasetFromList, MapDataset
from detectron2.data.samplers import InferenceSampler
from detectron2.utils import comm
from torch.utils.data import DataLoader

from rfpn.data.packing import PackedLoader
from rfpn.data.pathfinder.mapper import PathfinderMapper


def build_pathfinder_test_loader(cfg: CfgNode, records: list) -> DataLoader:
    """Loader over this process's share of a data set's records, in batches as large as one process gets in training.

    Detectron2's own loader gives single images, on which models that were trained with the statistics of a batch score
    lower.

    Raises:
        ValueError: ``SOLVER.IMS_PER_BATCH`` is smaller than the number of processes.
    """
    batch_size = cfg.SOLVER.IMS_PER_BATCH // comm.get_world_size()
    if batch_size < 1:
        raise ValueError(
            f"SOLVER.IMS_PER_BATCH {cfg.SOLVER.IMS_PER_BATCH} must be at least the {comm.get_world_size()} processes"
        )
    return PackedLoader(
        MapDataset(DatasetFromList(records, copy=False), PathfinderMapper(cfg, False)),
        batch_size=batch_size,
        sampler=InferenceSampler(len(records)),
        num_workers=cfg.DATALOADER.NUM_WORKERS,
    )
