"""The training loader of a trainer, and the seed of its order."""

import inspect

from detectron2.config import CfgNode
from detectron2.engine import DefaultTrainer
from detectron2.utils import comm


def train_loader(trainer: DefaultTrainer, cfg: CfgNode):
    """What a trainer's ``build_train_loader`` gives.

    Raises:
        ValueError: it is a subclass's that no resumed run could send to its position.
    """
    build, name = trainer.build_train_loader, f"{type(trainer).__name__}.build_train_loader"
    try:
        # Detectron2 gives no seed where it builds one for TEST.PRECISE_BN
        for arguments in ((cfg,), (cfg, trainer.seed)):
            inspect.signature(build).bind(*arguments)
    except TypeError:
        raise ValueError(f"{name} must take cfg and seed=None, which must determine the order of its samples") from None
    loader = build(cfg, trainer.seed)
    sampler = getattr(loader, "batch_sampler", None)
    if not (hasattr(sampler, "seek") and hasattr(sampler, "samples")):
        raise ValueError(
            f"{name} must give a loader whose batch_sampler has seek(seed, samples) and samples, or no run could be resumed; "
            "rfpn.data.batches.PositionedBatches is one"
        )
    return loader


def run_seed(cfg: CfgNode) -> int:
    """``SEED``, or where that is negative a random one, the same on all processes."""
    return cfg.SEED if cfg.SEED >= 0 else int(comm.shared_random_seed())
