"""Checks of single settings: one rule says what a value may be, whatever name it goes by."""

from numbers import Real
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
            raise ValueError(f"{name} must be one of {', '.join(rule)}, got {value!r}")
    elif isinstance(value, bool) or not isinstance(value, int if rule.whole else Real):
        raise ValueError(f"{name} must be a {'whole ' if rule.whole else ''}number, got {value!r}")
    elif rule.below and not rule.least <= value < rule.most:
        raise ValueError(f"{name} must lie in [{rule.least}, {rule.most}), got {value}")
    elif not value >= rule.least:
        raise ValueError(f"{name} must be at least {rule.least}, got {value}")
    elif value > rule.most:
        raise ValueError(f"{name} must be at most {rule.most}, got {value}")
