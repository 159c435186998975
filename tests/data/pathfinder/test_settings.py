import numpy as np
import pytest

from rfpn.data.pathfinder.settings import PathfinderSettings


@pytest.mark.parametrize("length, count, short", [(6, 15, 2), (9, 10, 3), (14, 6, 4), (20, 4, 6), (25, 3, 8)])
def test_F4_distractors_of_every_length_are_integers(length, count, short):
    settings = PathfinderSettings(length)
    assert (settings.distractors, settings.distractor_length) == (count, short)
    assert isinstance(settings.distractors, int) and isinstance(settings.distractor_length, int)


@pytest.mark.parametrize("name", ["length", "window", "padding", "distractors", "distractor_length"])
@pytest.mark.parametrize("value", [14 / 3, float("inf"), float("nan"), "14", True])
def test_F4_counts_must_be_integers(name, value):
    with pytest.raises(TypeError, match=f"{name} must be an integer, got {value!r}"):
        PathfinderSettings(**{"length": 14, name: value})


@pytest.mark.parametrize("name", ["length", "window", "padding"])
def test_counts_without_a_rule_must_be_given(name):
    with pytest.raises(TypeError, match=f"{name} must be an integer, got None"):
        PathfinderSettings(**{"length": 14, name: None})


def test_counts_of_other_types_of_number_are_taken():
    settings = PathfinderSettings(np.int64(14), window=300.0)
    assert settings == PathfinderSettings(14) and type(settings.length) is int and type(settings.window) is int


@pytest.mark.parametrize("value", [4, np.int64(4), np.float32(4)])
def test_lengths_of_other_types_of_number_are_taken(value):
    settings = PathfinderSettings(14, gap=value)
    assert settings == PathfinderSettings(14, gap=4.0) and type(settings.gap) is float


@pytest.mark.parametrize(
    "option, message",
    [
        ({"length": 2}, "length must be 3 or more"),
        ({"length": 2, "distractors": 1, "distractor_length": 1}, "length must be 3 or more"),
        ({"gap": -1}, "gap must be a positive number"),
        ({"thickness": float("nan")}, "thickness must be a positive number"),
        ({"window": 48}, "leaves no room"),
        ({"window": 10**6}, "window must be at most 4096"),
        ({"padding": 3}, "must exceed marker_radius"),
        ({"continuity": 0.5}, "continuity"),
        ({"thickness": 1.0}, "would break strokes"),
        ({"gap": 1.0}, "lets dashes touch"),
        ({"marker_radius": 1.2}, "set it to 1.21 or more"),
        ({"marker_radius": 9.0}, "hides more than the first dash"),
    ],
)
def test_values_that_cannot_be_drawn_are_refused(option, message):
    with pytest.raises(ValueError, match=message):
        PathfinderSettings(**{"length": 14, **option})


def test_largest_turn_shrinks_with_continuity():
    turns = [PathfinderSettings(14, continuity=c).max_turn for c in (1.0, 1.8, 4.0)]
    assert turns == sorted(turns, reverse=True)
    assert turns[1] == pytest.approx(0.785, abs=0.02)  # 45 degrees


def test_published_share_holds_for_published_settings_only():
    assert PathfinderSettings(14).published_share == 0.0030
    assert PathfinderSettings(14, distractors=5).published_share is None
    assert PathfinderSettings(9).published_share is None


@pytest.mark.parametrize("level", [0.5, 1.0])
def test_target_levels_from_half_to_all_of_a_pixel_are_taken(level):
    assert PathfinderSettings(14, thickness=2.0, target_level=level).target_level == level


def test_a_target_level_below_half_is_named():
    """The generator counts dashes by pixels that they cover by half."""
    with pytest.raises(ValueError, match="target_level 0.4 must lie in"):
        PathfinderSettings(6, target_level=0.4)
