"""Compares generated samples with those of the public generator, where they lie beside the checkout."""

from pathlib import Path

import numpy as np
import pytest
from compare_pathfinder import measure_all

from rfpn.data.pathfinder.generator import generate_sample

REFERENCE = Path(__file__).parents[4] / "shared" / "reference" / "pathfinder_samples.npz"
COUNT = 25  # samples on either side

# How far the means may be apart, as a share of the reference's: wider where a sample gives one number only.
TOLERANCES = {
    "mean brightness": 0.03,
    "share of bright pixels (%)": 0.03,
    "dashes beside the target": 0.01,
    "target dashes in sight": 0.01,
    "length of a dash": 0.04,
    "area of a dash": 0.04,
    "step between dashes": 0.03,
    "turn (degrees)": 0.12,
    "marker to second dash": 0.07,
    "marker to last dash": 0.1,
    "marker from centre": 0.35,
    "others from centre": 0.06,
    "marker to start of second contour": 0.06,
    "marker to nearest other dash": 0.25,
    "target to nearest other dash": 0.25,
}


@pytest.mark.skipif(not REFERENCE.is_file(), reason="no reference samples beside the checkout")
@pytest.mark.parametrize("length, published_share", [(14, 0.30), (20, 0.41)])
def test_samples_are_like_those_of_the_public_generator(length, published_share):
    with np.load(REFERENCE) as reference:
        theirs = measure_all(reference[f"image_{length}"][:COUNT], reference[f"target_{length}"][:COUNT], length)
    ours = measure_all(*zip(*(generate_sample(length, 0, index)[:2] for index in range(COUNT))), length)
    for name, tolerance in TOLERANCES.items():
        assert ours[name].mean() == pytest.approx(theirs[name].mean(), rel=tolerance), name
    assert theirs["crossings in a sample"].mean() < 0.1 and ours["crossings in a sample"].mean() < 0.25
    # At half brightness, as the public generator takes them, target strokes are thicker than the published logs say.
    assert ours["share of target at 150 (%)"].mean() == pytest.approx(published_share, abs=0.04)
    assert theirs["share of target at 150 (%)"].mean() > published_share + 0.05
