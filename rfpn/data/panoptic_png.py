"""Segment ids in COCO panoptic PNGs: id = R + 256 G + 256² B, 0 is void (panopticapi's format)."""

import numpy as np
from PIL import Image

from rfpn.data.files import first_few
from rfpn.data.images import load_image

MAX_ID = 2**24 - 1


def encode_ids(ids: np.ndarray) -> np.ndarray:
    """Segment ids (H, W), any integer type, to colours (H, W, 3) uint8.

    Raises:
        ValueError: the type is no integer, or an id is negative or above 2²⁴ − 1, which three bytes can't hold.
    """
    _check_integer(ids)
    if ids.size and (ids.min() < 0 or ids.max() > MAX_ID):
        raise ValueError(
            f"segment ids must lie in [0, {MAX_ID}], got {ids.min()} to {ids.max()}"
        )
    ids = ids.astype(np.uint32)
    return np.stack([ids & 255, ids >> 8 & 255, ids >> 16], axis=-1).astype(np.uint8)


def decode_ids(rgb: np.ndarray) -> np.ndarray:
    """Colours (H, W, 3 or 4), any integer type, to segment ids (H, W) int32; a fourth channel is ignored."""
    if rgb.ndim != 3 or rgb.shape[2] not in (3, 4):
        raise ValueError(f"a panoptic picture has shape (H, W, 3), got {rgb.shape}")
    _check_integer(rgb)
    rgb = rgb.astype(np.int32)  # numpy 2 keeps uint8 in products, which would overflow
    return rgb[..., 0] + 256 * rgb[..., 1] + 65536 * rgb[..., 2]


def _check_integer(array: np.ndarray) -> None:
    if array.dtype.kind not in "iu":
        raise ValueError(f"segment ids and their colours are integers, got {array.dtype}")


def read_panoptic_png(path: str, size: tuple | None = None) -> np.ndarray:
    """Segment ids (H, W) int32 of one panoptic PNG.

    Args:
        size: (width, height) that it must have.

    Raises:
        FileNotFoundError, ValueError: as :func:`load_image`; or the file is no colour picture (a label map saved as
            grey or palette).
    """
    image = load_image(path, size)
    if image.mode not in ("RGB", "RGBA"):
        raise ValueError(
            f"{path}: a panoptic PNG is an RGB picture of segment ids (R + 256 G + 65536 B), "
            f"got mode {image.mode}"
        )
    return decode_ids(np.asarray(image))


def write_panoptic_png(path: str, ids: np.ndarray) -> None:
    """Writes segment ids (H, W) as a panoptic PNG."""
    Image.fromarray(encode_ids(ids)).save(path, format="PNG", compress_level=1)


def index_segments(ids: np.ndarray, segments_info: list) -> tuple:
    """Numbers the listed segments of one picture, from 1, and counts their pixels.

    Args:
        ids: (H, W) segment ids.
        segments_info: S dicts with the key ``id``.

    Returns:
        index (H, W): 0 for void, s + 1 for ``segments_info[s]``;
        areas (S,): pixels of each listed segment.

    Raises:
        ValueError: an id is 0 or listed twice, a listed id has no pixel, or a non-zero pixel's id is not listed.
    """
    listed = np.array([s["id"] for s in segments_info], dtype=np.int64)
    if len(listed) and listed.min() < 1:
        raise ValueError(f"segment ids start at 1 (0 is void), got {listed.min()}")
    keys = np.concatenate([[0], listed])
    order = np.argsort(keys, kind="stable")
    if (np.diff(keys[order]) == 0).any():
        raise ValueError("a segment id is listed twice")
    position = np.searchsorted(keys[order], ids).clip(max=len(keys) - 1)
    index = order[position]
    unlisted = keys[index] != ids
    if unlisted.any():
        raise ValueError(f"pixels carry ids that are not listed: {first_few(np.unique(ids[unlisted]))}")
    areas = np.bincount(index.ravel(), minlength=len(keys))[1:]
    if (areas == 0).any():
        raise ValueError(f"listed ids have no pixel: {first_few(listed[areas == 0])}")
    return index, areas
