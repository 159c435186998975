"""Tables and figures of scores by step."""

import csv

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from rfpn.analysis.courses import Course, plot_courses, read_courses, write_courses


def test_table_and_figure(tmp_path):
    courses = [
        Course("first", "a", range(20, 21), {1: {"IoU": 0.5, "residual": 0.6}, 20: {"IoU": 0.7, "residual": 0.01}}),
        Course("second", "a", range(6, 7), {1: {"IoU": 0.1, "residual": 1.0}}),
    ]
    write_courses(str(tmp_path / "new" / "course.csv"), courses)
    with open(tmp_path / "new" / "course.csv") as file:
        rows = list(csv.DictReader(file))
    assert rows[1] == {"model": "first", "dataset": "a", "step": "20", "IoU": "0.7", "residual": "0.01"}
    assert [row["model"] for row in rows] == ["first", "first", "second"]
    plot_courses(str(tmp_path / "course.png"), courses, "IoU")
    one = Course("first", "a", range(20, 21), {1: {"IoU": 0.5, "residual": 0.6}, 20: {"IoU": 0.2, "residual": 0.01}})
    plot_courses(str(tmp_path / "other.png"), [one], "IoU")
    pictures = [np.asarray(Image.open(tmp_path / f"{name}.png").convert("L"), int) for name in ("course", "other")]
    # nothing was detected: there is no residual
    plot_courses(str(tmp_path / "none.png"), [Course("first", "a", range(20, 21), {1: {"PQ": 0.0}})], "PQ")
    different = np.abs(pictures[0] - pictures[1]) > 50
    assert different.any(axis=0)[: different.shape[1] // 2].any()


def test_no_two_of_many_curves_look_alike(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    scores = {1: {"IoU": 0.1, "residual": 0.1}, 2: {"IoU": 0.2, "residual": 0.1}}
    plot_courses("none.png", [Course(f"model {i}", "a", range(0), scores) for i in range(25)], "IoU")
    for axis in figures[0].axes:
        assert len({(line.get_color(), line.get_linestyle()) for line in axis.lines}) == 25


def test_tables_are_read_as_they_were_written(tmp_path):
    path = str(tmp_path / "course.csv")
    courses = [Course(m, "a", range(0), {1: {"PQ": 1.5, "residual": 1.0}, 4: {"PQ": 2.5}}) for m in ("first", "second")]
    write_courses(path, courses)
    assert read_courses(path) == courses


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no table\n1\n",
        "model,dataset,step,PQ\n",
        "model,dataset,step,PQ\na,b,one,2\n",
        "model,step\na,1\n",
        'model,dataset,step,PQ\na,b,1,2\n"a"c,b,2,3\n',
        'model,dataset,step,PQ\na,b,1,2\na,b,2,"3',
        # two tables in one file
        "model,dataset,step,PQ\na,b,1,2\na,b,1,3\n",
    ],
)
def test_other_tables_are_refused(tmp_path, text):
    (tmp_path / "other.csv").write_text(text)
    with pytest.raises(ValueError, match="other.csv: no scores by step"):
        read_courses(str(tmp_path / "other.csv"))
