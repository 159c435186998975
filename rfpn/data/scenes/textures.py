"""Textures of scenes: a pattern between two colours. Things and stuff draw on the same patterns."""

import colorsys
from typing import NamedTuple

import cv2
import numpy as np

from rfpn.data.scenes.geometry import STUFF_CLASSES

# drawn from by position: their order decides what a seed shows
PATTERNS = STUFF_CLASSES + ["flat", "speckle", "stripes", "dots", "checker"]

# Hue, saturation and value, each centre ± spread, of the four kinds of ground.
_GROUND_COLORS = {
    "sky": ((0.57, 0.05), (0.35, 0.2), (0.85, 0.12)),
    "grass": ((0.29, 0.08), (0.6, 0.2), (0.5, 0.18)),
    "water": ((0.55, 0.06), (0.6, 0.2), (0.42, 0.17)),
    "brick": ((0.04, 0.05), (0.5, 0.25), (0.55, 0.18)),
}


class Texture(NamedTuple):
    """A pattern's name and the two RGB colours, (3,) each in [0, 255], between which it varies."""

    pattern: str
    colors: tuple

    def jittered(self, rng: np.random.Generator) -> "Texture":
        """The same texture with colours moved by up to 12 of 255."""
        return Texture(self.pattern, tuple(np.clip(c + rng.uniform(-12, 12, 3), 0, 255) for c in self.colors))


def ground_texture(name: str, rng: np.random.Generator) -> Texture:
    """A texture of the stuff class ``name``."""
    hue, saturation, value = (rng.uniform(c - s, c + s) for c, s in _GROUND_COLORS[name])
    return Texture(name, (_rgb(hue, saturation, value), _rgb(hue, saturation * 0.8, value * 0.68)))


def thing_texture(avoid: set, background: np.ndarray, rng: np.random.Generator) -> Texture:
    """A texture for a thing of any class, drawn from the one pool.

    Args:
        avoid: patterns of the stuff around the thing.
        background: (3,) mean colour of what it covers; the thing's mean colour differs from it by about 70 or more.
    """
    pattern = rng.choice([p for p in PATTERNS if p not in avoid])
    for _ in range(20):
        first = pool_color(rng)
        second = np.clip(first * rng.uniform(0.5, 0.75) + rng.uniform(-25, 25, 3), 0, 255)
        if np.linalg.norm((first + second) / 2 - background) >= 70:
            break
    return Texture(str(pattern), (first, second))


def pool_color(rng: np.random.Generator) -> np.ndarray:
    """A colour (3,) of the pool that things and clutter share."""
    return _rgb(rng.random(), rng.uniform(0.15, 0.9), rng.uniform(0.2, 1.0))


def _rgb(hue: float, saturation: float, value: float) -> np.ndarray:
    return 255 * np.array(colorsys.hsv_to_rgb(hue % 1, saturation, value))


def paint(texture: Texture, size: tuple, scale: float, rng: np.random.Generator) -> np.ndarray:
    """A patch (H, W, 3) float32 of ``texture``, with a phase of its own.

    Args:
        size: (H, W).
        scale: pixels for what is one pixel in a picture of 128.
    """
    mix = pattern(texture.pattern, size, scale, rng)
    first, second = (np.asarray(c, dtype=np.float32) for c in texture.colors)
    return cv2.merge([mix * np.float32(b - a) + a for a, b in zip(first, second)])


def pattern(name: str, size: tuple, scale: float, rng: np.random.Generator) -> np.ndarray:
    """The pattern ``name``: (H, W) float32 in [0, 1]."""
    y = np.arange(size[0], dtype=np.float32)[:, None] / scale + np.float32(rng.uniform(0, 64))
    x = np.arange(size[1], dtype=np.float32)[None, :] / scale + np.float32(rng.uniform(0, 64))
    if name == "flat":
        return np.full(size, 0.5, dtype=np.float32)
    if name == "sky":
        return _noise(size, 22 * scale, 34 * scale, rng)
    if name == "grass":
        return 0.75 * _noise(size, 7 * scale, 1.6 * scale, rng) + 0.25 * _noise(size, 20 * scale, 20 * scale, rng)
    if name == "speckle":
        return _noise(size, 2.2 * scale, 2.2 * scale, rng)
    if name == "water":
        return 0.5 + 0.5 * np.sin(y * np.float32(1.15) + 1.6 * np.sin(x * np.float32(0.22)))
    if name == "stripes":
        angle = rng.uniform(0, np.pi)
        period = rng.uniform(4, 8)
        wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) * (2 * np.pi / period))
        return np.clip(0.5 + 1.5 * wave, 0, 1).astype(np.float32)
    if name == "dots":
        period = rng.uniform(5, 8)
        distance = np.hypot((x % period) - period / 2, (y % period) - period / 2)
        return (distance < 0.3 * period).astype(np.float32)
    if name == "checker":
        period = rng.uniform(4, 7)
        return ((x // period + y // period) % 2).astype(np.float32)
    return _bricks(x, y)


def _bricks(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Rows of bricks 12 by 6 with dark joints of 1.2, every other row moved by half a brick."""
    row = y // 6
    joint = ((y % 6) < 1.2) | (((x + 6 * (row % 2)) % 12) < 1.2)
    tone = np.abs(np.sin(12.9 * ((x + 6 * (row % 2)) // 12) + 78.2 * row)) * 0.45
    return np.where(joint, np.float32(1), tone.astype(np.float32))


def _noise(size: tuple, step_y: float, step_x: float, rng: np.random.Generator) -> np.ndarray:
    """Smooth noise in [0, 1] whose grain is ``step_y`` by ``step_x`` pixels."""
    coarse = (int(np.ceil(size[0] / step_y)) + 1, int(np.ceil(size[1] / step_x)) + 1)
    noise = rng.random(coarse, dtype=np.float32)
    return np.clip(cv2.resize(noise, size[::-1], interpolation=cv2.INTER_CUBIC), 0, 1)
