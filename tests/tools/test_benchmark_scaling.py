"""tools/benchmark_scaling.py: real runs on one and two CPU processes, and errors of the command line."""

import json
import re
import sys
from pathlib import Path

import benchmark_scaling
import pytest

from rfpn.data.pathfinder.dataset import write_split
from rfpn.data.pathfinder.settings import PathfinderSettings

QUICK = Path(__file__).parents[2] / "configs" / "quick_schedules" / "pathfinder_quick.yaml"


def _run(monkeypatch, *arguments):
    words = ["--config-file", QUICK, "--images", 2, *arguments]
    monkeypatch.setattr(sys, "argv", ["benchmark_scaling.py", *map(str, words)])
    benchmark_scaling.main()


def test_one_and_two_processes_and_a_run_that_fails(tmp_path, monkeypatch, capfd):
    settings = PathfinderSettings(6)
    write_split(str(tmp_path / "pathfinder"), settings, "train", 8, progress=False)
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # of the runs: a machine may have one GPU
    output, small = tmp_path / "scaling.json", ["MODEL.RECURRENT.STEPS", 2, "MODEL.RECURRENT.NEUMANN_TERMS", 1]
    counts = ["--processes", 1, 2, "--iterations", 60, "--output", output]
    _run(monkeypatch, *counts, *small)
    one, two = json.loads(output.read_text())["rows"]
    assert (one["processes"], two["processes"], one["linear"]) == (1, 2, 1)
    for row in (one, two):
        assert 0 <= row["data"] < row["milliseconds"]
        assert row["images_per_second"] == pytest.approx(2e3 * row["processes"] / row["milliseconds"])
    assert two["linear"] == pytest.approx(one["milliseconds"] / two["milliseconds"])
    assert len(capfd.readouterr().out.splitlines()) == 4

    words = "^the run on 1 ended with status [12]: error: MODEL.WEIGHTS .*none.pth does not exist$"
    with pytest.raises(SystemExit, match=words):
        _run(monkeypatch, *counts, "MODEL.WEIGHTS", tmp_path / "none.pth")


def test_images_of_accumulated_batches_count(monkeypatch, capfd):
    log = {key: (list(range(60)), [seconds] * 60) for key, seconds in (("time", 0.5), ("data_time", 0.125))}
    monkeypatch.setattr(benchmark_scaling, "train", lambda *_: log)
    _run(monkeypatch, "--processes", 2, "--iterations", 60, "SOLVER.ACCUMULATE", 3)
    assert capfd.readouterr().out.splitlines()[-1].split() == ["2", "500.0", "125.0", "24.0", "1.000"]


def test_too_short_runs_are_refused(monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        _run(monkeypatch, "--iterations", 59)
    assert end.value.code == 2 and "fewer than 60" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        (["--config-file", "nope.yaml"], "error: --config-file .*nope.yaml does not exist\n"),
        (["MODEL.RECURRENT.STEPS", 0], "error: MODEL.RECURRENT.STEPS must be at least 1.*\n"),
    ],
)
def test_a_wrong_configuration_is_told_before_anything_is_launched(words, message, monkeypatch, capsys):
    monkeypatch.setattr(benchmark_scaling, "train", lambda *_: pytest.fail("launched"))
    with pytest.raises(SystemExit) as end:
        _run(monkeypatch, *words)
    captured = capsys.readouterr()
    assert end.value.code == 2 and not captured.out and re.fullmatch(message, captured.err)
