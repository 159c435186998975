"""Reading the log of a run."""

import json
import logging
import math

import pytest

from rfpn.analysis.logs import read_log, read_metrics
from tests.analysis.tiny_runs import write_metrics


def test_D5_a_resumed_run_with_a_broken_line(tmp_path, caplog):
    losses = [{"iteration": 19, "total_loss": 3.0, "loss_mask": 1.0}, {"iteration": 39, "total_loss": 2.0, "loss_mask": 0.5}]
    lines = [json.dumps(row) for row in [*losses, {"iteration": 40, "panoptic_seg/PQ": 12.0}]]
    text = "\n".join([*lines[:2], lines[1][:20], "[1]", json.dumps({"iteration": 39, "total_loss": 1.5}), "", lines[2]])
    (tmp_path / "metrics.json").write_text(text)
    with caplog.at_level(logging.WARNING, logger="rfpn"):
        logging.getLogger("rfpn").propagate = True
        series = read_metrics(str(tmp_path / "metrics.json"))
    assert series["total_loss"] == ([20, 40], [3.0, 1.5]) and series["loss_mask"] == ([20], [1.0])
    assert "left out 2 broken lines" in caplog.text


def test_a_run_that_starts_again_in_the_same_folder_replaces_the_former_one(tmp_path):
    former = [{"iteration": i, "total_loss": 9.0, "lr": 1.0} for i in (19, 39, 59)]
    later = [{"iteration": 19, "total_loss": 2.0}, {"iteration": 20, "panoptic_seg/PQ": 40.0}]
    write_metrics(tmp_path, [*former, {"iteration": 60, "panoptic_seg/PQ": 50.0}, *later])
    series = read_metrics(str(tmp_path / "metrics.json"))
    assert series == {"total_loss": ([20], [2.0]), "panoptic_seg/PQ": ([20], [40.0])}


def test_the_iteration_before_a_new_start_stays(tmp_path):
    write_metrics(tmp_path, [{"iteration": i, "total_loss": loss} for i, loss in ((18, 3.0), (19, 2.0), (19, 1.0))])
    assert read_metrics(str(tmp_path / "metrics.json")) == {"total_loss": ([19, 20], [3.0, 1.0])}


def test_scores_may_stand_behind_the_line_of_a_later_iteration(tmp_path):
    steps = [{"iteration": i, "total_loss": loss} for i, loss in ((19, 3.0), (39, 2.0))]
    write_metrics(tmp_path, [steps[0], {"iteration": 15, "pathfinder/IoU": 0.5}, steps[1]])
    series = read_metrics(str(tmp_path / "metrics.json"))
    assert series == {"total_loss": ([20, 40], [3.0, 2.0]), "pathfinder/IoU": ([16], [0.5])}


def test_the_last_scores_of_a_run_that_went_on_beyond_its_end_stay_there(tmp_path):
    rows = [{"iteration": i, "total_loss": 1.0} for i in (19, 39, 59)]
    scores = [{"iteration": i, "panoptic_seg/PQ": pq} for i, pq in ((40, 50.0), (60, 60.0))]
    write_metrics(tmp_path, [*rows[:2], scores[0], rows[2], scores[1]])
    assert read_metrics(str(tmp_path / "metrics.json"))["panoptic_seg/PQ"] == ([40, 60], [50.0, 60.0])


@pytest.mark.parametrize(
    "row", ['"x", "lr": 1', '1, "lr": null', '1, "lr": "text"', '1, "lr": [1]', '1e400, "lr": 1', 'NaN, "lr": 1']
)
def test_lines_with_what_is_no_number_are_left_out(tmp_path, row):
    (tmp_path / "metrics.json").write_text('{"iteration": %s}\n{"iteration": 2, "lr": 3, "loss": NaN}\n' % row)
    series = read_metrics(str(tmp_path / "metrics.json"))
    assert series["lr"] == ([3], [3.0]) and math.isnan(series["loss"][1][0])


def test_a_log_without_a_value_is_named(tmp_path):
    write_metrics(tmp_path, [{"iteration": 1}, {"lr": 1.0}])
    with pytest.raises(ValueError, match=r"metrics\.json: no log of a run, has no line with an iteration and a value$"):
        read_log(str(tmp_path / "metrics.json"))
    write_metrics(tmp_path, [{"iteration": 1, "lr": 0.5}])
    assert read_log(str(tmp_path / "metrics.json")) == {"lr": ([2], [0.5])}
