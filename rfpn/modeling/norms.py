"""Norms that the RoI heads can train with."""

from detectron2.config import CfgNode


def check_norms(cfg: CfgNode) -> None:
    """Refuses SyncBN in those heads of Detectron2 whose norms may meet no RoI at all, where it stops the training.

    The recurrent mask head takes it: see :class:`rfpn.modeling.HGRUMaskHead`.

    Raises:
        ValueError: naming the key, and norms that work.
    """
    for key, head, convolutional in (
        ("ROI_MASK_HEAD", cfg.MODEL.ROI_MASK_HEAD, cfg.MODEL.MASK_ON and cfg.MODEL.ROI_MASK_HEAD.NAME != "HGRUMaskHead"),
        ("ROI_BOX_HEAD", cfg.MODEL.ROI_BOX_HEAD, cfg.MODEL.ROI_BOX_HEAD.NUM_CONV > 0),
    ):
        if convolutional and head.NORM == "SyncBN":
            raise ValueError(
                f"MODEL.{key}.NORM SyncBN cannot train {head.NAME} on images without RoIs; take GN, or naiveSyncBN_N"
            )
