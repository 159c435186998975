"""Norms by name, and which of them, and of the convolutions, can train where."""

import torch
from detectron2.config import CfgNode
from detectron2.layers import DeformConv, ModulatedDeformConv, NaiveSyncBatchNorm, get_norm
from detectron2.modeling import ROI_MASK_HEAD_REGISTRY
from detectron2.utils import comm
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
    maker = ROI_MASK_HEAD_REGISTRY.get(mask.NAME) if mask.NAME in ROI_MASK_HEAD_REGISTRY else None
    replaced = mask.NORM == "SyncBN" and getattr(maker, "replaces_sync_bn", False)
    for key, head, convolutional in (
        ("ROI_MASK_HEAD", mask, cfg.MODEL.MASK_ON and not replaced),
        ("ROI_BOX_HEAD", box, box.NUM_CONV > 0),
    ):
        if convolutional and isinstance(named_norm(key, head.NORM), nn.SyncBatchNorm):
            raise ValueError(
                f"MODEL.{key}.NORM {head.NORM} cannot train {head.NAME} on images without RoIs; use GN or naiveSyncBN_N"
            )


def check_device(model: nn.Module, cfg: CfgNode) -> None:
    """Refuses layers of a model that cannot train on its device, where PyTorch or Detectron2 would name no key.

    Raises:
        ValueError: naming the key, and what works.
    """
    parts, on_gpu = list(model.modules()), cfg.MODEL.DEVICE.startswith("cuda")
    deformable = [part for part in parts if isinstance(part, (DeformConv, ModulatedDeformConv))]
    # on a CPU Detectron2 has torchvision's forward pass for plain deformable convolutions, and nothing for modulated ones
    served = [type(part) is DeformConv and not any(p.requires_grad for p in part.parameters()) for part in deformable]
    if deformable and not (_has_extension() if on_gpu else all(served)):
        raise ValueError(
            f"MODEL.RESNETS.DEFORM_ON_PER_STAGE {cfg.MODEL.RESNETS.DEFORM_ON_PER_STAGE} needs a GPU to train, and a Detectron2 "
            "with compiled operators (detectron2._C); set it to [False, False, False, False]"
        )
    if not on_gpu and comm.get_world_size() > 1 and any(isinstance(part, nn.SyncBatchNorm) for part in parts):
        for key in ("RESNETS", "FPN", "SEM_SEG_HEAD", "RETINANET"):
            name = cfg.MODEL[key].NORM
            if isinstance(named_norm(key, name), nn.SyncBatchNorm):
                raise ValueError(
                    f"MODEL.{key}.NORM {name} needs GPUs where there are several processes; use naiveSyncBN or BN"
                )


def widen_statistics(model: nn.Module) -> None:
    """Let Detectron2's synchronised norms take their statistics in float32 under bfloat16 too, as under float16."""
    for part in model.modules():
        if isinstance(part, NaiveSyncBatchNorm):
            part.register_forward_pre_hook(_in_float32)


def _in_float32(norm: nn.Module, inputs: tuple) -> tuple:
    # on one process, and in evaluation, PyTorch's batch norm runs in its place and widens by itself
    widen = norm.training and comm.get_world_size() > 1 and inputs[0].dtype == torch.bfloat16
    return (inputs[0].float() if widen else inputs[0],)


def _has_extension() -> bool:
    try:
        from detectron2 import _C  # noqa: F401
    except ImportError:
        return False
    return True


def named_norm(key: str, name: str, channels: int = 32) -> nn.Module | None:
    """Detectron2's norm of a name, None for no norm. ValueError naming ``MODEL.{key}.NORM`` if it is none for the channels."""
    try:
        return get_norm(name, channels)
    except KeyError:
        raise ValueError(f"MODEL.{key}.NORM {name!r} is no norm that Detectron2 knows, such as BN, SyncBN or GN") from None
    except ValueError as error:  # group norms
        raise ValueError(f"MODEL.{key}.NORM {name} cannot normalise {channels} channels, use BN: {error}") from None
