"""Reading a run's folder."""

import json
import logging
import math

import pytest

from rfpn.analysis.courses import Course, write_courses
from rfpn.analysis.report.run import read_metrics, read_run
from rfpn.config import get_cfg

ROWS = [
    {"iteration": 19, "total_loss": 3.0, "loss_mask": 1.0, "recurrent/residual": 0.5},
    {"iteration": 39, "total_loss": 2.0, "loss_mask": 0.5, "recurrent/residual": 0.25},
    {"iteration": 40, "panoptic_seg/PQ": 12.0, "panoptic_seg/PQ_th": math.nan, "bbox/AP": 3.0, "bbox/AP-cat": 4.0}
    | {"texture_conflict/false_things": 1.5},
]


def write_metrics(folder, rows):
    (folder / "metrics.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_scalars_and_scores_are_told_apart(tmp_path):
    write_metrics(tmp_path, ROWS)
    run = read_run(str(tmp_path))
    assert run.scalars["total_loss"] == ([19, 39], [3.0, 2.0])
    assert set(run.scalars) == {"total_loss", "loss_mask", "recurrent/residual"}
    assert list(run.scores) == ["panoptic_seg", "texture_conflict", "bbox"]
    assert run.scores["texture_conflict"]["false_things"] == ([40], [1.5])
    assert run.scores["panoptic_seg"]["PQ"] == ([40], [12.0]) and run.scores["bbox"]["AP-cat"] == ([40], [4.0])
    assert run.settings == {} and run.changed == []


def test_how_far_states_settled_is_a_score(tmp_path):
    write_metrics(tmp_path, [*ROWS[:2], ROWS[2] | {"convergence/residual": 0.25, "convergence/unconverged_share": 1.0}])
    run = read_run(str(tmp_path))
    assert set(run.scalars) == {"total_loss", "loss_mask", "recurrent/residual"}
    assert list(run.scores)[-1] == "convergence"
    assert run.scores["convergence"] == {"residual": ([40], [0.25]), "unconverged_share": ([40], [1.0])}


def test_scores_of_several_data_sets_keep_their_names(tmp_path):
    write_metrics(tmp_path, [{"iteration": 1, "pathfinder_14_test/pathfinder/IoU": 0.5, "b/pathfinder/IoU": 0.4}])
    assert set(read_run(str(tmp_path)).scores) == {"pathfinder_14_test/pathfinder", "b/pathfinder"}


def test_classes_with_a_slash_in_their_names_are_scores(tmp_path):
    names = ["bbox/AP-a/b", "set/bbox/AP-a/b", "segm/AP", "my/segm/val/bbox/AP"]
    write_metrics(tmp_path, [{"iteration": 1} | dict.fromkeys(names, 1.0)])
    run = read_run(str(tmp_path))
    assert run.scores.keys() == {"bbox", "set/bbox", "segm", "my/segm/val/bbox"} and not run.scalars
    assert "AP-a/b" in run.scores["bbox"]


def test_D5_a_resumed_run_with_a_broken_line(tmp_path, caplog):
    lines = [json.dumps(row) for row in ROWS]
    text = "\n".join([*lines[:2], lines[1][:20], "[1]", json.dumps({"iteration": 39, "total_loss": 1.5}), "", lines[2]])
    (tmp_path / "metrics.json").write_text(text)
    with caplog.at_level(logging.WARNING, logger="rfpn"):
        logging.getLogger("rfpn").propagate = True
        series = read_metrics(str(tmp_path / "metrics.json"))
    assert series["total_loss"] == ([19, 39], [3.0, 1.5]) and series["loss_mask"] == ([19], [1.0])
    assert "left out 2 broken lines" in caplog.text


def test_a_run_that_starts_again_in_the_same_folder_replaces_the_former_one(tmp_path):
    former = [{"iteration": i, "total_loss": 9.0, "lr": 1.0} for i in (19, 39, 59)]
    later = [{"iteration": 19, "total_loss": 2.0}, {"iteration": 20, "panoptic_seg/PQ": 40.0}]
    write_metrics(tmp_path, [*former, {"iteration": 60, "panoptic_seg/PQ": 50.0}, *later])
    series = read_metrics(str(tmp_path / "metrics.json"))
    assert series == {"total_loss": ([19], [2.0]), "panoptic_seg/PQ": ([20], [40.0])}


def test_scores_may_stand_behind_the_line_of_a_later_iteration(tmp_path):
    steps = [{"iteration": i, "total_loss": loss} for i, loss in ((19, 3.0), (39, 2.0))]
    write_metrics(tmp_path, [steps[0], {"iteration": 15, "pathfinder/IoU": 0.5}, steps[1]])
    series = read_metrics(str(tmp_path / "metrics.json"))
    assert series == {"total_loss": ([19, 39], [3.0, 2.0]), "pathfinder/IoU": ([15], [0.5])}


@pytest.mark.parametrize(
    "row", ['"x", "lr": 1', '1, "lr": null', '1, "lr": "text"', '1, "lr": [1]', '1e400, "lr": 1', 'NaN, "lr": 1']
)
def test_lines_with_what_is_no_number_are_left_out(tmp_path, row):
    (tmp_path / "metrics.json").write_text('{"iteration": %s}\n{"iteration": 2, "lr": 3, "loss": NaN}\n' % row)
    series = read_metrics(str(tmp_path / "metrics.json"))
    assert series["lr"] == ([2], [3.0]) and math.isnan(series["loss"][1][0])


def test_settings_that_differ_from_the_defaults(tmp_path):
    cfg = get_cfg()
    cfg.MODEL.RECURRENT.STEPS = 7
    cfg.DATASETS.TEST = ("a", "b")
    (tmp_path / "config.yaml").write_text(cfg.dump())
    run = read_run(str(tmp_path))
    assert set(run.changed) == {"MODEL.RECURRENT.STEPS", "DATASETS.TEST"}
    assert run.settings["MODEL.RECURRENT.STEPS"] == 7 and run.settings["SOLVER.AMP.ENABLED"] is False


def test_time_courses_are_found_in_the_folder(tmp_path):
    write_metrics(tmp_path, ROWS)
    scores = {1: {"PQ": 1.5, "residual": 0.5}, 4: {"PQ": 2.5}}
    courses = [Course(model, "x", range(4, 5), scores) for model in "ab"]
    write_courses(str(tmp_path / "timesteps" / "timesteps.csv"), courses)
    courses = read_run(str(tmp_path)).courses
    assert courses == {label: {"PQ": ([1, 4], [1.5, 2.5]), "residual": ([1], [0.5])} for label in ("a, x", "b, x")}
    table = tmp_path / "timesteps" / "timesteps.csv"
    table.write_text(table.read_text() + "b")
    assert read_run(str(tmp_path)).courses == {}


def test_folders_that_hold_no_run_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="none: no such folder"):
        read_run(str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="has neither config.yaml nor metrics.json"):
        read_run(str(tmp_path))
    for text in ("a: [", "just words"):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(ValueError, match="config.yaml: not a configuration"):
            read_run(str(tmp_path))
