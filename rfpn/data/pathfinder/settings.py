"""Settings of the Pathfinder generator, with the published values as defaults."""

import math
from dataclasses import asdict, dataclass, fields
from numbers import Real

SPLITS = ("train", "test")
# Share of target pixels at half size, by length, in the logs of the published runs; samples keep within the tolerance.
PUBLISHED_SHARE = {14: 0.0030, 20: 0.0041, 25: 0.0050}
SHARE_TOLERANCE = 0.0008
MOST_WINDOW = 4096  # a larger one would fill the memory
LEAST_RADIUS = 1.21  # of a disc that covers a whole pixel wherever its centre lies: (1 + sqrt(2)) / 2


class GenerationError(ValueError):
    """No sample with these settings; the message lists them."""


@dataclass(frozen=True)
class PathfinderSettings:
    """Geometry and looks of a sample. Lengths are in pixels of the generated image; angles in radians.

    Raises:
        TypeError: a count is not an integer.
        ValueError: a value is out of range, or two values do not go together.
    """

    length: int  # dashes in each of the two long contours
    window: int = 300  # height and width of the image
    dash_length: float = 5.0
    thickness: float = 1.9
    gap: float = 3.0  # free margin at either end of a dash, so dashes of a contour lie 2 * gap apart
    continuity: float = 1.8  # dashes turn by at most 1.4 / continuity
    marker_radius: float = 5.0
    start_distance: float = 27.0  # between the first dashes of the two long contours
    padding: int = 22  # margin of the image that no dash enters
    distractors: int | None = None  # short contours; None: 30 / (length / 3)
    distractor_length: int | None = None  # dashes in a short contour; None: length / 3
    target_level: float = 0.7  # share of a pixel that a target stroke covers where the target is set

    def __post_init__(self):
        # None stands for a rule, so the values that it gives are filled in once and recorded as used.
        if self.distractors is None:
            object.__setattr__(self, "distractors", 90 // whole_number("length", self.length, 3))
        if self.distractor_length is None:
            object.__setattr__(self, "distractor_length", whole_number("length", self.length, 3) // 3)
        least = {"length": 3, "window": 32, "padding": 0, "distractors": 0, "distractor_length": 1}
        for name, bound in least.items():
            object.__setattr__(self, name, whole_number(name, getattr(self, name), bound))
        for field in fields(self):
            if field.type is not float:
                continue
            value = getattr(self, field.name)
            if not (isinstance(value, Real) and math.isfinite(value) and value > 0):
                raise ValueError(f"{field.name} must be a positive number, got {value!r}")
            # of any type of number, but one kind on record
            object.__setattr__(self, field.name, float(value))
        if self.window > MOST_WINDOW:
            raise ValueError(f"window must be at most {MOST_WINDOW}, got {self.window}")
        self._check_together()

    def _check_together(self):
        if 2 * self.padding + max(self.reach, 2 * self.marker_radius) >= self.window:
            raise ValueError(f"padding {self.padding} leaves no room for contours in a window of {self.window}")
        if self.padding < self.marker_radius + 1:
            raise ValueError(f"padding {self.padding} must exceed marker_radius {self.marker_radius} by 1 or more")
        if self.marker_radius < LEAST_RADIUS:
            raise ValueError(
                f"marker_radius {self.marker_radius} gives no white pixel at some places: set it to {LEAST_RADIUS} or more"
            )
        if self.continuity < 1:
            raise ValueError(f"continuity {self.continuity} must be 1 or more: dashes would turn by over 90 degrees")
        if not 0.5 <= self.target_level <= 1:
            raise ValueError(f"target_level {self.target_level} must lie in [0.5, 1]: what covers half a pixel owns it")
        if self.target_level > self.thickness / 2:
            raise ValueError(
                f"target_level {self.target_level} would break strokes of thickness {self.thickness}: "
                f"set it to {self.thickness / 2} or less"
            )
        bend = math.cos(self.max_turn / 2)  # neighbours are this much nearer at the sharpest turn
        if self.clearance * bend < self.touch_distance:
            least = math.ceil(50 * self.touch_distance / bend) / 100
            raise ValueError(f"gap {self.gap} lets dashes touch: set it to {least} or more")
        if self.dash_length + self.gap < self.marker_radius + self.touch_distance / 2:
            raise ValueError(f"marker_radius {self.marker_radius} hides more than the first dash: lower it")

    @property
    def reach(self) -> float:
        """Room that one dash takes along its contour."""
        return self.dash_length + 2 * self.gap

    @property
    def max_turn(self) -> float:
        """Largest turn from one dash to the next, radians; 45 degrees in the published pictures, at continuity 1.8."""
        return 1.4 / self.continuity

    @property
    def clearance(self) -> float:
        """Least distance between the axes of two dashes: that between neighbours on a straight contour."""
        return 2 * self.gap

    @property
    def touch_distance(self) -> float:
        """Distance of two axes from which no half-covered pixel of one stroke is next to one of the other."""
        return self.thickness + 1.7

    @property
    def marker_clearance(self) -> float:
        """Least distance from the marker's centre to the axis of any dash but the target's first."""
        return self.marker_radius + max(self.gap, self.touch_distance - self.thickness / 2)

    @property
    def published_share(self) -> float | None:
        """Share of target pixels at half size in the published set with these settings; None if there is none."""
        return PUBLISHED_SHARE.get(self.length) if self == PathfinderSettings(self.length) else None

    def describe(self) -> str:
        """``name=value`` of every setting, on one line."""
        return ", ".join(f"{name}={value}" for name, value in asdict(self).items())


def whole_number(name: str, value, least: int) -> int:
    """``value``, of any type of number, as int. TypeError for a fraction or no number, ValueError below ``least``; by name."""
    # neither NaN nor inf is its own floor
    if isinstance(value, bool) or not isinstance(value, Real) or value != value // 1:
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be {least} or more, got {value}")
    return int(value)
