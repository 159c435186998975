import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def prepare(*arguments):
    """Runs the program; returns its exit status, output and errors."""
    command = [sys.executable, ROOT / "datasets" / "prepare_pathfinder.py", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return done.returncode, done.stdout, done.stderr


def test_F4_a_split_is_made_once_and_never_mixed(tmp_path):
    easy = ["--length", 6, "--split", "test", "--num", 3, "--window", 128, "--padding", 10, "--output", tmp_path]
    code, out, err = prepare(*easy, "--workers", 1)
    assert code == 0 and "is finished: 3 samples, 3 of them written now" in out
    assert "3/3" in err  # progress bar
    assert (tmp_path / "test/curv_contour_length_6/seg/0/sample_2.png").is_file()
    code, out, _ = prepare(*easy)
    assert code == 0 and "none of them written now" in out
    code, _, err = prepare(*easy, "--gap", 4)
    assert code == 2 and "gap 3.0, not 4.0" in err and "Traceback" not in err


def test_F3_contours_that_cannot_fit_exit_with_the_settings(tmp_path):
    code, _, err = prepare(
        *("--length", 30, "--split", "train", "--num", 1, "--window", 48, "--padding", 6, "--output", tmp_path)
    )
    assert code == 2 and "window=48" in err and "Traceback" not in err


def test_missing_and_wrong_arguments_are_named(tmp_path):
    assert "--length, --split and --num are required" in prepare("--length", 14)[2]
    code, _, err = prepare("--length", 14, "--split", "train", "--num", 1, "--distractor-length", "4.7")
    assert code == 2 and "invalid int value" in err
    code, _, err = prepare("--benchmark", "--num", -5)
    assert code == 2 and "--num must be 1 or more, got -5" in err


def test_benchmark_prints_milliseconds_a_sample():
    code, out, _ = prepare("--benchmark", "--num", 20)
    times = {int(length): float(ms) for length, ms in re.findall(r"length (\d+): ([\d.]+) ms", out)}
    assert code == 0 and list(times) == [14, 20, 25]
    # A twentieth of the public generator's time, with room for a slow machine already in it.
    assert times[14] < 7.5 * 3 and times[20] < 32 and times[25] < 110


def test_benchmark_is_of_the_settings_given():
    code, out, _ = prepare("--benchmark", "--num", 1, "--length", 6, "--window", 128, "--padding", 10, "--distractors", 4)
    assert code == 0 and re.findall(r"length (\d+)", out) == ["6"]
    code, _, err = prepare("--benchmark", "--num", 1, "--length", 6, "--target-level", 0.1)
    assert code == 2 and "target_level 0.1 must" in err
