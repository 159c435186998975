"""Geometry of Pathfinder: grows dashed contours that keep their distance from one another.

A contour is a chain of straight dashes. Each dash sits in the middle of a piece of length dash_length + 2 gap; the
next piece starts where this one ends, turned by a random angle. Plain Python floats: every step looks at a handful
of dashes only, where array calls would cost more than the arithmetic.
"""

import math
from typing import Iterator, NamedTuple

import numpy as np

from rfpn.data.pathfinder.settings import GenerationError, PathfinderSettings

TURNS_PER_DASH = 8  # candidates for one dash before it counts as a dead end
DEAD_ENDS_PER_CONTOUR = 5  # dead ends before a contour is given up
PLACES_PER_DISTRACTOR = 100  # before the whole sample starts afresh
CANDIDATES_PER_SAMPLE = 500_000  # some seconds, before the sample is given up; with fewer a rare one ends a long run


class Dash(NamedTuple):
    """One dash: centre (x, y) in pixels, unit vector (ux, uy) along it, number of its contour."""

    x: float
    y: float
    ux: float
    uy: float
    contour: int


class Scene(NamedTuple):
    """Contours of one sample: 0 is the target, 1 the other long one, then the short ones.

    ``marker`` is the (x, y) of the disc's centre: the outer tip of the target's first dash. ``dashes`` are in the
    order of their chains.
    """

    dashes: list[Dash]
    marker: tuple


def draw_scene(settings: PathfinderSettings, rng: np.random.Generator) -> Scene:
    """Draws the contours of one sample.

    Raises:
        GenerationError: the contours do not fit after a bounded number of candidates.
    """
    growth = _Growth(settings, rng)
    while True:
        growth.dashes = []
        if growth.add_long_pair() and all(growth.add_distractor(2 + k) for k in range(settings.distractors)):
            return Scene(sorted(growth.dashes, key=lambda dash: dash.contour), growth.marker)


