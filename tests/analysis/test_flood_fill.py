"""Floods over tessellated masks, and models that do or do not follow them."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from scipy.ndimage import distance_transform_edt
from scipy.stats import rankdata, spearmanr

from rfpn.analysis.flood_fill import (
    Similarity,
    Tessellation,
    cell_times,
    draw_flood_fill,
    draw_scores,
    similarity,
    summarise,
    tessellate,
)


def disc(size=28, radius=11):
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    return x**2 + y**2 <= radius**2


def flooding(tessellation, start, steps=None):
    """Growth (T, H, W) of a model that floods the tessellation from ``start``."""
    distances = tessellation.distances[start]
    steps = steps or int(distances.max()) + 1
    inside = tessellation.cells >= 0
    return np.stack([np.where(inside, distances[tessellation.cells] <= t, 0.0) for t in range(steps)])


def test_cells_are_the_nearest_centres_within_the_mask():
    mask = disc()
    tessellation = tessellate(mask, 20)
    assert ((tessellation.cells >= 0) == mask).all()
    pixels = np.argwhere(mask)
    labels = tessellation.cells[mask]
    centres = np.stack([pixels[labels == cell].mean(axis=0) for cell in range(labels.max() + 1)])
    nearest = np.linalg.norm(pixels[:, None] - centres[None], axis=2).argmin(axis=1)
    assert (nearest == labels).mean() > 0.97  # k-means stops a little before its centres rest
    assert (np.bincount(labels) >= 4).all()


def test_distances_count_cells_along_a_bar():
    tessellation = tessellate(np.ones((1, 40), bool), 10)
    order = tessellation.cells[0][np.r_[True, np.diff(tessellation.cells[0]) != 0]]
    assert len(order) == 10
    np.testing.assert_array_equal(tessellation.distances[order[0]][order], np.arange(10))


def test_a_flood_does_not_jump_a_gap_unless_bridged():
    mask = np.ones((6, 30), bool)
    mask[:, 14:16] = False
    apart, bridged = tessellate(mask, 10), tessellate(mask, 10, bridge=1)
    left, right = apart.cells[3, 0], apart.cells[3, -1]
    assert np.isinf(apart.distances[left, right]) and np.isfinite(bridged.distances).all()


def test_no_cell_falls_into_parts():
    mask = np.zeros((12, 12), bool)
    mask[:, :2] = mask[:, -2:] = mask[-3:] = True  # a U
    from scipy.ndimage import label

    cells = tessellate(mask, 5).cells
    assert all(label(cells == cell)[1] == 1 for cell in range(cells.max() + 1))


def test_small_masks_have_no_tessellation():
    assert tessellate(np.zeros((8, 8), bool), 20) is None
    assert tessellate(np.ones((4, 4), bool), 20) is None


def test_a_flooding_model_scores_one_and_its_start_is_found():
    tessellation = tessellate(disc(), 25)
    corner = int(tessellation.distances.sum(axis=1).argmax())
    found = similarity(tessellation, flooding(tessellation, corner))
    assert found.start == corner and found.correlation == pytest.approx(1) and found.partial == pytest.approx(1)
    assert found.reached == 1 and found.cells == len(tessellation.distances)
    assert abs(found.shuffled) < 0.3 and found.other_starts < 0.5


def test_a_mask_that_sharpens_inside_out_is_told_from_a_flood():
    mask = np.zeros((28, 28), bool)
    mask[8:20, 1:27] = True
    tessellation = tessellate(mask, 30)
    depth = distance_transform_edt(mask)
    growth = np.stack([depth > level for level in (5, 4, 3, 2, 1, 0)]).astype(float)
    found = similarity(tessellation, growth)
    assert found.edge > 0.9 and abs(found.partial) < 0.6 and found.edge > found.correlation


def test_a_mask_cut_to_its_box_is_deepest_in_its_middle():
    mask = np.ones((28, 28), bool)
    depth = np.minimum.reduce([*np.mgrid[:28, :28], *np.mgrid[:28, :28][:, ::-1, ::-1]])
    growth = np.stack([depth >= level for level in range(13, -1, -1)]).astype(float)
    found = similarity(tessellate(mask, 30), growth)
    assert found.edge > 0.9 and abs(found.partial) < 0.3


def test_times_and_cells_that_are_never_reached():
    tessellation = tessellate(np.ones((1, 40), bool), 10)
    growth = np.zeros((3, 1, 40))
    growth[1:, 0, :20] = 0.6
    growth[2, 0, 20:30] = 0.51
    times = cell_times(tessellation, growth)
    by_pixel = times[tessellation.cells[0]]
    assert set(by_pixel[:19]) == {2.0} and 3.0 in by_pixel[20:30] and np.isnan(by_pixel[-1])
    assert similarity(tessellation, growth).reached == pytest.approx(1 - np.isnan(times).mean())


def test_cells_of_one_pixel_have_times_and_those_beside_the_object_none():
    tessellation = Tessellation(np.array([[0, 1, 2, 2]]), np.array([[True, True, False, False]]), np.zeros((3, 3)))
    growth = np.array([[[0.6, 0.2, 1.0, 1.0]], [[0.6, 0.7, 1.0, 1.0]]])
    np.testing.assert_array_equal(cell_times(tessellation, growth), [1, 2, np.nan])


def test_ties_and_empty_answers_have_no_score():
    tessellation = tessellate(disc(), 20)
    at_once = similarity(tessellation, np.ones((4, 28, 28)))
    never = similarity(tessellation, np.zeros((4, 28, 28)))
    assert np.isnan(at_once.correlation) and at_once.reached == 1
    assert np.isnan(never.correlation) and never.reached == 0 and never.start == -1
    summary = summarise([at_once, never])
    assert summary["objects"] == summary["undefined"] == 2 and np.isnan(summary["mean_correlation"])


def test_a_diverged_model_reaches_nothing():
    tessellation = tessellate(disc(), 20)
    found = similarity(tessellation, np.full((4, 28, 28), np.nan))
    assert (found.reached, found.start, found.cells) == (0, -1, len(tessellation.distances))
    growth = flooding(tessellation, 3)
    whole = similarity(tessellation, growth)
    growth[0, tessellation.cells == int(tessellation.distances[3].argmax())] = np.nan  # not reached then anyway
    assert similarity(tessellation, growth) == whole


def test_summary_tests_the_score_against_controls():
    rows = [Similarity(0.8 + 0.01 * i, 0.01 * i, 0.3, 0.9, 0.4, 20, 1.0, 0) for i in range(10)]
    summary = summarise(rows)
    assert summary["mean_correlation"] == pytest.approx(0.845) and summary["undefined"] == 0
    assert summary["p_shuffled"] < 0.01 and summary["p_other_starts"] < 0.01 and summary["p_edge"] > 0.5


def test_scores_by_hand():
    """A ring of eight cells and one of a bridge; what a model reaches there, out of turn."""
    cells = np.array([[0, 0, 1, 1, 2, 2], [7, 7, -1, -1, 3, 3], [6, 6, 5, 5, 4, 4], [8, 8, -1, -1, -1, -1]])
    cells = np.kron(cells, np.ones((4, 3), int))
    around = np.abs(np.subtract.outer(np.arange(8), np.arange(8)))
    distances = np.full((9, 9), np.inf)
    distances[:8, :8] = np.minimum(around, 8 - around)
    distances[8, 8], distances[[8, 6], [6, 8]] = 0, 1
    distances[8, :8] = distances[:8, 8] = distances[6, :8] + 1
    tessellation = Tessellation(cells, (cells >= 0) & (cells < 8), distances)
    times = np.array([1, 1, 3, 2, 5, np.nan, 4, 2])
    growth = np.where(np.arange(1, 7)[:, None] >= times, 0.8, 0.3)
    growth[:, 1] += 0.1  # the surer of the two first ones
    pixels = np.where(cells < 0, 1.0, np.append(growth, np.ones((6, 1)), axis=1)[:, cells])
    found = similarity(tessellation, pixels)
    assert (found.start, found.cells, found.reached) == (1, 8, 7 / 8)
    others = np.array([0, 2, 3, 4, 6, 7])
    assert found.correlation == pytest.approx(spearmanr(times[others], distances[1, others]).statistic)
    depths = distance_transform_edt(np.pad(tessellation.mask, 1))[1:-1, 1:-1]
    depth = np.array([depths[cells == cell].mean() for cell in range(8)]).round(9)
    assert len(np.unique(depth[others])) == 2  # but for rounding, corners are alike
    assert found.edge == pytest.approx(spearmanr(times[others], -depth[others]).statistic)
    rest = [others[others != cell] for cell in others]
    elsewhere = [spearmanr(times[own], distances[cell, own]).statistic for cell, own in zip(others, rest)]
    assert found.other_starts == pytest.approx(np.mean(elsewhere))
    # what is left of the ranks after regression on those of the edge
    edge, *ranks = (rankdata(values) for values in (-depth[others], times[others], distances[1, others]))
    left = [values - np.polyval(np.polyfit(edge, values, 1), edge) for values in ranks]
    assert found.partial == pytest.approx(np.corrcoef(*left)[0, 1])


def test_summary_has_means_and_deviations_of_what_is_defined():
    nan = float("nan")
    rows = [Similarity(0.2, 0.1, 0.3, 0.4, 0.5, 20, 1.0, 0), Similarity(0.6, 0.3, 0.1, nan, nan, 20, 0.5, 0)]
    summary = summarise([*rows, Similarity(nan, 0.9, 0.9, 0.9, 0.9, 20, 0.3, 0)])
    assert (summary["objects"], summary["undefined"]) == (3, 1) and summary["mean_reached"] == pytest.approx(0.6)
    means = {"correlation": 0.4, "shuffled": 0.2, "other_starts": 0.2, "edge": 0.4, "partial": 0.5}
    deviations = {"correlation": 0.2, "shuffled": 0.1, "other_starts": 0.1, "edge": 0, "partial": 0}
    assert {name: summary[f"mean_{name}"] for name in means} == pytest.approx(means)
    assert {name: summary[f"sd_{name}"] for name in means} == pytest.approx(deviations)
    # both gains over the shuffled times are positive, of the edge there is one alone
    assert summary["p_shuffled"] == pytest.approx(0.25) and np.isnan(summary["p_edge"])
    assert summarise([*rows, rows[0]._replace(correlation=0.9)])["p_edge"] == pytest.approx(0.5)


def test_figures(tmp_path):
    tessellation = tessellate(disc(), 20)
    growth = flooding(tessellation, 3)
    found = similarity(tessellation, growth)
    draw_flood_fill(str(tmp_path / "one.png"), [("disc", tessellation, growth, found)])
    draw_flood_fill(str(tmp_path / "dark.png"), [("disc", tessellation, 0 * growth + 0.2, found)])
    pictures = [np.asarray(Image.open(tmp_path / f"{name}.png").convert("L"), int) for name in ("one", "dark")]
    changed = (np.abs(pictures[0] - pictures[1]) > 100).any(axis=1)
    assert changed[len(changed) // 2 :].any() and not changed[: len(changed) // 3].any()  # the model's row alone
    draw_scores(str(tmp_path / "scores.png"), {"a": [found, found], "b": []})
    assert (tmp_path / "scores.png").stat().st_size > 3000


def test_no_frame_is_drawn_twice(tmp_path, monkeypatch):
    tessellation = tessellate(disc(), 20)
    growth = flooding(tessellation, 3)
    found = similarity(tessellation, growth)
    farthest, figures = int(tessellation.distances[found.start].max()), []
    assert farthest < 5 and len(growth) < 6  # fewer than places for them
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    for steps in (growth, np.concatenate([growth, growth, growth])):
        draw_flood_fill("none.png", [("disc", tessellation, steps, found)])
    for figure, steps in zip(figures, ([*range(1, len(growth) + 1)], None)):
        titles = [axis.get_title() for axis in figure.axes]
        assert [t for t in titles if t.startswith("distance")] == [f"distance {d}" for d in range(farthest + 1)]
        drawn = [t for t in titles if t.startswith("step")]
        assert drawn == [f"step {s}" for s in steps] if steps else (len(set(drawn)) == 6 and drawn[0] == "step 1")
    # the places left over have no frame around them
    assert sum(not axis.axison for axis in figures[0].axes) == 2 * 6 - (farthest + 1) - len(growth)
