"""Samples of a model, their summary and figure."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from rfpn.analysis.jacobian import Stability
from rfpn.analysis.stability import analyse, draw_stability, summarise
from rfpn.layers import HGRUCell, RecurrentLayer
from rfpn.modeling import PathfinderNet


def test_samples_without_an_answer_do_not_count_as_stable():
    found = Stability(1.2, 1.2, 1.2, 1.2, 1.2, 1, 0.09, 0.1, 1.2, 1)
    unknown = found._replace(spectral_radius=float("nan"))
    assert summarise([found, unknown, unknown])["unstable_share"] == 1
    assert np.isnan(summarise([unknown])["unstable_share"])


def test_summary_by_hand():
    nan = float("nan")
    table = np.array([[0.5, 0.7, 0.2], [1.2, 1.1, 0.0], [1.4, 1.5, 0.1], [1.3, 1.2, 0.4], [1.0, 2.0, 0.3], [nan, 0.9, 0.0]])
    rows = [Stability(r, s, 1, 1, 1, 0, lcp, 0.1, nan, 0) for r, s, lcp in table]
    summary = summarise(rows)
    assert summary["samples"] == 6 and summary["unanswered"] == 1
    for column, name in zip(table.T, ("spectral_radius", "singular_value", "lcp")):
        assert summary[f"mean_{name}"] == pytest.approx(np.nanmean(column)) and summary[f"max_{name}"] == np.nanmax(column)
    assert np.isnan(summary["mean_motion_quotient"]) and np.isnan(summary["max_motion_quotient"])
    # a radius of 1 is not above it; of the three above, one has no penalty
    assert summary["unstable_share"] == 0.6 and summary["blind_share"] == 1 / 3
    assert summary["rank_radius"] == pytest.approx(spearmanr(table[:5, 2], table[:5, 0]).statistic)
    assert summary["rank_singular_value"] == pytest.approx(spearmanr(table[:, 2], table[:, 1]).statistic)


def test_images_of_a_model_one_by_one():
    torch.manual_seed(0)
    model = PathfinderNet(layer=RecurrentLayer(HGRUCell(4, 3), 3), channels=4)
    batches = [[{"image": torch.randint(0, 256, (1, 8, 8))} for _ in range(2)] for _ in range(3)]
    found = list(analyse(model, batches, 4, images=3))
    assert [image for image, _ in found] == [0, 1, 2] and model.training
    model.eval().layer.test_steps = 4
    with torch.no_grad():
        residual = model.layer(model.drive(batches[0])).residual
    assert [row.residual for _, row in found[:2]] == pytest.approx(residual.tolist(), rel=1e-4)
    with pytest.raises(ValueError, match="images must be at least 1"):
        next(analyse(model, batches, 4, images=0))


def test_figure_and_ranks(tmp_path):
    rows = [Stability(r, 2 * r, s, s, s, 0, max(s - 0.9, 0), 0.1, 0.9, 0) for r, s in ((0.5, 0.2), (1.2, 0.3), (1.5, 1.4))]
    assert summarise(rows)["rank_radius"] == pytest.approx(np.sqrt(3) / 2)
    assert np.isnan(summarise(rows[:2])["rank_radius"])
    draw_stability(str(tmp_path / "stability.png"), {"a": rows, "b": rows[:1]}, {"a": 0.9, "b": 0.9})
    assert (tmp_path / "stability.png").stat().st_size > 10000


@pytest.mark.parametrize("penalties", [(0.0, 1e-6, 0.14), (1e-3, 0.1, 0.14), (0.05, 0.14, float("inf"))])
def test_every_penalty_has_room_within_the_figure(monkeypatch, penalties):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    rows = [Stability(1.2, 1.2, 1.2, 1.2, 1.2, 1, penalty, 0.1, 1.2, 1) for penalty in penalties]
    draw_stability("none.png", {"a": rows}, {"a": 0.9})
    axis = figures[0].axes[2]
    left, right = axis.transAxes.inverted().transform(axis.transData.transform([(min(penalties), 1.2), (0.14, 1.2)]))[:, 0]
    # a point has a radius of its own
    assert 0.01 < left < right < 0.99
