import dataclasses

import numpy as np
import pytest
import torch
from scipy import ndimage

from rfpn.data.pathfinder.contours import Dash, Scene, draw_scene
from rfpn.data.pathfinder.render import (
    TIP,
    _disc_coverage,
    _stroke_coverage,
    draw_picture,
    find_problem,
    target_share,
)
from rfpn.data.pathfinder.settings import LEAST_RADIUS, GenerationError, PathfinderSettings

SETTINGS = PathfinderSettings(14)
EIGHT = np.ones((3, 3))


@pytest.fixture(scope="module")
def drawn():
    made = [draw_scene(SETTINGS, np.random.default_rng(k)) for k in range(4)]
    return [(scene, draw_picture(scene, SETTINGS)) for scene in made]


def stroke(angle, x=40.3, y=41.1):
    """Picture of one stroke, in [0, 1]."""
    settings = dataclasses.replace(SETTINGS, window=80)
    pixel, _, share = _stroke_coverage(*(np.array([v]) for v in (x, y, np.cos(angle), np.sin(angle))), settings)
    picture = np.zeros((80, 80))
    picture.flat[pixel] = share
    return picture


@pytest.mark.parametrize("angle", np.linspace(0, np.pi, 7))
def test_a_stroke_has_its_area_centre_and_direction(angle):
    picture = stroke(angle)
    assert picture.sum() == pytest.approx((SETTINGS.dash_length + 2 * TIP) * SETTINGS.thickness, rel=0.03)
    y, x = (axis + 0.5 for axis in np.mgrid[:80, :80])
    assert np.average(x, weights=picture) == pytest.approx(40.3, abs=0.05)
    assert np.average(y, weights=picture) == pytest.approx(41.1, abs=0.05)
    spread = np.cov(np.stack([x.ravel(), y.ravel()]), aweights=picture.ravel(), bias=True)
    along = np.array([np.cos(angle), np.sin(angle)])
    assert along @ spread @ along == pytest.approx(np.linalg.eigvalsh(spread)[1], rel=0.01)


def test_strokes_are_brightest_in_the_middle_and_fade_in_steps():
    picture = stroke(0.0, x=40.5, y=40.5)
    np.testing.assert_allclose(picture[38:43, 40], [0, 0.45, 1, 0.45, 0], atol=1e-6)


def test_F1_images_are_8_bit_and_strokes_saturate_without_wrapping(drawn):
    for scene, (image, target, _) in drawn:
        assert image.dtype == target.dtype == np.uint8 and image.shape == target.shape == (300, 300)
        assert image.min() == 0 and image.max() == 255
        assert set(np.unique(target)) == {0, 255}
        for axis in (0, 1):  # no dark pixel between two bright ones
            before, after = np.roll(image, 1, axis), np.roll(image, -1, axis)
            assert not ((image < 64) & (before > 200) & (after > 200)).any()
        assert image[target > 0].min() >= 255 * 0.7


def test_F2_the_marker_is_bright_and_sits_on_the_target(drawn):
    for scene, (image, target, _) in drawn:
        y, x = np.mgrid[:300, :300] + 0.5
        core = np.hypot(x - scene.marker[0], y - scene.marker[1]) <= 4
        assert image[core].min() >= 200 and (target[core] == 255).all()
        strokes = np.zeros(300 * 300)
        arrays = np.array(scene.dashes).T[:4]
        pixel, _, share = _stroke_coverage(*arrays, SETTINGS)
        np.add.at(strokes, pixel, share)
        without = (np.minimum(strokes, 1) * 255 + 0.5).astype(np.uint8).reshape(300, 300)
        assert (without != image).sum() >= 20
        outside = np.hypot(x - scene.marker[0], y - scene.marker[1]) > 6
        np.testing.assert_array_equal(without[outside], image[outside])


