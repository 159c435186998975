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


def test_scores_of_no_log_join_the_curve(log, tmp_path, monkeypatch, capsys):
    scores = ["--score", "one=15:0.4", "--score", "one=30:1.0", "--score", "one=20:.55"]
    _run(monkeypatch, "--log", f"one={log}", *scores, "--epoch", 10, "--output", tmp_path / "curves.png")
    assert "| one | 0.250 (1.0), 0.400 (1.5), 0.550 (2.0), 1.000 (3.0) |" in capsys.readouterr().out


def test_a_run_from_another_s_weights_counts_from_where_that_ended(log, tmp_path, monkeypatch, capsys):
    both = ["--log", f"one={log}", "--log", f"two={log}", "--epoch", 10, "--score", "two=15:0.4"]
    _run(monkeypatch, *both, "--start", "two=20", "--output", tmp_path / "curves.png")
    printed = capsys.readouterr().out
    assert "| one | 0.250 (1.0), 0.500 (2.0) |" in printed
    assert "| two | 0.250 (3.0), 0.400 (3.5), 0.500 (4.0) |" in printed


def test_panels_share_their_epochs(log):
    logs = plot_pathfinder_runs.add_scores(plot_pathfinder_runs.read_logs([("one", log)]), [("one", 40, 0.5)])
    axes = plot_pathfinder_runs.draw(logs, 10).axes
    assert len({axis.get_xlim() for axis in axes}) == 1 and axes[1].get_xlim()[1] > 3.9


def test_a_single_line_of_a_log_is_seen(log, tmp_path):
    (tmp_path / "one.json").write_text(json.dumps({"iteration": 9, "total_loss": 0.5}))
    logs = plot_pathfinder_runs.read_logs([("one", tmp_path / "one.json"), ("two", log)])
    assert [line.get_marker() for line in plot_pathfinder_runs.draw(logs, 10).axes[1].lines] == ["o", "None"]


def test_a_log_without_scores_needs_some(log, tmp_path, monkeypatch, capsys):
    losses = tmp_path / "losses.json"
    losses.write_text(json.dumps({"iteration": 9, "total_loss": 0.5}))
    both = ["--log", f"one={log}", "--log", f"two={losses}", "--epoch", 10]
    with pytest.raises(SystemExit) as end:
        _run(monkeypatch, *both)
    captured = capsys.readouterr()
    assert end.value.code == 2 and not captured.out
    assert captured.err.startswith(f"error: --log two={losses}: has no pathfinder/IoU; give the log of a Pathfinder run")
    _run(monkeypatch, *both, "--score", "two=10:0.5")
    assert "| two | 0.500 (1.0) |" in capsys.readouterr().out


def test_a_log_of_several_sets_has_a_curve_of_each(log, tmp_path, monkeypatch, capsys):
    both = tmp_path / "both.json"
    rows = [{"iteration": 9, "total_loss": 0.5, "p6/pathfinder/IoU": 0.25, "p9/pathfinder/IoU": 0.125}]
    both.write_text("\n".join(json.dumps(row) for row in [*rows, {"iteration": 10, "p9/pathfinder/IoU": 0.5}]))
    arguments = ["--log", f"one={log}", "--log", f"two={both}", "--epoch", 10, "--score", "two, p9=20:0.6"]
    _run(monkeypatch, *arguments, "--start", "two, p9=10", "--output", tmp_path / "curves.png")
    rows = capsys.readouterr().out.splitlines()[2:]
    assert rows == [
        "| one | 0.250 (1.0), 0.500 (2.0) |",
        "| two, p6 | 0.250 (1.0) |",
        "| two, p9 | 0.500 (2.0), 0.600 (3.0) |",
    ]
    for wrong in (["--score", "two=20:0.6"], ["--start", "two=20"]):
        with pytest.raises(SystemExit):
            _run(monkeypatch, *arguments, *wrong)
        assert capsys.readouterr().err.endswith("no --log has that name, but one; two, p6; two, p9\n")
    with pytest.raises(SystemExit):
        _run(monkeypatch, *arguments, "--log", f"two, p6={log}")
    assert "two, p6 is another log's name; give this one another" in capsys.readouterr().err


