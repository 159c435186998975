"""Checks of settings and of what cells and layers are given: one rule, whatever name it goes by."""

import math
from numbers import Integral, Real
from typing import NamedTuple

from torch import Tensor


class Range(NamedTuple):
    """Numbers from ``least`` to ``most``; ``whole`` admits integers alone, ``below`` leaves ``most`` itself out."""

    least: float
    most: float
    whole: bool = False
    below: bool = False


COUNT = Range(1, math.inf, whole=True)


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


def check_drive(layer: str, x) -> None:
    """Raise ValueError where ``x`` is no floating-point tensor (R, C, ...). layer: its name, for errors."""
    if not isinstance(x, Tensor) or x.dim() < 2 or not x.is_floating_point():
        found = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"{layer} needs a floating-point drive (R, C, ...), got {found}")


def check_step(cell: str, channels: int, x: Tensor, state: Tensor, state_channels: int) -> None:
    """Raise ValueError unless the drive is (N, C, H, W) and the state has its channels and the same N, H, W.

    A drive of one channel, or without batch, would be broadcast without a word. cell: its name, for errors.
    """
    if x.dim() != 4 or x.shape[1] != channels or state.shape != (x.shape[0], state_channels, *x.shape[2:]):
        wanted = "like it" if state_channels == channels else f"(N, {state_channels}, H, W)"
        raise ValueError(
            f"{cell} of {channels} channels needs a drive (N, {channels}, H, W) and a state {wanted}, "
            f"got {tuple(x.shape)} and {tuple(state.shape)}"
        )


def start_of(layer, x: Tensor) -> Tensor:
    """A recurrent layer's initial state for drive x (R, C, ...). TypeError or ValueError where a subclass's can be no state."""
    state, name = layer.initial_state(x), f"{type(layer).__name__}.initial_state"
    if not isinstance(state, Tensor):
        found = type(state).__name__
        raise TypeError(f"{name} must return a tensor, not {found}: concatenate several states over channels")
    # all states take its type: whole numbers would be cut off at every step
    if not state.is_floating_point():
        raise ValueError(f"{name} must return floating-point numbers, got {state.dtype}")
    return state


def check_next_state(cell: str, new, state: Tensor) -> None:
    """TypeError or ValueError unless ``new``, made of ``state``, is a floating-point tensor of its shape. cell: its name."""
    if not isinstance(new, Tensor):
        found = type(new).__name__
        raise TypeError(f"{cell} must return the next state, a tensor, not {found}: concatenate several states over channels")
    # states keep their type: the rest of complex or whole numbers would be lost at every step
    if not new.is_floating_point():
        raise TypeError(f"{cell} must return floating-point numbers, got {new.dtype}")
    if new.shape != state.shape:
        # a learned start, for one, may lack the samples of the drive
        channels = new.shape[:1] + new.shape[2:] == state.shape[:1] + state.shape[2:]
        remedy = "set its state_channels to the channels of its state" if channels else "let initial_state return that shape"
        raise ValueError(f"{cell} turned a state of shape {tuple(state.shape)} into {tuple(new.shape)}: {remedy}")


def check_sizes(name: str, channels: int, kernel_size: int) -> None:
    """Raise ValueError where ``channels`` is not at least 1 or ``kernel_size`` not odd. name: of the module, for errors."""
    for size, value in (("channels", channels), ("kernel size", kernel_size)):
        check_setting(f"{name} {size}", value, COUNT)
    if kernel_size % 2 == 0:
        raise ValueError(f"{name} kernel size must be odd, got {kernel_size}")
