"""Reading a run's folder."""

import math

import pytest

from rfpn.analysis.courses import Course, write_courses
from rfpn.analysis.report.run import read_run
from rfpn.config import get_cfg
from tests.analysis.tiny_runs import write_metrics

ROWS = [
    {"iteration": 19, "total_loss": 3.0, "loss_mask": 1.0, "recurrent/residual": 0.5},
    {"iteration": 39, "total_loss": 2.0, "loss_mask": 0.5, "recurrent/residual": 0.25},
    {"iteration": 40, "panoptic_seg/PQ": 12.0, "panoptic_seg/PQ_th": math.nan, "bbox/AP": 3.0, "bbox/AP-cat": 4.0}
    | {"texture_conflict/false_things": 1.5},
]


def test_scalars_and_scores_are_told_apart(tmp_path):
    write_metrics(tmp_path, ROWS)
    run = read_run(str(tmp_path))
    assert run.scalars["total_loss"] == ([20, 40], [3.0, 2.0])
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