def test_many_curves_differ_and_sets_of_one_log_share_their_loss(log, tmp_path):
    both = tmp_path / "both.json"
    rows = [{"iteration": 9, "total_loss": 0.4, "p6/pathfinder/IoU": 0.25, "p9/pathfinder/IoU": 0.125}]
    both.write_text("\n".join(map(json.dumps, rows)))
    copies = [tmp_path / f"{i}.json" for i in range(20)]
    for i, copy in enumerate(copies):
        copy.write_text(log.read_text().replace("0.5", f"0.5{i}1"))
    logs = plot_pathfinder_runs.read_logs([("two", both), *((copy.stem, copy) for copy in copies)])
    score, loss, _ = plot_pathfinder_runs.draw(logs, 10).axes
    assert len({(line.get_color(), line.get_linestyle()) for line in score.lines}) == 22
    looks = [{line.get_label(): (line.get_color(), line.get_linestyle()) for line in axis.lines} for axis in (score, loss)]
    assert looks[0].keys() - looks[1].keys() == {"two, p9"}
    assert all(looks[0][name] == look for name, look in looks[1].items())


def test_wrong_arguments_are_named(log, tmp_path, monkeypatch, capsys):
    cut = tmp_path / "cut.json"
    cut.write_text("no log")
    one = ["--log", f"one={log}"]
    for arguments, words in (
        (["--log", f"one={tmp_path / 'none.json'}"], f"--log one={tmp_path}/none.json: {tmp_path}/none.json does not exist"),
        (["--log", str(log)], "needs NAME=FILE"),
        (["--log", f"one={cut}"], "cut.json: no log of a run"),
        (one * 2, "each name once"),
        ([*one, "--score", "two=15:0.4"], "--score two=15:0.4: no --log has that name"),
        ([*one, "--score", "one=0:0.4"], "needs NAME=ITERATION:IOU"),
        ([*one, "--score", "one=15:40"], "needs NAME=ITERATION:IOU"),
        ([*one, "--score", "one=15"], "needs NAME=ITERATION:IOU"),
        ([*one, "--score", "one=15:0.4", "--score", "one=15:0.5"], "--score one=15:0.5: each iteration of a run once"),
        ([*one, "--start", "two=15"], "--start two=15: no --log has that name"),
        ([*one, "--start", "one=0"], "needs NAME=ITERATION"),
        ([*one, "--start", "one=5", "--start", "one=7"], "--start one=7: each name once"),
        ([*one, "--epoch", 0], "'0' is not a whole number of at least 1"),
        ([*one, "--output", tmp_path / "a.xyz"], "does not end in .png"),
        ([*one, "--output", tmp_path / "none" / "a.png"], "no file in a folder that exists"),
    ):
        with pytest.raises(SystemExit) as end:
            _run(monkeypatch, *arguments)
        assert end.value.code == 2 and words in capsys.readouterr().err


def test_last_scores_are_of_the_last_iteration(tmp_path):
    """They bear the number that would have followed."""
    rows = [{"iteration": 9, "total_loss": 1.0, "pathfinder/IoU": 0.5}, {"iteration": 19, "total_loss": 1.0}]
    path = tmp_path / "metrics.json"
    path.write_text("\n".join(json.dumps(row) for row in [*rows, {"iteration": 20, "pathfinder/IoU": 0.6}]))
    logs = plot_pathfinder_runs.read_logs([("a", str(path))])
    assert "0.500 (1.0), 0.600 (2.0)" in plot_pathfinder_runs.table(logs, 10)
    assert plot_pathfinder_runs.draw(logs, 10).axes[0].lines[0].get_xdata().tolist() == [1.0, 2.0]
    logs = plot_pathfinder_runs.add_scores(logs, [("a", 20, 0.61)])
    assert "0.500 (1.0), 0.610 (2.0) |" in plot_pathfinder_runs.table(logs, 10)
