"""tools/plot_memory.py: tables and figure from what the benchmark wrote."""

import json
import sys

import cv2
import plot_memory
import pytest
from matplotlib.colors import to_hex


def _row(method, steps, gibibytes, outcome="measured", job="rfpn"):
    milliseconds = None if gibibytes is None else 10.0 * steps if steps else 5.0
    measured = {"milliseconds": milliseconds, "gibibytes": gibibytes}
    return {"job": job, "method": method, "steps": steps, **measured, "outcome": outcome}


@pytest.fixture
def sweep():
    rows = [_row("feedforward", None, 1.5, job="fpn"), _row("bptt", 1, 2.0), _row("crbp", 1, 4.0)]
    rows += [_row("bptt", 20, None, "out of memory"), _row("crbp", 20, 4.0), _row("bptt", 300, None, "skipped")]
    rows += [_row("crbp", 300, None, "out of time")]
    return {"card": "Card X", "card_gibibytes": 80.0, "work": "small work", "rows": rows}


def _run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["plot_memory.py", *map(str, arguments)])
    plot_memory.main()


def test_table_and_picture(sweep, tmp_path, monkeypatch, capsys):
    path, picture = tmp_path / "rows.json", tmp_path / "memory.png"
    path.write_text(json.dumps(sweep))
    _run(monkeypatch, path, path, "--output", picture)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "small work, Card X: GiB / ms"
    assert "| T | 1 | 20 | 300 |" in lines and "| fpn | 1.50 / 5.0 |  |  |" in lines
    assert "| rfpn, BPTT | 2.00 / 10.0 | out of memory | skipped |" in lines
    assert "| rfpn, C-RBP | 4.00 / 10.0 | 4.00 / 200.0 | out of time |" in lines
    assert cv2.imread(str(picture)).std() > 0


def test_cross_stands_at_the_limit_of_the_card(sweep):
    memory, duration = plot_memory.draw([sweep]).axes
    assert "Card X" in memory.get_title() and memory.get_xscale() == memory.get_yscale() == "log"
    (cross,) = (line for line in memory.lines if line.get_marker() == "x")
    assert (cross.get_xdata(), cross.get_ydata()) == ([20], [80.0])
    assert to_hex(cross.get_color()) == to_hex(plot_memory.STYLES["bptt"]["color"])
    curves = {line.get_label(): line for line in duration.lines}
    assert list(curves["rfpn, C-RBP"].get_ydata()) == [10.0, 200.0] and list(curves["rfpn, BPTT"].get_xdata()) == [1]
    assert "fpn" in curves


def test_curves_of_one_model_are_named_by_method_alone(sweep):
    sweep["rows"] = [row for row in sweep["rows"] if row["job"] != "fpn"]
    memory, duration = plot_memory.draw([sweep]).axes
    for axis in (memory, duration):
        assert [text.get_text() for text in axis.get_legend().get_texts()] == ["BPTT", "C-RBP"]


def test_rows_of_a_cpu_have_no_memory(sweep):
    sweep["card_gibibytes"] = None
    for row in sweep["rows"]:
        row["gibibytes"] = None
    memory, duration = plot_memory.draw([sweep]).axes
    assert not memory.lines and duration.lines
    assert "| rfpn, C-RBP | 10.0 | 200.0 | out of time |" in plot_memory.table(sweep)


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.pop("outcome"),
        lambda row: row.update(steps="1"),
        lambda row: row.update(milliseconds=None),
        lambda row: row.update(job=["pathfinder"]),
    ],
)
def test_malformed_rows_are_named(sweep, tmp_path, monkeypatch, capsys, change):
    change(sweep["rows"][1])
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(sweep))
    with pytest.raises(SystemExit) as end:
        _run(monkeypatch, path)
    assert end.value.code == 2 and f"{path}: rows[1] does not come from" in capsys.readouterr().err


def test_wrong_files_are_named(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        _run(monkeypatch, tmp_path / "none.json")
    other = tmp_path / "other.json"
    for rows in ({}, {"work": "", "card": "", "card_gibibytes": 1.0}):
        other.write_text(json.dumps({"rows": "none", **rows}))
        with pytest.raises(SystemExit):
            _run(monkeypatch, other)
    errors = capsys.readouterr().err
    assert "none.json: does not exist" in errors
    assert errors.count("other.json does not come from") == 2


def test_the_log_of_a_run_is_no_table(tmp_path, monkeypatch, capsys):
    log = tmp_path / "metrics.json"
    log.write_text('{"iteration": 0}\n{"iteration": 1}\n')
    with pytest.raises(SystemExit) as end:
        _run(monkeypatch, log)
    error = capsys.readouterr().err
    assert end.value.code == 2 and f"{log}: not a JSON file" in error
    assert error.endswith("give what tools/benchmark.py memory wrote with --output\n")


def test_models_without_steps_alone_are_tabled(sweep):
    rows = [row for row in sweep["rows"] if row["steps"] is None]
    assert "| fpn | 1.50 / 5.0 |" in plot_memory.table({**sweep, "rows": rows})
