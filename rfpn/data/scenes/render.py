"""Renders one scene: picture, segment ids and segment records."""

import math
from typing import NamedTuple

import cv2
import numpy as np

from rfpn.data.panoptic_png import MAX_ID
from rfpn.data.scenes.geometry import STUFF_CLASSES, THING_CLASSES, place_things, stuff_regions
from rfpn.data.scenes.textures import Texture, ground_texture, paint, pool_color, thing_texture


class SceneOptions(NamedTuple):
    """What a scene looks like.

    Args:
        height, width: pixels.
        things: fewest and most things; a crowded picture may hold fewer than drawn.
        thing_size: smallest and largest diameter, share of the shorter side.
        stuff: fewest and most stuff classes.
        occlusion: probability that a thing overlaps an earlier one.
        clutter: fewest and most small marks, which belong to no class and keep the label below them.
        texture_conflict: share of scenes in which a thing bears the texture of a stuff region beside it.
        noise: standard deviation of the pixel noise, of 255.
    """

    height: int = 128
    width: int = 128
    things: tuple = (2, 5)
    thing_size: tuple = (0.2, 0.45)
    stuff: tuple = (2, 4)
    occlusion: float = 0.35
    clutter: tuple = (4, 12)
    texture_conflict: float = 0.2
    noise: float = 5.0

    def check(self) -> None:
        """Raises ValueError naming the option that is out of range."""
        for name in ("things", "stuff", "clutter", "thing_size"):
            low, high = getattr(self, name)
            if not 0 <= low <= high:
                raise ValueError(f"{name}: needs 0 <= fewest <= most, got {low} {high}")
        if not 1 <= self.stuff[0] <= self.stuff[1] <= len(STUFF_CLASSES):
            raise ValueError(f"stuff: needs 1 to {len(STUFF_CLASSES)} classes, got {self.stuff}")
        if not 0.05 <= self.thing_size[0] <= self.thing_size[1] <= 0.9:
            raise ValueError(f"thing_size: needs shares in [0.05, 0.9], got {self.thing_size}")
        for name in ("occlusion", "texture_conflict"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: needs a share in [0, 1], got {getattr(self, name)}")
        if not 32 <= min(self.height, self.width) <= max(self.height, self.width) <= 4096:
            raise ValueError(f"size: needs 32 to 4096 pixels, got {self.height}x{self.width}")
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise: needs to be at least 0 and finite, got {self.noise}")


class Scene(NamedTuple):
    """One scene: RGB picture (H, W, 3) uint8; number of the visible segment (H, W), from 1; one dict a segment
    (``id``, ``name``); whether a thing bears the texture of stuff beside it."""

    image: np.ndarray
    index: np.ndarray
    segments: list
    texture_conflict: bool


def render_scene(options: SceneOptions, rng: np.random.Generator) -> Scene:
    """Draws one scene; all randomness comes from ``rng``."""
    size, scale = (options.height, options.width), min(options.height, options.width) / 128
    stuff_count = rng.integers(options.stuff[0], options.stuff[1] + 1)
    classes = rng.permutation(len(STUFF_CLASSES))[:stuff_count]
    regions = stuff_regions(classes, size, rng)
    radii = tuple(0.5 * share * min(size) for share in options.thing_size)
    thing_count = int(rng.integers(options.things[0], options.things[1] + 1))
    things = place_things(thing_count, size, radii, options.occlusion, rng)

    ground = {int(c): ground_texture(STUFF_CLASSES[c], rng) for c in np.unique(regions)}
    image = np.zeros((*size, 3), dtype=np.float32)
    for c, texture in ground.items():
        cv2.copyTo(paint(texture, size, scale, rng), (regions == c).astype(np.uint8), image)
    clutter_count = int(rng.integers(options.clutter[0], options.clutter[1] + 1))
    _draw_clutter(image, clutter_count, scale, rng)

    labels = regions + len(things)  # 0..len(things) - 1: things, from back to front; then stuff
    for i, thing in enumerate(things):
        labels[thing.mask] = i
    textures, conflict = _thing_textures(things, labels, ground, image, options, rng)
    for thing, texture in zip(things, textures):
        _draw_thing(image, thing, texture, scale, rng)
    return Scene(_finish(image, options.noise, rng), *_segments(labels, things, rng), conflict)


def _thing_textures(things, labels, ground, image, options, rng) -> tuple:
    """A texture for each thing, and whether one of them is that of stuff beside it."""
    neighbours = [_neighbouring_stuff(labels, i, len(things)) for i in range(len(things))]
    textures = []
    for thing, stuff in zip(things, neighbours):
        avoid = {ground[c].pattern for c in stuff}
        textures.append(thing_texture(avoid, np.array(cv2.mean(image, thing.opacity)[:3]), rng))
    candidates = [i for i, stuff in enumerate(neighbours) if stuff]
    conflict = rng.random() < options.texture_conflict and bool(candidates)
    if conflict:
        chosen = candidates[rng.integers(len(candidates))]
        textures[chosen] = ground[neighbours[chosen][0]].jittered(rng)
    return textures, conflict


def _neighbouring_stuff(labels: np.ndarray, number: int, n_things: int) -> list:
    """Stuff classes along the visible border of thing ``number``, the longest border first."""
    mask = (labels == number).astype(np.uint8)
    border = cv2.dilate(mask, np.ones((5, 5), np.uint8)).astype(bool) & (labels >= n_things)
    counts = np.bincount(labels[border] - n_things, minlength=len(STUFF_CLASSES))
    return [int(c) for c in np.argsort(-counts, kind="stable") if counts[c] > 0]


def _draw_thing(image: np.ndarray, thing, texture: Texture, scale: float, rng: np.random.Generator) -> None:
    """Lays the thing over the picture, with a darker rim, so that its outline shows on any ground."""
    x, y, w, h = cv2.boundingRect(thing.opacity)
    box = (slice(y, y + h), slice(x, x + w))
    opacity = thing.opacity[box]
    patch = paint(texture, (h, w), scale, rng)
    width = 2 * max(1, round(scale)) + 1
    inner = cv2.erode(opacity, np.ones((width, width), np.uint8), borderValue=255)
    patch *= (0.45 + 0.55 * (inner / np.float32(255)))[..., None]
    alpha = (opacity / np.float32(255))[..., None]
    image[box] += alpha * (patch - image[box])


def _draw_clutter(image: np.ndarray, count: int, scale: float, rng: np.random.Generator) -> None:
    """Draws ``count`` short strokes, arcs and specks in colours of the things' pool, in place."""
    height, width = image.shape[:2]
    for _ in range(count):
        color = pool_color(rng).tolist()
        center = (int(rng.integers(width)), int(rng.integers(height)))
        thickness = max(1, round(scale * rng.uniform(0.6, 2.2)))
        kind = rng.integers(3)
        if kind == 0:
            end = np.rint(center + rng.uniform(-12, 12, 2) * scale).astype(int).tolist()
            cv2.line(image, center, end, color, thickness)
        elif kind == 1:
            start, axes = int(rng.integers(360)), (round(9 * scale), round(rng.uniform(4, 9) * scale))
            cv2.ellipse(image, center, axes, start, 0, int(rng.integers(50, 150)), color, thickness)
        else:
            cv2.circle(image, center, max(1, round(scale * rng.uniform(0.8, 2.5))), color, -1)


def _finish(image: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    """Slight blur, uneven light and pixel noise, then 8 bits."""
    image = cv2.GaussianBlur(image, (3, 3), 0.6)
    light = cv2.resize(rng.uniform(0.85, 1.12, (2, 2)).astype(np.float32), image.shape[1::-1])
    grain = noise * rng.standard_normal(image.shape[:2], dtype=np.float32)
    image = cv2.add(cv2.multiply(image, cv2.merge([light] * 3)), cv2.merge([grain] * 3))
    return cv2.convertScaleAbs(cv2.max(image, 0))


def _segments(labels: np.ndarray, things: list, rng: np.random.Generator) -> tuple:
    """Visible segments: their number (H, W) from 1, and a dict each."""
    present, index = np.unique(labels, return_inverse=True)
    ids = rng.choice(MAX_ID, size=len(present), replace=False, shuffle=False) + 1 if len(present) else []
    segments = []
    for label, segment_id in zip(present, ids):
        if label < len(things):
            name = THING_CLASSES[things[label].category]
        else:
            name = STUFF_CLASSES[label - len(things)]
        segments.append({"id": int(segment_id), "name": name})
    return index.reshape(labels.shape) + 1, segments
