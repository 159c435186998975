"""tools/plot_time_courses.py: scores by step of several tables in one figure."""

import sys

import plot_time_courses
import pytest

from rfpn.analysis.courses import Course, write_courses


@pytest.fixture
def table(tmp_path):
    def write(name, score="PQ", models=("run",)):
        path = tmp_path / f"{name}.csv"
        scores = {1: {score: 10.0, "residual": 1.0}, 3: {score: 42.5, "residual": 0.25}}
        write_courses(str(path), [Course(model, "scenes", range(3, 4), scores) for model in models])
        return path

    return write


def _run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["plot_time_courses.py", *map(str, arguments)])
    plot_time_courses.main()


def test_courses_bear_the_names_and_steps_given(table, tmp_path, monkeypatch):
    files = [("BPTT = 3", str(table("a"))), ("C-RBP", str(table("b")))]
    courses = plot_time_courses.named_courses(files, {"C-RBP": range(20, 31)})
    assert [(course.model, course.trained_steps) for course in courses] == [("BPTT = 3", range(0)), ("C-RBP", range(20, 31))]
    assert plot_time_courses.common_score(courses) == "PQ"
    (course,) = plot_time_courses.named_courses([("y", table("two", models=("x", "y")))], {})
    assert course.model == "y"
    _run(monkeypatch, "--csv", f"a={table('a')}", "--trained", "a=1-3", "--output", tmp_path / "steps.png")
    assert (tmp_path / "steps.png").stat().st_size > 0


def test_steps_scored_apart_make_one_curve(table, tmp_path):
    later = tmp_path / "later.csv"
    scored = {"scenes": {2: {"PQ": 20.0}}, "nuclei": {1: {}}}
    write_courses(str(later), [Course("run", dataset, range(0), scores) for dataset, scores in scored.items()])
    courses = plot_time_courses.named_courses([("x", str(table("a"))), ("x", str(later)), ("y", str(later))], {})
    assert [(course.model, course.dataset, list(course.scores)) for course in courses] == [
        ("x", "scenes", [1, 2, 3]), ("x", "nuclei", [1]), ("y", "scenes", [2]), ("y", "nuclei", [1])
    ]  # fmt: skip
    with pytest.raises(ValueError, match="b.csv: another file of that name has step 1 of scenes too"):
        plot_time_courses.named_courses([("x", str(table("a"))), ("x", str(table("b")))], {})


def test_wrong_arguments_are_named(table, tmp_path, monkeypatch, capsys):
    (tmp_path / "log.csv").write_text("no table\n1\n")
    out, one = ["--output", tmp_path / "a.png"], ["--csv", f"one={table('a')}"]
    for arguments, words in (
        (["--csv", f"one={tmp_path / 'none.csv'}", *out], f"--csv one={tmp_path}/none.csv: {tmp_path}/none.csv does not exist"),
        (["--csv", f"one={tmp_path / 'log.csv'}", *out], "log.csv: no scores by step"),
        (["--csv", f"one={table('two', models=('x', 'y'))}", *out], "several models, x, y; NAME must be one of them"),
        ([*one, "--csv", f"two={table('iou', 'IoU')}", *out], "none of PQ, IoU in common"),
        ([*one, "--trained", "two=3", *out], "--trained two: no --csv has that name"),
        ([*one, "--trained", "one=0", *out], "--trained: '0' has no steps from 1"),
        ([*one, "--trained", "one", *out], "needs NAME=STEPS"),
        ([*one, "--trained", "one=3", "--trained", "one=5", *out], "--trained: each name once"),
        ([*one, "--output", tmp_path / "a.xyz"], "does not end in .png"),
    ):
        with pytest.raises(SystemExit) as end:
            _run(monkeypatch, *arguments)
        assert end.value.code == 2 and words in capsys.readouterr().err
