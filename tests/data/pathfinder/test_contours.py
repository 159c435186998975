import itertools
import time

import numpy as np
import pytest

from rfpn.data.pathfinder.contours import CANDIDATES_PER_SAMPLE, Dash, _distance_squared, _intersect, draw_scene
from rfpn.data.pathfinder.settings import GenerationError, PathfinderSettings


def scenes(length, count=4, **options):
    settings = PathfinderSettings(length, **options)
    return settings, [draw_scene(settings, np.random.default_rng(k)) for k in range(count)]


def points(dash, settings, count=41):
    along = np.linspace(-0.5, 0.5, count) * settings.dash_length
    return np.array([dash.x, dash.y]) + along[:, None] * np.array([dash.ux, dash.uy])


@pytest.mark.parametrize("length", [6, 14, 25])
def test_F6_contours_are_chains_of_the_lengths_asked_for(length):
    settings, drawn = scenes(length)
    for scene in drawn:
        counts = np.bincount([dash.contour for dash in scene.dashes])
        assert counts.tolist() == [length] * 2 + [settings.distractor_length] * settings.distractors
        for _, chain in itertools.groupby(scene.dashes, key=lambda dash: dash.contour):
            for a, b in itertools.pairwise(chain):
                turn = np.arctan2(a.ux * b.uy - a.uy * b.ux, a.ux * b.ux + a.uy * b.uy)
                assert abs(turn) <= settings.max_turn + 1e-9
                end = np.array([a.x + settings.reach / 2 * a.ux, a.y + settings.reach / 2 * a.uy])
                start = np.array([b.x - settings.reach / 2 * b.ux, b.y - settings.reach / 2 * b.uy])
                np.testing.assert_allclose(end, start)


def test_second_contour_starts_27_pixels_from_the_marker():
    settings, drawn = scenes(14)
    for scene in drawn:
        tips = [points(scene.dashes[k], settings)[0] for k in (0, 14)]
        np.testing.assert_allclose(tips[0], scene.marker)
        assert np.hypot(*(tips[1] - tips[0])) == pytest.approx(27)


def test_the_target_is_the_contour_that_grows_first_in_half_of_the_samples():
    """The first starts in the middle three fifths of the window, and the second may start outside of them."""
    settings, drawn = scenes(6, count=400, distractors=0)
    low, high = settings.window / 5, 4 * settings.window / 5
    starts = np.array([[points(scene.dashes[k], settings)[0] for k in (0, 6)] for scene in drawn])
    outside = ((starts < low - 1e-6) | (starts > high + 1e-6)).any(2)
    assert not outside.all(1).any()
    target, other = outside.sum(0)
    assert target + other > 30 and abs(target - other) < 3 * np.sqrt(target + other)


@pytest.mark.parametrize("length", [9, 20])
def test_no_two_dashes_come_near(length):
    settings, drawn = scenes(length)
    for scene in drawn:
        axes = [points(dash, settings) for dash in scene.dashes]
        for i, j in itertools.combinations(range(len(axes)), 2):
            distance = np.sqrt(((axes[i][:, None] - axes[j][None]) ** 2).sum(-1)).min()
            assert distance >= settings.touch_distance - 0.05
            if scene.dashes[i].contour == scene.dashes[j].contour and j - i > 1:
                assert distance >= settings.clearance - 0.05


def test_contours_stay_within_the_padding_and_off_the_marker():
    settings, drawn = scenes(14)
    for scene in drawn:
        for k, dash in enumerate(scene.dashes):
            axis = points(dash, settings)
            assert axis.min() >= settings.padding and axis.max() <= settings.window - settings.padding
            if k > 0:
                away = np.hypot(*(axis - scene.marker).T).min()
                assert away >= settings.marker_radius + settings.gap - 1e-6


def test_contours_cross_now_and_then_through_gaps():
    settings, drawn = scenes(25, count=60)
    near = 0
    for scene in drawn:
        pairs = itertools.combinations(scene.dashes, 2)
        near += any(
            _distance_squared(a, b, 2.5) < (settings.clearance - 0.5) ** 2 for a, b in pairs if a.contour != b.contour
        )
    assert 1 <= near <= 30


def test_segments_cross_where_the_lines_through_them_meet_within_both():
    rng, found = np.random.default_rng(0), []
    for _ in range(200):
        a, b, c, d = rng.uniform(-5, 5, (4, 2))
        s, t = np.linalg.solve(np.stack([b - a, c - d], 1), c - a)
        found.append(_intersect(*(Dash(*point, 1.0, 0.0, 0) for point in (a, b, c, d))))
        assert found[-1] == (0 < s < 1 and 0 < t < 1)
    assert 20 < sum(found) < 180


def test_contours_come_near_only_where_they_cross():
    settings, drawn = scenes(25, count=60)
    crossings = 0
    for scene in drawn:
        chains = [list(chain) for _, chain in itertools.groupby(scene.dashes, key=lambda dash: dash.contour)]
        for one, other in itertools.combinations(chains, 2):
            distances = (_distance_squared(a, b, 2.5) for a, b in itertools.product(one, other))
            near = min(distances) < (settings.clearance - 1e-6) ** 2
            pairs = itertools.product(itertools.pairwise(one), itertools.pairwise(other))
            crossed = any(_intersect(*a, *b) for a, b in pairs)
            assert crossed or not near
            crossings += crossed
    assert crossings


def test_distance_of_two_axes_equals_that_of_dense_points():
    settings, rng = PathfinderSettings(14), np.random.default_rng(0)
    for _ in range(200):
        x, y, angle = rng.uniform(0, 8, 2), rng.uniform(0, 8, 2), rng.uniform(0, 7, 2)
        a, b = (Dash(x[k], y[k], np.cos(angle[k]), np.sin(angle[k]), k) for k in (0, 1))
        dense = np.sqrt(((points(a, settings, 201)[:, None] - points(b, settings, 201)[None]) ** 2).sum(-1)).min()
        assert np.sqrt(_distance_squared(a, b, 2.5)) == pytest.approx(dense, abs=0.03)


@pytest.mark.parametrize("options", [{"window": 48, "padding": 6}, {"window": 100, "distractors": 60}])
def test_F3_contours_that_cannot_fit_end_with_an_error(options):
    start = time.monotonic()
    with pytest.raises(GenerationError, match=rf"{CANDIDATES_PER_SAMPLE}.*length=30.*window={options['window']}"):
        draw_scene(PathfinderSettings(30, **options), np.random.default_rng(0))
    assert time.monotonic() - start < 10
