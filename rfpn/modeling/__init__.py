"""Models in Detectron2's registries; importing this package registers them."""

from rfpn.modeling.mask_head import HGRUMaskHead
from rfpn.modeling.pathfinder import PathfinderNet

__all__ = ["HGRUMaskHead", "PathfinderNet"]