def test_F6_the_target_is_one_chain_with_the_marker_and_nothing_touches(drawn):
    for scene, (image, target, _) in drawn:
        labels, count = ndimage.label(target, EIGHT)
        assert count == 14  # 13 dashes, and the marker with the first one
        for k, dash in enumerate(scene.dashes[:14]):
            assert labels[int(dash.y), int(dash.x)] > 0
        assert ndimage.label(image >= 128, EIGHT)[1] == len(scene.dashes)
        assert not (target.astype(bool) & (image < 128)).any()


def two_chains(marker=(50.0, 150.0), count=14, second=(52.5, 200.0)):
    """Straight contours: the target of ``count`` dashes from the marker on, another of 14 from ``second`` on."""
    dashes = [Dash(52.5 + 11 * k, 150.0, 1.0, 0.0, 0) for k in range(count)]
    return Scene(dashes + [Dash(second[0] + 11 * k, second[1], 1.0, 0.0, 1) for k in range(14)], marker)


def test_F1_strokes_that_add_up_to_more_than_white_are_white(monkeypatch):
    monkeypatch.setattr("rfpn.data.pathfinder.render.find_problem", lambda *_: "")  # which refuses strokes so close
    scene = two_chains(marker=(50.0, 150.8), second=(74.5, 152.5))
    dashes = [dash._replace(y=150.8) for dash in scene.dashes[:14]] + scene.dashes[14:]
    image = draw_picture(scene._replace(dashes=dashes), SETTINGS).image
    assert (image[150:153, 74] == 255).all()  # the middle pixel is covered by 0.75 and 0.45


@pytest.mark.parametrize(
    "scene, problem",
    [
        (two_chains(second=(74.5, 150.0)), "two dashes overlap"),
        (two_chains(second=(74.5, 152.0)), "two dashes touch"),
        (two_chains(second=(44.0, 154.0)), "a dash runs into the marker"),
        (two_chains(count=13), "does not hold the 14 dashes"),
    ],
)
def test_F6_bad_scenes_are_refused(scene, problem):
    draw_picture(two_chains(), SETTINGS)
    with pytest.raises(GenerationError, match=problem):
        draw_picture(scene, SETTINGS)


@pytest.mark.parametrize("down, right", [(0, 1), (1, -1), (1, 0), (1, 1)])
def test_F6_dashes_touch_in_any_direction(down, right):
    picture = draw_picture(two_chains(), SETTINGS)
    picture.owner[20, 20], picture.owner[20 + down, 20 + right] = 1, 2
    assert find_problem(picture, two_chains(), SETTINGS) == "two dashes touch"


def test_F2_a_picture_without_its_marker_is_found():
    picture = draw_picture(two_chains(), SETTINGS)
    assert find_problem(picture, two_chains(), SETTINGS) == ""
    elsewhere = two_chains(marker=(62.0, 170.0))
    assert find_problem(picture, elsewhere, SETTINGS) == "the marker is not visible"


def test_a_broken_chain_is_found():
    scene = two_chains()
    far = scene.dashes[13]._replace(y=120.0)
    with pytest.raises(GenerationError, match="chain is broken"):
        draw_picture(scene._replace(dashes=scene.dashes[:13] + [far] + scene.dashes[14:]), SETTINGS)


def test_the_marker_has_the_area_of_its_disc():
    assert _disc_coverage(150.3, 149.8, SETTINGS)[1].sum() == pytest.approx(np.pi * 25, rel=0.02)


def test_the_smallest_marker_has_a_white_pixel_wherever_it_lies():
    """One of radius 1.2 has none at the corner of four pixels."""
    smallest = dataclasses.replace(SETTINGS, marker_radius=LEAST_RADIUS)
    places = 150 + np.linspace(0, 1, 11)
    assert all((_disc_coverage(x, y, smallest)[1] >= 1).any() for x in places for y in places)


def test_target_share_is_that_of_bicubic_resizing_to_half_size(drawn):
    for _, (_, target, _) in drawn:
        full = torch.from_numpy(target / 255)[None, None]
        half = torch.nn.functional.interpolate(full, size=(150, 150), mode="bicubic", align_corners=False)
        assert target_share(target) == pytest.approx((half > 0.2).double().mean().item(), abs=1e-9)
