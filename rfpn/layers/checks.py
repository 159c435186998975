"""Checks of single settings: one rule says what a value may be, whatever name it goes by."""

import math
from numbers import Integral, Real
from typing import NamedTuple


class Range(NamedTuple):
    """Numbers from ``least`` to ``most``; ``whole`` admits integers alone, ``below`` leaves ``most`` itself out."""

    least: float
    most: float
    whole: bool = False
    below: bool = False


def check_setting(name: str, value, rule: Range | tuple) -> None:
    """Raise ValueError naming a setting whose value breaks its rule: a :class:`Range`, or the values to choose from."""
    if not isinstance(rule, Range):
        if value not in rule:
            raise ValueError(f"{name} must be one of {', '.join(map(str, rule))}, got {value!r}")
    elif isinstance(value, bool) or not isinstance(value, Integral if rule.whole else Real):
        raise ValueError(f"{name} must be a {'whole ' if rule.whole else ''}number, got {value!r}")
    elif rule.below and not rule.least <= value < rule.most:
        raise ValueError(f"{name} must lie in [{rule.least}, {rule.most}), got {value}")
    elif not value >= rule.least:
        raise ValueError(f"{name} must be at least {rule.least}, got {value}")
    elif value > rule.most:
        raise ValueError(f"{name} must be at most {rule.most}, got {value}")


def check_sizes(name: str, channels: int, kernel_size: int) -> None:
    """Raise ValueError where ``channels`` is not at least 1 or ``kernel_size`` not odd. name: of the module, for errors."""
    for size, value in (("channels", channels), ("kernel size", kernel_size)):
        check_setting(f"{name} {size}", value, Range(1, math.inf, whole=True))
    if kernel_size % 2 == 0:
        raise ValueError(f"{name} kernel size must be odd, got {kernel_size}")
