"""The dataset mapper of the Pathfinder models."""

import logging

import cv2
import numpy as np
import torch
from detectron2.config import configurable
from detectron2.utils.logger import log_first_n
from PIL import ExifTags

from rfpn.data.images import load_image, read_image, read_label_map


class PathfinderMapper:
    """Maps dataset dicts to ``image`` (1, S, S), uint8 grey values, and ``sem_seg`` (S, S), uint8, 1 on the target.

    Files of another size than S are resized bicubically; target pixels are those above a threshold thereafter. Where that
    leaves none of a target, a warning says so, once a process.
    Training mirrors each sample left-right and upside-down with probability 0.5 each, from numpy's random state, which
    the loader seeds for every sample.
    """

    @configurable
    def __init__(self, *, size: int = 150, threshold: float = 0.2, flip: bool = False):
        """
        Args:
            size: S, pixels. threshold: of the resized target, as a share of full white. flip: mirror at random.

        Raises:
            ValueError: for a size or threshold out of range.
        """
        if size < 1:
            raise ValueError(f"INPUT.PATHFINDER_SIZE must be at least 1 pixel, got {size}")
        if not 0 <= threshold < 1:
            raise ValueError(f"INPUT.PATHFINDER_THRESHOLD must lie in [0, 1), got {threshold}")
        self.size = size
        self.threshold = threshold
        self.flip = flip

    @classmethod
    def from_config(cls, cfg, is_train: bool = True) -> dict:
        """Arguments from a config; ``INPUT.RANDOM_FLIP`` "none" turns mirroring off."""
        return {
            "size": cfg.INPUT.PATHFINDER_SIZE,
            "threshold": cfg.INPUT.PATHFINDER_THRESHOLD,
            "flip": is_train and cfg.INPUT.RANDOM_FLIP != "none",
        }

    def __call__(self, dataset_dict: dict) -> dict:
        """
        Args:
            dataset_dict: with ``file_name`` and ``sem_seg_file_name``, paths of pictures of one size.

        Raises:
            FileNotFoundError, ValueError: naming the file that is missing, unreadable or does not fit.
        """
        image = _read_grey(dataset_dict["file_name"])
        target = read_label_map(dataset_dict["sem_seg_file_name"])
        if target.shape != image.shape:
            raise ValueError(
                f"{dataset_dict['sem_seg_file_name']}: target {target.shape} does not fit its image {image.shape}"
            )
        # numbers of a palette or of classes would leave the target without pixels
        if 0 < (most := target.max()) <= self.threshold * 255:
            raise ValueError(f"{dataset_dict['sem_seg_file_name']}: target pixels must be 255 (white), found {most} at most")
        image, target = resize(image, self.size), resize(target, self.size) > self.threshold * 255
        if most and not target.any():
            # trained on and scored as a picture without target
            lost = "its target is lost in resizing; set a larger INPUT.PATHFINDER_SIZE than"
            log_first_n(logging.WARNING, f"{dataset_dict['sem_seg_file_name']}: {lost} {self.size}", name=__name__)
        if self.flip:
            rows, columns = np.random.randint(2, size=2) * 2 - 1
            image, target = image[::rows, ::columns], target[::rows, ::columns]
        return {
            **dataset_dict,
            "image": torch.from_numpy(np.array(image, order="C")[None]),
            "sem_seg": torch.from_numpy(np.array(target, order="C").view(np.uint8)),
        }


def resize(picture: np.ndarray, size: int) -> np.ndarray:
    """A grey picture (H, W) as (``size``, ``size``), bicubic."""
    if picture.shape == (size, size):
        return picture
    return cv2.resize(picture, (size, size), interpolation=cv2.INTER_CUBIC)


def _read_grey(path: str) -> np.ndarray:
    """(H, W) uint8. The published sets are 8-bit grey, which needs no conversion."""
    image = load_image(path)
    if image.mode == "L":
        return np.array(image)
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        raise ValueError(f"{path}: its EXIF orientation would turn it, but not its target; remove the orientation")
    return read_image(path, "L")[..., 0]
