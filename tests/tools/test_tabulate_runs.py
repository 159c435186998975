"""tools/tabulate_runs.py: means over seeds from logs."""

import json
import sys

import pytest
import tabulate_runs


def _log(folder, name, *rows):
    path = folder / name
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def _run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["tabulate_runs.py", *map(str, arguments)])
    tabulate_runs.main()


def test_last_values_their_mean_and_deviation(tmp_path, monkeypatch, capsys):
    first = _log(tmp_path, "1.json", {"iteration": 0, "loss_mask": 0.7}, {"iteration": 1, "loss_mask": 0.2, "PQ": 50.0})
    second = _log(tmp_path, "2.json", {"iteration": 1, "loss_mask": 0.4, "PQ": 52.0})
    third = _log(tmp_path, "3.json", {"iteration": 1, "loss_mask": 0.4, "residual": 0.5})
    logs = ["--log", f"a={first}", "--log", f"a={second}", "--log", f"b={third}"]
    _run(monkeypatch, *logs, "--scores", "PQ,loss_mask,residual")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| run | runs | PQ | loss_mask | residual |"
    assert lines[2:] == ["| a | 2 | 51.0 ± 1.4 | 0.3 ± 0.14 |  |", "| b | 1 |  | 0.4 | 0.5 |"]


def test_scores_of_nothing_are_not_averaged(tmp_path, monkeypatch, capsys):
    logs = [_log(tmp_path, f"{i}.json", {"iteration": 1, "PQ_st": value}) for i, value in enumerate((float("nan"), 50.0))]
    _run(monkeypatch, *(word for log in logs for word in ("--log", f"a={log}")), "--scores", "PQ_st")
    row, line = capsys.readouterr().out.splitlines()[2:]
    assert row == "| a | 2 | nan |" and line.startswith("a: PQ_st is not a number in 1 of 2 runs (AP is where nothing")


def test_a_score_that_no_log_has_is_named(tmp_path, monkeypatch, capsys):
    log = f"a={_log(tmp_path, '1.json', {'iteration': 0, 'loss_mask': 0.5})}"
    with pytest.raises(SystemExit) as end:
        _run(monkeypatch, "--log", log, "--scores", "loss_mask,foo")
    captured = capsys.readouterr()
    assert end.value.code == 2 and captured.err.endswith("no log has foo\n") and not captured.out
    _run(monkeypatch, "--log", log)
    assert capsys.readouterr().out.splitlines()[0] == "| run | runs | loss_mask |"


def test_the_score_of_contours_is_a_default_column(tmp_path, monkeypatch, capsys):
    log = _log(tmp_path, "1.json", {"iteration": 19, "total_loss": 1.0, "recurrent/residual": 0.1, "pathfinder/IoU": 0.5})
    _run(monkeypatch, "--log", f"a={log}")
    assert capsys.readouterr().out.splitlines()[0] == "| run | runs | pathfinder/IoU | recurrent/residual |"


def test_scores_of_each_of_several_sets_are_default_columns(tmp_path, monkeypatch, capsys):
    scores = {"b/pathfinder/IoU": 0.5, "a/pathfinder/IoU": 0.25, "a/pathfinder/F": 0.4}
    log = _log(tmp_path, "1.json", {"iteration": 19, "total_loss": 1.0, "recurrent/residual": 0.1, **scores})
    _run(monkeypatch, "--log", f"a={log}")
    columns = "a/pathfinder/IoU | b/pathfinder/IoU | recurrent/residual"
    assert capsys.readouterr().out.splitlines()[0] == f"| run | runs | {columns} |"


def test_runs_that_did_not_get_as_far_are_not_averaged(tmp_path, monkeypatch, capsys):
    logs = [_log(tmp_path, f"{last}.json", {"iteration": last, "PQ": 50.0}) for last in (999, 199)]
    with pytest.raises(SystemExit) as end:
        _run(monkeypatch, *(word for log in logs for word in ("--log", f"a={log}")))
    assert end.value.code == 2 and "199.json ends at iteration 200, another of that name at 1000" in capsys.readouterr().err


def test_scores_of_unlike_iterations_are_not_averaged(tmp_path, monkeypatch, capsys):
    losses = [{"iteration": i, "total_loss": 1.0} for i in (999, 1999)]
    whole = _log(tmp_path, "1.json", *losses, {"iteration": 999, "PQ": 19.0}, {"iteration": 1999, "PQ": 50.0})
    cut = _log(tmp_path, "2.json", *losses, {"iteration": 999, "PQ": 20.0})
    with pytest.raises(SystemExit) as end:
        _run(monkeypatch, "--log", f"a={whole}", "--log", f"a={cut}", "--scores", "PQ")
    assert end.value.code == 2 and "--log a: logs have their last PQ at iterations [1000, 2000]" in capsys.readouterr().err
    _run(monkeypatch, "--log", f"a={whole}", "--log", f"b={cut}", "--scores", "PQ,total_loss")
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == ["| a | 1 | 50.0 | 1 |", "| b | 1 | 20.0 | 1 |", "b: PQ is of iteration 1000, the log ends at 2000"]


def test_wrong_arguments_are_named(tmp_path, monkeypatch, capsys):
    for word, message in ((str(tmp_path), "needs NAME=FILE"), (f"a={tmp_path / 'none.json'}", "none.json does not exist")):
        with pytest.raises(SystemExit) as end:
            _run(monkeypatch, "--log", word)
        assert end.value.code == 2 and message in capsys.readouterr().err


def test_a_log_counts_once(tmp_path):
    path = _log(tmp_path, "a.json", {"iteration": 19, "total_loss": 1.0})
    with pytest.raises(ValueError, match="each file of a name once"):
        tabulate_runs.read_logs([("FPN", str(path)), ("FPN", f"{tmp_path}/./a.json")])
