"""State spaces and the distances in them."""

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp

from rfpn.analysis.state_space import collect_states, distance_table, distances, draw_state_space, pair_table, project
from rfpn.layers import ConvLSTMCell, HGRUCell, RecurrentLayer
from rfpn.modeling import PathfinderNet


def walk(drift, samples=40, steps=12, seed=0):
    """States (S, T, 5) that move by unit steps for 6 steps, by ``drift`` afterwards."""
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=5)
    direction /= np.linalg.norm(direction)
    stride = np.r_[np.ones(6), np.full(steps - 6, drift)].cumsum()
    speed = rng.uniform(0.9, 1.1, size=(samples, 1, 1))
    return rng.normal(scale=0.01, size=(samples, 1, 5)) + speed * stride[:, None] * direction


def batch(count=3, size=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [{"image": torch.randint(0, 256, (1, size, size), generator=generator)} for _ in range(count)]


@pytest.mark.parametrize("cell", [HGRUCell, ConvLSTMCell])
def test_states_are_spatial_means_of_what_the_readout_sees(cell):
    torch.manual_seed(0)
    model = PathfinderNet(layer=RecurrentLayer(cell(4, 3), 3), channels=4).eval()
    batches = [batch(3), batch(2, seed=1)]
    states = collect_states(model, batches, 5)
    assert states.shape == (5, 5, 4)
    model.layer.test_steps = 4
    with torch.no_grad():
        expected = torch.cat([model.layer(model.drive(some)).hidden.mean((2, 3)) for some in batches])
    np.testing.assert_allclose(states[:, 3], expected.numpy(), rtol=1e-5)


def test_no_samples_is_an_error():
    model = PathfinderNet(layer=RecurrentLayer(HGRUCell(4, 3), 3), channels=4)
    with pytest.raises(ValueError, match="no states"):
        collect_states(model, [], 5)


def test_axes_come_from_the_trained_steps_alone():
    states = walk(0.0)
    states[:, 6:, 0] += 100 * np.arange(6)  # a direction that only later steps explore
    space = project(states, 6)
    np.testing.assert_allclose(space.projected[:, :6], project(states[:, :7], 6).projected[:, :6], atol=1e-9)
    assert space.explained[0] > 0.99
    # all axes: distances are those of the states themselves
    np.testing.assert_allclose(distances(space).after, np.linalg.norm(states[:, -1] - states[:, 5], axis=1))


def test_motion_beyond_what_the_trained_steps_span_counts():
    states = np.random.default_rng(0).normal(size=(4, 12, 64)).cumsum(axis=1)
    space = project(states, 3)
    assert space.projected.shape[2] == 11  # the rank of 12 centred states
    np.testing.assert_allclose(distances(space).after, np.linalg.norm(states[:, -1] - states[:, 2], axis=1))
    np.testing.assert_allclose(distances(space).before, np.linalg.norm(states[:, 2] - states[:, 0], axis=1))
    assert (distances(space, 12).after < 0.8 * distances(space).after).all()


def test_distances_by_hand():
    found = distances(project(walk(0.25), 6))
    speed = found.before / 5
    assert np.all((speed > 0.89) & (speed < 1.11))
    np.testing.assert_allclose(found.after, 6 * 0.25 * speed, rtol=1e-6)
    np.testing.assert_allclose(found.path_before, speed, rtol=1e-6)
    np.testing.assert_allclose(found.path_after, 0.25 * speed, rtol=1e-6)


def test_axes_without_variance_are_left_out():
    """Few samples: on the last axis of the decomposition there is nothing but rounding."""
    generator = np.random.default_rng(0)
    states, noise = generator.standard_normal((2, 3, 6, 30))
    spaces = [project(states * (1 + size * noise), 2) for size in (0.0, 1e-6)]
    assert [space.projected.shape[2] for space in spaces] == [5, 5] == [len(space.explained) for space in spaces]
    after = [distances(space, 6).after for space in spaces]
    np.testing.assert_allclose(after[0], after[1], rtol=1e-4)
    assert project(states[:2], 1).projected.shape[2] == 1
    assert project(np.ones((2, 3, 4)), 1).projected.shape[2] == 1


def test_table_of_a_divergent_and_a_settled_model():
    spaces = {"divergent": project(walk(3.0), 6), "settled": project(walk(0.0, seed=1), 6)}
    rows = distance_table(spaces)
    assert [row["model"] for row in rows] == ["divergent", "settled"]
    assert rows[0]["mu_after"] == pytest.approx(18, rel=0.1) and rows[1]["mu_after"] == pytest.approx(0, abs=1e-9)
    assert rows[0]["explained_2"] == pytest.approx(spaces["divergent"].explained[0] + spaces["divergent"].explained[1])
    assert rows[0]["N"] == 6 and rows[0]["T"] == 12 and rows[0]["samples"] == 40
    (pair,) = pair_table(spaces)
    expected = ks_2samp(*(distances(space).after for space in spaces.values()))
    assert pair["p"] == pytest.approx(expected.pvalue) and pair["p"] < 0.001 and pair["ks"] == 1
    assert (pair["mu_first"], pair["mu_second"]) == (rows[0]["mu_after"], rows[1]["mu_after"])
    same = {"a": project(walk(1.0), 6), "b": project(walk(1.0), 6), "c": project(walk(1.0), 6)}
    assert len(pair_table(same)) == 3 and pair_table(same)[0]["p"] == 1


def test_samples_that_are_not_finite_are_left_out_and_counted():
    states = walk(0.0)
    states[3, 8] = np.inf
    space = project(states, 6)
    assert space.dropped == 1 and len(space.projected) == 39
    with pytest.raises(ValueError, match="finite"):
        project(np.full((2, 4, 3), np.nan), 2)


def test_steps_must_go_beyond_training():
    with pytest.raises(ValueError, match="12 steps do not go beyond the 12"):
        project(walk(0.0), 12)


@pytest.mark.parametrize("drift", [3.0, 0.0])
def test_figure_has_both_densities_and_a_way(tmp_path, drift):
    path = tmp_path / "space.png"
    draw_state_space(str(path), {"a": project(walk(drift), 6), "one axis": project(walk(1.0)[..., :1], 6)})
    pixels = np.asarray(Image.open(path).convert("RGB"), int)
    left = pixels[:, : pixels.shape[1] // 3].reshape(-1, 3)
    for colour in ((214, 39, 40), (31, 119, 180), (255, 215, 0)):
        assert (np.abs(left - colour).max(axis=1) < 25).sum() > 20, colour


def test_a_single_trained_step_and_constant_states(tmp_path):
    rows = distance_table({"still": project(np.ones((4, 3, 2)), 1)})
    # there is no way from step 1 to itself that another could be longer than
    assert all(np.isnan(rows[0][name]) for name in ("mu_before", "mu_path_before", "p", "path_p")) and rows[0]["mu_after"] == 0
    draw_state_space(str(tmp_path / "still.png"), {"still": project(np.ones((4, 3, 2)), 1)})
