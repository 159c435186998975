"""Pictures of segmentations, and sheets of them."""

import numpy as np
from detectron2.data import Metadata
from matplotlib.transforms import Bbox

from rfpn.analysis.figures import _Drawer, draw_contour, draw_panoptic, side_by_side, stack_rows

METADATA = Metadata(thing_classes=["cat"], stuff_classes=["things", "sky"])


def scene(size=32):
    image = np.random.default_rng(0).integers(0, 255, (size, size, 3), np.uint8)
    segments = np.ones((size, size), np.int32)
    segments[4:20, 4:20] = 2
    records = [{"id": 1, "category_id": 1, "isthing": False}, {"id": 2, "category_id": 0, "isthing": True}]
    return image, segments, records


def test_a_segmentation_always_looks_the_same_and_random_numbers_go_on():
    image, segments, records = scene()
    np.random.seed(5)
    expected = np.random.rand()
    np.random.seed(5)
    first = draw_panoptic(image, segments, records, METADATA, 2.5)
    assert np.random.rand() == expected
    assert first.shape == (80, 80, 3) and first.dtype == np.uint8
    np.testing.assert_array_equal(first, draw_panoptic(image, segments, records, METADATA, 2.5))
    assert not np.array_equal(first, draw_panoptic(image, segments, records[:1], METADATA, 2.5))


def test_a_lightened_colour_beside_the_range_is_drawn(monkeypatch):
    monkeypatch.setattr("colorsys.hls_to_rgb", lambda *_: (1 + 4e-16, 1.0, -2e-16))  # Python 3.10's rounding
    assert draw_panoptic(*scene(), METADATA).shape == (32, 32, 3)


def test_labels_stay_within_the_picture_and_off_one_another():
    drawer = _Drawer(np.zeros((160, 160, 3), np.uint8), METADATA)
    for place in ((0, 20), (159, 20), (80, 158), (80, 158), (80, 158)):
        output = drawer.draw_text("a label", place, font_size=10)
    renderer, labels = output.canvas.get_renderer(), output.ax.texts
    boxes = [label.get_window_extent(renderer) for label in labels]
    assert len(boxes) == 5
    for i, box in enumerate(boxes):
        assert (box.min >= 0).all() and (box.max <= 160).all()
        assert not any(Bbox.fully_overlaps(box, other) for other in boxes[:i])


def test_a_contour_is_coloured_and_the_rest_darkened():
    image = np.full((10, 20, 3), 200, np.uint8)
    contour = np.zeros((20, 20))
    contour[:10, :10] = 0.9
    contour[10:, 10:] = 0.4  # less likely than not
    picture = draw_contour(image, contour, 2.0)
    assert picture.shape == (20, 40, 3)
    assert picture[5, 8].tolist() != [120, 120, 120] and picture[5, 8, 0] > picture[5, 8, 2]
    assert picture[15, 35].tolist() == picture[5, 35].tolist() == [120, 120, 120]


def test_panels_stand_under_their_titles():
    panels = [np.full((50, 90, 3), value, np.uint8) for value in (10, 20)]
    sheet = side_by_side(panels, ["a", "a title far too long for its panel"])
    bar = sheet.shape[0] - 50
    np.testing.assert_array_equal(sheet[bar:, :90], panels[0])
    np.testing.assert_array_equal(sheet[bar:, -90:], panels[1])
    ink = (sheet[:bar] < 128).any((0, 2))
    assert ink[:90].any() and ink[-90:].any() and not ink[80:96].any() and not ink[-2:].any()


def test_rows_of_any_width_are_stacked():
    stacked = stack_rows([np.zeros((4, 6, 3), np.uint8), np.full((5, 9, 3), 7, np.uint8)])
    assert stacked.shape[1] == 9 and (stacked[:4, 6:] == 255).all()
    assert (stacked[:4, :6] == 0).all() and (stacked[-5:] == 7).all()
