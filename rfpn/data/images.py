"""Reading and writing pictures safely: every mode is converted on purpose, and an error always names the file."""

import os
from contextlib import contextmanager
from typing import Iterator, Sequence

import cv2
import numpy as np
import torch
from PIL import ExifTags, Image, ImageFile, ImageOps, TiffImagePlugin

from rfpn.data.files import whole_file

# Greys of 16 bits: Pillow saturates them when it converts to 8 bits.
_SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N")
_ALPHA_MODES = ("LA", "La", "PA", "RGBA", "RGBa")
_OPAQUE_MODES = ("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")


def load_image(path: str, size: tuple | None = None) -> Image.Image:
    """Opens and fully decodes ``path``.

    Args:
        size: (width, height) in pixels that the picture must have; checked before anything is decoded.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no picture, is truncated or damaged, of another size, or above Pillow's pixel limit.
    """
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise ValueError(f"{path}: PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set, which hides damage; unset it")
    with _opened(path) as image:
        wrong = _wrong_size(image, size)
        if not wrong:
            image.load()
    if wrong:
        raise ValueError(f"{path}: {wrong}")
    return image


@contextmanager
def _opened(path: str) -> Iterator[Image.Image]:
    """A picture of which nothing but the header is read; errors, also those of its decoder within, name the file."""
    try:
        with Image.open(path) as image:
            yield image
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such image") from None
    except Exception as error:  # decoders of damaged files raise anything: SyntaxError, struct.error, IndexError, ...
        raise ValueError(f"{path}: unreadable image ({error or type(error).__name__})") from error


def _wrong_size(image: Image.Image, size: tuple | None) -> str:
    """What is wrong with a picture's size as its header gives it; empty if nothing is."""
    limit = Image.MAX_IMAGE_PIXELS
    if size is not None and image.size != tuple(size):
        return f"is {image.width}x{image.height} pixels, not {size[0]}x{size[1]}"
    if limit is not None and image.width * image.height > limit:  # Pillow itself only warns up to the double of it
        return f"{image.width}x{image.height} pixels are above the limit PIL.Image.MAX_IMAGE_PIXELS, {limit}"
    return ""


def read_image(path: str, format: str | None = "BGR") -> np.ndarray:
    """A picture as Detectron2's ``read_image`` gives it, for every mode that Pillow reads.

    EXIF orientation is applied. Greys of 16 bits are rescaled from [0, 65535] to [0, 255]. Transparent pixels
    are laid over white, so that hidden colours don't show. Palette and CMYK pictures become RGB.

    Args:
        format: "BGR", "RGB", "L" or "YUV-BT.601".

    Returns:
        (H, W, C) array, uint8 in [0, 255] (float for YUV-BT.601).

    Raises:
        FileNotFoundError, ValueError: as :func:`load_image`; or the mode (32-bit integer or float) has no known range.
    """
    from detectron2.data.detection_utils import convert_PIL_to_numpy

    image = load_image(path)
    try:
        image = ImageOps.exif_transpose(image)
    except Exception as error:  # SyntaxError, struct.error, ...
        raise ValueError(f"{path}: unreadable EXIF data ({error or type(error).__name__})") from error
    return convert_PIL_to_numpy(_to_eight_bits(image, path), format)


def upright_size(path: str) -> tuple:
    """(width, height) in pixels that :func:`read_image` gives a picture, from its header: EXIF orientation may turn it.

    Raises:
        FileNotFoundError, ValueError: the file is missing, or no picture.
    """
    with _opened(path) as image:
        size = image.size
        if isinstance(image, TiffImagePlugin.TiffImageFile):
            # the size as stored: some versions of Pillow have turned image.size already
            size = image.tag_v2[TiffImagePlugin.IMAGEWIDTH], image.tag_v2[TiffImagePlugin.IMAGELENGTH]
        turned = image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
        return size[::-1] if turned else size


def to_tensor(image: np.ndarray) -> torch.Tensor:
    """A picture (H, W, C) as models take it: (C, H, W), uint8, or float32 where it is float (YUV-BT.601)."""
    tensor = torch.as_tensor(np.ascontiguousarray(image.transpose(2, 0, 1)))
    return tensor.float() if tensor.is_floating_point() else tensor


def _to_eight_bits(image: Image.Image, path: str) -> Image.Image:
    if image.mode in _SIXTEEN_BIT_MODES:
        return Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image).convert("RGB")
    if image.mode not in _OPAQUE_MODES:
        raise ValueError(
            f"{path}: pictures of mode {image.mode} have no known range; save it with 8 or 16 bits a channel"
        )
    return image


def read_label_map(path: str) -> np.ndarray:
    """A label map (H, W) uint8, one channel; for a palette picture the stored indices, not the colours' greys.

    Raises:
        FileNotFoundError, ValueError: as :func:`load_image`; or the picture has several channels or 16 bits.
    """
    image = load_image(path)
    if image.mode not in ("L", "P"):
        raise ValueError(f"{path}: a label map has one 8-bit channel, got mode {image.mode}")
    return np.array(image)


def read_semantic_map(path: str, size: tuple | None, *, classes: int, ignore_label: int) -> np.ndarray:
    """:func:`read_label_map` of semantic classes: values in [0, ``classes``), or ``ignore_label`` for void.

    Args:
        size: (H, W) in pixels of its picture; None: any.

    Raises:
        FileNotFoundError, ValueError: as :func:`read_label_map`; or the map is of another size, or holds another value.
    """
    labels = read_label_map(path)
    if size is not None and labels.shape != tuple(size):
        raise ValueError(f"{path}: label map {labels.shape} does not fit its picture {tuple(size)}")
    wrong = labels[(labels >= classes) & (labels != ignore_label)]
    if wrong.size:
        raise ValueError(
            f"{path}: has the value {wrong[0]}, but MODEL.SEM_SEG_HEAD.NUM_CLASSES is {classes} "
            f"(stuff classes and class 0 for things) and void is {ignore_label}"
        )
    return labels


def write_image(path: str, image: np.ndarray, parameters: Sequence[int] = ()) -> None:
    """Writes a picture (H, W, 3), RGB uint8, or (H, W), whole or not at all, in the format that its name ends in.

    Args:
        parameters: OpenCV's, such as of compression.

    Raises:
        OSError: naming ``path``, which cannot be written.
    """
    pixels = np.ascontiguousarray(image[..., ::-1] if image.ndim == 3 else image)
    # encoded in memory, because OpenCV mostly says nothing of a full disk where it writes the file itself
    encoded, content = cv2.imencode(os.path.splitext(path)[1], pixels, parameters)
    if not encoded:
        raise OSError(f"{path}: could not be written (its format does not take a picture of {pixels.shape})")
    try:
        with whole_file(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise OSError(f"{path}: could not be written ({error.strerror})") from None
