"""tools/plot_pathfinder_runs.py: tables and curves from logs."""

import json
import sys

import plot_pathfinder_runs
import pytest


@pytest.fixture
def log(tmp_path):
    rows = [{"iteration": 9, "total_loss": 0.5, "recurrent/residual": 0.1, "pathfinder/IoU": 0.25}]
    rows += [{"iteration": 19, "total_loss": 0.2, "recurrent/residual": 0.01}, {"iteration": 19, "pathfinder/IoU": 0.5}]
    path = tmp_path / "metrics.json"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def _run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["plot_pathfinder_runs.py", *map(str, arguments)])
    plot_pathfinder_runs.main()


def test_table_and_figure(log, tmp_path, monkeypatch, capsys):
    _run(monkeypatch, "--log", f"one={log}", "--epoch", 10, "--output", tmp_path / "curves.png")
    assert "| one | 0.250 (1.0), 0.500 (2.0) |" in capsys.readouterr().out
    assert (tmp_path / "curves.png").stat().st_size > 0


def test_missing_log_is_named(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        _run(monkeypatch, "--log", f"one={tmp_path / 'none.json'}")
    assert end.value.code == 2 and "none.json" in capsys.readouterr().err