class _Growth:
    """Dashes placed so far, and the random numbers left."""

    def __init__(self, settings: PathfinderSettings, rng: np.random.Generator):
        self.settings = settings
        self.dashes: list[Dash] = []
        self.marker = (0.0, 0.0)
        self.left = CANDIDATES_PER_SAMPLE
        self.uniform = _uniforms(rng).__next__
        self.half = settings.dash_length / 2
        self.half_piece = settings.reach / 2
        # Axes stay within [low, high], so that strokes stay within the padding.
        self.low = settings.padding + settings.thickness / 2
        self.high = settings.window - self.low

    def add_long_pair(self) -> bool:
        """Grows both long contours; the first starts anywhere in the middle three fifths of the window."""
        s = self.settings
        margin = max(s.window / 5, s.padding + s.marker_radius)
        x, y = (margin + self.uniform() * (s.window - 2 * margin) for _ in range(2))
        angle = self.uniform() * 2 * math.pi
        starts = ((x, y), (x + s.start_distance * math.cos(angle), y + s.start_distance * math.sin(angle)))
        first = int(self.uniform() * 2)  # whether the target grows first or second is a coin's toss
        self.marker = starts[first]
        return all(self.grow(contour, start, s.length) for contour, start in zip((first, 1 - first), starts))

    def add_distractor(self, contour: int) -> bool:
        """Grows one short contour anywhere."""
        span = self.high - self.low
        for _ in range(PLACES_PER_DISTRACTOR):
            start = (self.low + self.uniform() * span, self.low + self.uniform() * span)
            if self.grow(contour, start, self.settings.distractor_length):
                return True
        return False

    def grow(self, contour: int, start: tuple, length: int) -> bool:
        """Adds a contour of ``length`` dashes whose first tip is ``start``; False, and nothing added, if stuck."""
        placed, dead_ends = len(self.dashes), 0
        pending: list[list] = []  # for each dash of this contour, those that it came near to and must cross next
        while len(pending) < length:
            uncrossed = self._extend(contour, start, len(pending), pending[-1] if pending else [])
            if uncrossed is not None and not (uncrossed and len(pending) == length - 1):
                pending.append(uncrossed)
                continue
            # A dead end: take back the last dashes, the more the oftener it happened, and go another way.
            dead_ends += 1
            keep = len(pending) - dead_ends
            if keep < 1 or dead_ends > DEAD_ENDS_PER_CONTOUR:
                del self.dashes[placed:]
                return False
            del self.dashes[placed + keep :], pending[keep:]
        return True

    def _extend(self, contour: int, start: tuple, step: int, pending: list) -> list | None:
        """Adds the next dash; returns the dashes that it is near to without having crossed them, None if stuck."""
        for _ in range(TURNS_PER_DASH):
            dash = self._candidate(contour, start, step)
            near = self._near(dash, step)
            if near is None:
                continue
            crossed = self._crossed(dash, {*near, *pending}) if step and (near or pending) else set()
            if crossed.issuperset(pending):
                self.dashes.append(dash)
                return [other for other in near if other not in crossed]
        return None

    def _candidate(self, contour: int, start: tuple, step: int) -> Dash:
        self.left -= 1
        if self.left < 0:
            raise GenerationError(
                f"no sample fits after {CANDIDATES_PER_SAMPLE} candidate dashes; shorten or thin out the contours, "
                f"or enlarge the window. Settings: {self.settings.describe()}"
            )
        if step == 0:
            angle = self.uniform() * 2 * math.pi
            ux, uy = math.cos(angle), math.sin(angle)
            return Dash(start[0] + self.half * ux, start[1] + self.half * uy, ux, uy, contour)
        last = self.dashes[-1]
        # The sum of two uniform variates: small turns are likelier than large ones.
        turn = (self.uniform() + self.uniform() - 1) * self.settings.max_turn
        cos, sin = math.cos(turn), math.sin(turn)
        ux, uy = last.ux * cos - last.uy * sin, last.ux * sin + last.uy * cos
        piece = self.half_piece
        return Dash(last.x + piece * (last.ux + ux), last.y + piece * (last.uy + uy), ux, uy, contour)

    def _near(self, dash: Dash, step: int) -> list[int] | None:
        """None if ``dash`` cannot be placed, else the dashes of other contours that it is near enough to cross.

        Near means closer than the clearance, which only a crossing may be: there the two contours pass through one
        another's gaps, and the four dashes around still do not touch.
        """
        s, half = self.settings, self.half
        dx, dy = half * abs(dash.ux), half * abs(dash.uy)
        if not (self.low + dx <= dash.x <= self.high - dx and self.low + dy <= dash.y <= self.high - dy):
            return None
        if dash.contour or step > 1:
            if _point_distance_squared(*self.marker, dash, half) < s.marker_clearance**2:
                return None
        x, y, _, _, contour = dash
        reach = s.clearance + s.dash_length
        dashes = self.dashes[:-1] if step else self.dashes  # the neighbour on the same contour is at its distance
        near = []
        for k, other in enumerate(dashes):
            if -reach < other[0] - x < reach and -reach < other[1] - y < reach:
                distance = _distance_squared(dash, other, half)
                if distance < s.clearance * s.clearance:
                    if other[4] == contour or distance < s.touch_distance * s.touch_distance:
                        return None
                    near.append(k)
        return near

    def _crossed(self, dash: Dash, others: set) -> set:
        """Those of ``others`` next to whose gap the step from the last dash to ``dash`` crosses their contour."""
        dashes, last = self.dashes, self.dashes[-1]
        crossed = set()
        for k in others:
            for neighbour in (k - 1, k + 1):
                if 0 <= neighbour < len(dashes) and dashes[neighbour].contour == dashes[k].contour:
                    if _intersect(last, dash, dashes[k], dashes[neighbour]):
                        crossed.add(k)
        return crossed


def _uniforms(rng: np.random.Generator) -> Iterator[float]:
    while True:
        yield from rng.random(256).tolist()


def _point_distance_squared(px: float, py: float, dash: Dash, half: float) -> float:
    dx, dy = px - dash[0], py - dash[1]
    along = abs(dx * dash[2] + dy * dash[3]) - half
    across = dx * dash[3] - dy * dash[2]
    return across * across + (along * along if along > 0 else 0.0)


def _distance_squared(a: Dash, b: Dash, half: float) -> float:
    """Squared distance of two axes: 0 if they cross, else attained at one of the four tips."""
    ax, ay, bx, by = half * a[2], half * a[3], half * b[2], half * b[3]
    side = (b[0] - a[0]) * a[3] - (b[1] - a[1]) * a[2], (a[0] - b[0]) * b[3] - (a[1] - b[1]) * b[2]
    sine = half * abs(a[2] * b[3] - a[3] * b[2])
    if abs(side[0]) < sine and abs(side[1]) < sine:
        return 0.0
    return min(
        _point_distance_squared(a[0] + ax, a[1] + ay, b, half),
        _point_distance_squared(a[0] - ax, a[1] - ay, b, half),
        _point_distance_squared(b[0] + bx, b[1] + by, a, half),
        _point_distance_squared(b[0] - bx, b[1] - by, a, half),
    )


def _intersect(a: Dash, b: Dash, c: Dash, d: Dash) -> bool:
    """Whether the segment from a's centre to b's crosses that from c's to d's."""

    def side(p, q, r):
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0
