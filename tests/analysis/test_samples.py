"""Images of a data set beside ground truth and prediction."""

import numpy as np
import pytest

from rfpn.analysis.figures import draw_contour
from rfpn.analysis.overlay import build_overlay
from rfpn.analysis.samples import draw_samples
from rfpn.data.images import read_image
from tests.analysis.tiny_runs import CONTOURS, EVERYTHING, SCENES, build


def test_panoptic_samples(scenes):
    cfg, model = build(SCENES, *EVERYTHING)
    samples = list(draw_samples(build_overlay(model, cfg), "tiny_scenes", 2, [1, 2], side=128))
    assert [sample.name for sample in samples] == ["00000001.png", "00000002.png"]
    for sample in samples:
        assert list(sample.panels()) == ["image", "ground truth", "prediction"]
        assert all(picture.shape == (128, 128, 3) for picture in sample.panels().values())
        assert list(sample.steps) == [1, 2] and not np.array_equal(sample.truth, sample.prediction)
        np.testing.assert_array_equal(sample.steps[2], sample.prediction)
    assert np.abs(samples[0].image[::2, ::2].astype(int) - read_image(str(scenes), "RGB")).mean() < 20


def test_pathfinder_samples_are_predicted_in_batches_of_evaluation(contours):
    cfg, model = build(CONTOURS)
    overlay = build_overlay(model, cfg)
    assert overlay.batch_size == 4
    samples = list(draw_samples(overlay, "tiny_contours", 5, [1, 4], side=64))
    assert len(samples) == 5
    images = [sample.image[::2, ::2] for sample in samples]
    assert all(image.shape == (32, 32, 3) for image in images)
    alone = next(iter(draw_samples(overlay, "tiny_contours", 1, side=64)))
    np.testing.assert_array_equal(alone.prediction, samples[0].prediction)
    truth = samples[0].truth
    assert 0 < (truth != draw_contour(images[0], np.zeros((32, 32)), 2.0)).any(-1).mean() < 0.7


def test_a_set_has_no_more_samples_than_images(scenes):
    cfg, model = build(SCENES)
    assert len(list(draw_samples(build_overlay(model, cfg), "tiny_scenes", 9, side=64))) == 3


def test_an_unknown_set_is_named():
    cfg, model = build(SCENES)
    with pytest.raises(KeyError, match="nowhere"):
        next(draw_samples(build_overlay(model, cfg), "nowhere", 1))
