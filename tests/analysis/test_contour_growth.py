"""Pictures of growing contours."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from rfpn.analysis.contour_growth import (
    _strokes,
    contour_growth,
    draw_contour_growth,
    draw_joining_steps,
    first_images,
    joining_counts,
    joining_steps,
)
from rfpn.layers import HGRUCell, RecurrentLayer
from rfpn.modeling import PathfinderNet


def inputs(count=2, size=16):
    torch.manual_seed(0)
    shape = (1, size, size)
    return [{"image": torch.randint(256, shape), "sem_seg": torch.randint(2, shape[1:])} for _ in range(count)]


def test_growth_is_the_target_probability_of_every_step():
    model, batch = PathfinderNet(layer=RecurrentLayer(HGRUCell(4, 3), 3), channels=4).eval(), inputs()
    growth = contour_growth(model, batch, 3)
    assert growth.shape == (3, 2, 16, 16)
    last = torch.stack([x["sem_seg"] for x in model(batch)]).softmax(1)[:, 1].detach()
    np.testing.assert_allclose(growth[-1], last.numpy(), rtol=1e-5)


@pytest.mark.parametrize("images, kept", [(3, 3), (2, 2), (9, 5)])
def test_first_images_are_unrolled_in_the_batches_of_evaluation(images, kept):
    """Batch norm takes a batch's own statistics: the batches joined give other probabilities."""
    model, records = PathfinderNet(layer=RecurrentLayer(HGRUCell(4, 3), 3), channels=4).eval(), inputs(5)
    batches = [records[:2], records[2:4], records[4:]]
    found, growth = first_images(model, batches, images, 3)
    expected = np.concatenate([contour_growth(model, batch, 3) for batch in batches], axis=1)[:, :kept]
    assert all(one is other for one, other in zip(found, records[:kept], strict=True))
    np.testing.assert_array_equal(growth, expected)
    assert np.abs(contour_growth(model, records, 3)[:, :kept] - expected).max() > 1e-4


def test_picture_shows_the_drawn_steps(tmp_path):
    growth = np.zeros((4, 2, 16, 16), np.float32)
    draw_contour_growth(str(tmp_path / "dark.png"), inputs(), growth, [1, 4])
    growth[3] = 1
    draw_contour_growth(str(tmp_path / "light.png"), inputs(), growth, [1, 4])
    dark, light = (np.asarray(Image.open(tmp_path / f"{name}.png").convert("L"), float) for name in ("dark", "light"))
    changed = np.abs(dark - light).mean(axis=0) > 50
    assert dark.shape == light.shape
    assert changed[3 * len(changed) // 4 :].any() and not changed[: 3 * len(changed) // 4].any()


def test_pixels_join_at_the_first_step_above_the_threshold():
    growth = np.array([[0.1, 0.6, 0.2, 0.5], [0.7, 0.4, 0.2, 0.5], [0.9, 0.8, 0.2, 0.5]])
    np.testing.assert_array_equal(joining_steps(growth), [2, 1, np.nan, np.nan])
    np.testing.assert_array_equal(joining_steps(growth, 0.15), [2, 1, 1, 1])


def test_counts_on_and_off_the_target():
    counts = joining_counts(np.array([[1, 1, 2], [np.nan, 2, 1]]), np.array([[1, 0, 1], [1, 0, 1]]), 3)
    assert counts[0] == {"step": 1, "joined_target": 2, "joined_elsewhere": 1}
    assert counts[1] == {"step": 2, "joined_target": 1, "joined_elsewhere": 1}
    assert counts[2] == {"step": 3, "joined_target": 0, "joined_elsewhere": 0}


def test_heat_map_has_a_column_for_each_model(tmp_path):
    early, never = np.full((2, 16, 16), 1.0), np.full((2, 16, 16), np.nan)
    draw_joining_steps(str(tmp_path / "a.png"), inputs(), {"one": early, "two": never}, 5)
    draw_joining_steps(str(tmp_path / "b.png"), inputs(), {"one": early, "two": early + 4}, 5)
    one, two = (np.asarray(Image.open(tmp_path / f"{name}.png").convert("RGB"), float) for name in "ab")
    changed = np.flatnonzero((np.abs(one - two).max(axis=2) > 50).any(axis=0))
    assert one.shape == two.shape and len(changed)
    assert changed.min() > one.shape[1] / 2  # the second model's column alone


@pytest.mark.parametrize("steps", [1, 3, 20])
def test_the_scale_has_whole_steps_and_its_label_fits_beside_one_image(monkeypatch, steps):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, dpi: figures.append(figure))
    draw_joining_steps("", inputs(1), {"one": np.ones((1, 16, 16))}, steps)
    figures[0].draw_without_rendering()
    bar = figures[0].axes[-1]
    low, high = bar.get_ylim()
    assert all(tick == round(tick) for tick in bar.get_yticks() if low <= tick <= high)
    label = bar.yaxis.label.get_window_extent()
    assert 0 <= label.y0 < label.y1 <= figures[0].bbox.height


def test_a_thin_stroke_in_a_corner_fills_its_picture(tmp_path):
    """Uncut, and a pixel wide, it would be less than 1% of its picture's width."""
    image = torch.zeros(1, 150, 150, dtype=torch.uint8)
    image[0, 125:145, 130] = 255
    records = [{"image": image, "sem_seg": (image[0] > 0).long()}]
    never = np.full((1, 150, 150), np.nan)
    draw_joining_steps(str(tmp_path / "a.png"), records, {"one": never}, 5)
    picture = np.asarray(Image.open(tmp_path / "a.png").convert("L"))
    black = picture == 0
    # of the truth's picture: white on black, three pixels of 28 wide
    row = picture[picture.shape[0] // 2]
    panel = row[np.flatnonzero(black[picture.shape[0] // 2])[0] :]
    assert 0.05 < (panel[: len(panel) // 3] == 255).mean() < 0.25


@pytest.mark.parametrize("rows, columns", [((92, 100), (57, 60)), ((0, 3), (0, 9)), ((40, 52), (20, 24)), ((5, 95), (2, 50))])
def test_strokes_are_cut_out_whole_as_a_square_within_the_image(rows, columns):
    image = np.full((100, 60), 100.0)
    image[slice(*rows), slice(*columns)] = 255
    window = _strokes(image)
    cut = image[window]
    side = min(max(rows[1] - rows[0], columns[1] - columns[0]) + 8, 60)
    assert cut.shape == (side, side) and all(part.start >= 0 for part in window)
    assert (cut == 255).sum() == min((image == 255).sum(), side * (columns[1] - columns[0]))
