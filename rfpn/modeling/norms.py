"""Norms by name, and those that the RoI heads can train with."""

from detectron2.config import CfgNode
from detectron2.layers import get_norm
from torch import nn


def check_norm_names(cfg: CfgNode) -> None:
    """Raise ValueError naming the key whose norm Detectron2 does not know."""
    for key in ("RESNETS", "FPN", "SEM_SEG_HEAD", "ROI_BOX_HEAD", "ROI_MASK_HEAD", "RETINANET"):
        named_norm(key, cfg.MODEL[key].NORM)


def check_norms(cfg: CfgNode) -> None:
    """Refuses SyncBN in those heads of Detectron2 whose norms may meet no RoI at all, where it stops the training.

    The recurrent mask head takes ``SyncBN``: see :class:`rfpn.modeling.HGRUMaskHead`.

    Raises:
        ValueError: naming the key, and norms that work.
    """
    mask, box = cfg.MODEL.ROI_MASK_HEAD, cfg.MODEL.ROI_BOX_HEAD
    # which it replaces by another
    replaced = mask.NAME == "HGRUMaskHead" and mask.NORM == "SyncBN"
    for key, head, convolutional in (
        ("ROI_MASK_HEAD", mask, cfg.MODEL.MASK_ON and not replaced),
        ("ROI_BOX_HEAD", box, box.NUM_CONV > 0),
    ):
        if convolutional and isinstance(named_norm(key, head.NORM), nn.SyncBatchNorm):
            raise ValueError(
                f"MODEL.{key}.NORM {head.NORM} cannot train {head.NAME} on images without RoIs; take GN, or naiveSyncBN_N"
            )


def named_norm(key: str, name: str, channels: int = 32) -> nn.Module | None:
    """Detectron2's norm of a name, None for no norm. ValueError naming ``MODEL.{key}.NORM`` if it is none for the channels."""
    try:
        return get_norm(name, channels)
    except KeyError:
        raise ValueError(f"MODEL.{key}.NORM {name!r} is no norm that Detectron2 knows, such as BN, SyncBN or GN") from None
    except ValueError as error:  # group norms
        raise ValueError(f"MODEL.{key}.NORM {name} cannot norm {channels} channels, take BN: {error}") from None
