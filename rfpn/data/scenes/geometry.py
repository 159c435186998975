"""Where things and stuff lie in a scene: outlines, placement with occlusion, and the regions of the ground."""

from typing import NamedTuple

import cv2
import numpy as np

THING_CLASSES = ["disk", "square", "triangle", "star", "ring"]
STUFF_CLASSES = ["sky", "grass", "water", "brick"]

# The share of itself that every thing still shows, so that its shape can be told.
MIN_VISIBLE = 0.45
_MIN_IN_FRAME = 0.65
_TRIES = 12


class Thing(NamedTuple):
    """One placed thing: class index, opacity (H, W) uint8, and centre (x, y) and radius in pixels."""

    category: int
    opacity: np.ndarray
    center: tuple
    radius: float

    @property
    def mask(self) -> np.ndarray:
        """Pixels that the thing covers: (H, W) bool."""
        return self.opacity >= 128


def outline(category: int, rng: np.random.Generator) -> list:
    """Polygons (P, 2) of a shape within the unit circle, turned at random; a second polygon is a hole."""
    name = THING_CLASSES[category]
    turn = rng.uniform(0, 2 * np.pi)
    if name == "disk":
        return [_regular(40, turn) * [1.0, rng.uniform(0.85, 1.0)]]
    if name == "ring":
        return [_regular(40, turn), _regular(40, turn) * rng.uniform(0.48, 0.6)]
    if name == "square":
        half = np.array([1.0, rng.uniform(0.82, 1.0)]) * 0.76
        corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * half
        return [corners @ _rotation(turn)]
    if name == "triangle":
        return [_regular(3, turn, jitter=rng.uniform(-0.2, 0.2, 3))]
    points = _regular(10, turn)
    points[1::2] *= rng.uniform(0.4, 0.5)
    return [points]


def _regular(corners: int, turn: float, jitter=0.0) -> np.ndarray:
    angles = turn + 2 * np.pi * np.arange(corners) / corners + jitter
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _rotation(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def draw_thing(category: int, center: tuple, radius: float, size: tuple, rng: np.random.Generator) -> Thing:
    """One thing of random proportions and turn, drawn with smooth edges into a picture of ``size`` (H, W)."""
    opacity = np.zeros(size, dtype=np.uint8)
    polygons = [np.rint((p * radius + center) * 16).astype(np.int32) for p in outline(category, rng)]
    cv2.fillPoly(opacity, polygons, 255, lineType=cv2.LINE_AA, shift=4)
    return Thing(category, opacity, center, radius)


def place_things(count: int, size: tuple, radii: tuple, occlusion: float, rng: np.random.Generator) -> list:
    """Places up to ``count`` things, later ones in front of earlier ones.

    Args:
        size: (H, W).
        radii: smallest and largest radius, pixels.
        occlusion: probability that a thing is put where it overlaps an earlier one; else it overlaps none.

    Returns:
        things from back to front. Each shows at least ``MIN_VISIBLE`` of itself. Fewer than ``count`` where the
        picture is full.
    """
    things, visible = [], []
    for _ in range(count):
        category = int(rng.integers(len(THING_CLASSES)))
        overlap = bool(things) and rng.random() < occlusion
        for _ in range(_TRIES):
            radius = rng.uniform(*radii)
            center = _beside(things, radius, rng) if overlap else _anywhere(size, radius, rng)
            thing = draw_thing(category, center, radius, size, rng)
            mask = thing.mask
            remaining = [v & ~mask for v in visible]
            covers = any(r.sum() < v.sum() for r, v in zip(remaining, visible))
            if _is_in_frame(thing, mask) and covers == overlap and _all_show(things, remaining):
                things.append(thing)
                visible = remaining + [mask]
                break
    return things


def _anywhere(size: tuple, radius: float, rng: np.random.Generator) -> tuple:
    margin = 0.6 * radius
    return (rng.uniform(margin, size[1] - margin), rng.uniform(margin, size[0] - margin))


def _beside(things: list, radius: float, rng: np.random.Generator) -> tuple:
    other = things[rng.integers(len(things))]
    distance = rng.uniform(0.55, 0.95) * (radius + other.radius)
    angle = rng.uniform(0, 2 * np.pi)
    return (other.center[0] + distance * np.cos(angle), other.center[1] + distance * np.sin(angle))


def _is_in_frame(thing: Thing, mask: np.ndarray) -> bool:
    """Whether most of the thing lies in the picture. A star fills about 0.3 of its circle's area, a disk 0.9."""
    fill = {"disk": 0.9, "square": 0.65, "triangle": 0.4, "star": 0.3, "ring": 0.7}[THING_CLASSES[thing.category]]
    return mask.sum() >= _MIN_IN_FRAME * fill * np.pi * thing.radius**2


def _all_show(things: list, remaining: list) -> bool:
    return all(r.sum() >= MIN_VISIBLE * t.mask.sum() for t, r in zip(things, remaining))


def stuff_regions(classes: np.ndarray, size: tuple, rng: np.random.Generator) -> np.ndarray:
    """Divides the picture among stuff ``classes`` (indices into ``STUFF_CLASSES``): (H, W) class indices.

    Each class has a smooth random field; the largest field wins. Sky tends to the top, grass and water to the
    bottom. A class below 6% of the picture gives way to the others.
    """
    height = np.linspace(1, -1, size[0], dtype=np.float32)[:, None]
    tendency = {"sky": 1.3, "grass": -0.8, "water": -0.8, "brick": 0.2}
    fields = []
    for c in classes:
        coarse = rng.standard_normal((4, 4), dtype=np.float32)
        smooth = cv2.resize(coarse, size[::-1], interpolation=cv2.INTER_CUBIC)
        fields.append(smooth + tendency[STUFF_CLASSES[c]] * height)
    fields = np.stack(fields)
    while True:
        winner = fields.argmax(axis=0)
        shares = np.bincount(winner.ravel(), minlength=len(classes)) / winner.size
        small = (shares > 0) & (shares < 0.06)
        if not small.any():
            return classes[winner]
        fields[np.flatnonzero(small)[0]] = -np.inf
