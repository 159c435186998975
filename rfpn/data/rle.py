"""COCO's compressed run-length masks, checked before C code reads them.

pycocotools' scoring writes beyond its memory where the runs of a mask don't fit its size, and its decoder takes a mask
that ends early.
"""

import numpy as np

_MOST_CHARACTERS = 7  # of one number: 35 bits


def fits(mask: dict, shape: tuple) -> bool:
    """Whether a compressed mask (``size``, ``counts`` str or bytes) is whole: its runs fill (H, W) = ``shape`` exactly."""
    counts = mask.get("counts")
    if isinstance(counts, str):
        counts = counts.encode("ascii", "replace")
    if not isinstance(counts, bytes) or list(mask.get("size", ())) != list(shape):
        return False
    runs = _runs(np.frombuffer(counts, dtype=np.uint8).astype(np.int64) - 48)
    return runs is not None and bool((runs >= 0).all()) and int(runs.sum()) == shape[0] * shape[1]


def _runs(characters: np.ndarray):
    """Lengths of the runs, from the characters less 48; None where these are no numbers.

    A number's characters hold 5 bits each, least first; bit 6 says that another follows, bit 5 of the last is the
    sign. From the fourth run on, the difference to the last but one is stored.
    """
    more = (characters & 32) > 0
    if not len(characters) or characters.min() < 0 or characters.max() > 63 or more[-1]:
        return None
    ends = np.flatnonzero(~more)
    starts = np.concatenate([[0], ends[:-1] + 1])
    if (ends - starts).max() >= _MOST_CHARACTERS:
        return None
    place = 5 * (np.arange(len(characters)) - np.repeat(starts, ends - starts + 1))
    numbers = np.add.reduceat((characters & 31) << place, starts)
    negative = (characters[ends] & 16) > 0
    numbers -= negative.astype(np.int64) << (5 * (ends - starts + 1))
    for first in (1, 2):
        numbers[first::2] = np.cumsum(numbers[first::2])
    return numbers
