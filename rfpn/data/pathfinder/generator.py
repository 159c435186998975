"""Makes single Pathfinder samples in memory, each from its own stream of random numbers."""

import numpy as np

from rfpn.data.pathfinder.contours import Scene, draw_scene
from rfpn.data.pathfinder.render import draw_picture, target_share
from rfpn.data.pathfinder.settings import SHARE_TOLERANCE, SPLITS, GenerationError, PathfinderSettings, whole_number

DRAWS_PER_SAMPLE = 20  # a rare one misses the published share of target pixels and is drawn again


def generate_sample(
    length: int, seed: int, index: int, split: str = "train", **options
) -> tuple[np.ndarray, np.ndarray, dict]:
    """Sample ``index`` of a split. The same arguments give the same sample, in any process and order.

    Args:
        length: dashes in each long contour.
        seed: of the whole set, 0 or more.
        index: of the sample in its split, from 0.
        split: ``train`` or ``test``; their random streams are distinct.
        options: fields of :class:`PathfinderSettings`, e.g. ``window=128``.

    Returns:
        image: uint8 (H, W), grey. target: uint8 (H, W), 255 on the dashes and marker of the target, else 0.
        info: ``marker`` (x, y) in pixels; ``dashes`` float64 (D, 3), centre x, y and angle in radians in the order
        of their chains; ``contour`` int64 (D,), 0 the target, 1 the other long contour, from 2 the short ones.

    Raises:
        GenerationError: the contours do not fit; within seconds, listing the settings.
        TypeError, ValueError: an argument is not valid.
    """
    settings = PathfinderSettings(length, **options)
    rng = sample_rng(settings.length, seed, index, split)
    share = settings.published_share
    for _ in range(DRAWS_PER_SAMPLE):
        scene = draw_scene(settings, rng)
        picture = draw_picture(scene, settings)
        if share is None or abs(target_share(picture.target) - share) <= SHARE_TOLERANCE:
            return picture.image, picture.target, _info(scene)
    raise GenerationError(f"the target keeps missing its published share of pixels. Settings: {settings.describe()}")


def _info(scene: Scene) -> dict:
    x, y, ux, uy, contour = np.array(scene.dashes).T
    return {
        "marker": scene.marker,
        "dashes": np.stack([x, y, np.arctan2(uy, ux)], axis=1),
        "contour": contour.astype(np.int64),
    }


def sample_rng(length: int, seed: int, index: int, split: str) -> np.random.Generator:
    """The random numbers of one sample: a stream of its own for each (seed, length, split, index)."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    key = (length, SPLITS.index(split), whole_number("index", index, 0))
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(whole_number("seed", seed, 0), spawn_key=key)))
