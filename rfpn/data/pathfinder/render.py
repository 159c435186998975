"""Draws Pathfinder samples with antialiased strokes, in numpy, and checks every picture that it draws."""

import math
from typing import NamedTuple

import numpy as np

from rfpn.data.pathfinder.contours import Scene
from rfpn.data.pathfinder.settings import GenerationError, PathfinderSettings

MARKER_LEVEL = 200  # of 255: least brightness of the disc's core
TIP = 0.4  # pixels that a stroke reaches beyond either end of its axis, as measured on the published pictures


class Picture(NamedTuple):
    """What a scene looks like, each (H, W).

    image: uint8, grey. target: uint8, 0 or 255. owner: int32, the number from 1 of the dash that covers at least
    half of the pixel, 0 for none; the marker counts as part of the target's first dash, which it hides.
    """

    image: np.ndarray
    target: np.ndarray
    owner: np.ndarray


def draw_picture(scene: Scene, settings: PathfinderSettings) -> Picture:
    """Renders ``scene``. Strokes add up and saturate at white.

    Raises:
        GenerationError: two strokes share a pixel or touch, or the target is not one chain with its marker.
    """
    window = settings.window
    x, y, ux, uy, contour = np.array(scene.dashes).T
    pixel, number, share = _stroke_coverage(x, y, ux, uy, settings)
    m_pixel, m_share = _disc_coverage(*scene.marker, settings)

    coverage = np.zeros(window * window)
    np.add.at(coverage, pixel, share)
    coverage[m_pixel] = np.maximum(coverage[m_pixel], m_share)
    image = (np.minimum(coverage, 1) * 255 + 0.5).astype(np.uint8).reshape(window, window)

    target = np.zeros((window, window), np.uint8)
    target.flat[pixel[(contour[number] == 0) & (share >= settings.target_level)]] = 255
    target.flat[m_pixel[m_share >= settings.target_level]] = 255

    owner = np.zeros((window, window), np.int32)
    half = share >= 0.5
    owner.flat[pixel[half]] = number[half] + 1
    if (owner.flat[pixel[half]] != number[half] + 1).any():
        raise GenerationError(f"two dashes overlap. Settings: {settings.describe()}")
    disc = m_pixel[m_share >= 0.5]
    if (owner.flat[disc] > 1).any():
        raise GenerationError(f"a dash runs into the marker. Settings: {settings.describe()}")
    owner.flat[disc] = 1
    picture = Picture(image, target, owner)
    problem = find_problem(picture, scene, settings)
    if problem:
        raise GenerationError(f"{problem}. Settings: {settings.describe()}")
    return picture


def find_problem(picture: Picture, scene: Scene, settings: PathfinderSettings) -> str:
    """What is wrong with a picture, from its pixels; empty if nothing is.

    No two dashes touch; the target is exactly the strokes of one chain of ``length`` dashes and the marker; the
    marker is bright.
    """
    image, target, owner = picture
    window = settings.window
    flat, at = owner.ravel(), np.flatnonzero(owner)
    for step in (1, window - 1, window, window + 1):  # half of the eight neighbours; the others by symmetry
        neighbour = flat[at + step]
        if ((neighbour != 0) & (neighbour != flat[at])).any():
            return "two dashes touch"
    owners = np.unique(flat[np.flatnonzero(target)])
    if owners.tolist() != list(range(1, settings.length + 1)):
        return f"the target does not hold the {settings.length} dashes of its contour and nothing else"
    chain = np.array([dash[:2] for dash in scene.dashes[: settings.length]])
    if (np.hypot(*np.diff(chain, axis=0).T) > settings.reach + 1e-6).any():
        return "the target's chain is broken"
    disc, share = _disc_coverage(*scene.marker, settings)
    core = disc[share >= 1]
    if core.size == 0 or image.flat[core].min() < MARKER_LEVEL or not target.flat[core].all():
        return "the marker is not visible"
    return ""


def target_share(target: np.ndarray) -> float:
    """Share of target pixels as a model sees them: at half size, bicubic, where the target exceeds 0.2 of 1.

    Bicubic as OpenCV and torch do it: by half, each pixel is the mean of four a side with weights (-3, 19, 19, -3) / 32.
    """
    small = np.pad(target.astype(np.float32) / 255, 1)
    for _ in range(2):
        small = (19 * (small[1:-2:2] + small[2:-1:2]) - 3 * (small[0:-3:2] + small[3::2])).T / 32
    return float((small > 0.2).mean())


def _stroke_coverage(x, y, ux, uy, settings: PathfinderSettings):
    """Pixels that D strokes with flat ends cover: flat index, number of the stroke, share in (0, 1], each (M,).

    The share is the product of those of two straight edges, along and across the stroke.
    """
    size = math.ceil(settings.dash_length + settings.thickness) + 3
    left, top = (np.floor(c).astype(np.int64) - size // 2 for c in (x, y))
    cells = np.arange(size)
    dx = ((left - x)[:, None] + cells + 0.5).astype(np.float32)[:, None, :]
    dy = ((top - y)[:, None] + cells + 0.5).astype(np.float32)[:, :, None]
    ux, uy = (u.astype(np.float32)[:, None, None] for u in (ux, uy))
    along = np.float32(settings.dash_length / 2 + TIP + 0.5) - np.abs(dx * ux + dy * uy)
    across = np.float32(settings.thickness / 2 + 0.5) - np.abs(dx * uy - dy * ux)
    peak = np.float32(min(settings.thickness, 1))  # a stroke thinner than a pixel never covers all of it
    share = np.clip(along, 0, 1) * np.clip(across, 0, peak)
    number, row, column = np.nonzero(share > 0)
    return (top[number] + row) * settings.window + left[number] + column, number, share[number, row, column]


def _disc_coverage(x: float, y: float, settings: PathfinderSettings):
    """Pixels that the marker covers: flat index and share in (0, 1], each (M,)."""
    radius = settings.marker_radius
    size = math.ceil(2 * radius) + 3
    left, top = math.floor(x) - size // 2, math.floor(y) - size // 2
    cells = np.arange(size) + 0.5
    distance = np.hypot(left - x + cells[None, :], top - y + cells[:, None])
    share = np.minimum(radius + 0.5 - distance, 1)
    row, column = np.nonzero(share > 0)
    return (top + row) * settings.window + left + column, share[row, column]
