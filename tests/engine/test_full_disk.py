"""A run without room ends with one line, keeps its last good checkpoint, and goes on once there is room."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("full_disk.py")
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]


def run(folder, what, *, inside=()):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    command = [*inside, sys.executable, str(JOB), str(folder), what]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def errors(done):
    # TensorBoard's thread may write its own words into the same line
    return re.findall(r"error: .*?the last good checkpoint is (?:\w+\.pth|none)", done.stderr)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A run on a disk of its own that fills up: what each life left, and what they printed."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare, to mount a small disk")
    mount = ["mount", "-t", "tmpfs", "none", str(tmp_path_factory.mktemp("probe"))]
    probe = subprocess.run([*NAMESPACE, *mount], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"no small disk can be mounted here: {probe.stderr.strip()}")
    folder = tmp_path_factory.mktemp("full_disk")
    done = run(folder, "checkpoints", inside=NAMESPACE)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads((folder / "lives.json").read_text()), done


def test_the_last_good_checkpoint_survives_a_full_disk(filled):
    lives, _ = filled
    kept = {"found": {"model_0000039.pth": 39}, "tag": "model_0000039.pth", "partial": 0}
    assert lives[:2] == [{"code": 2, **kept}] * 2


def test_a_full_disk_ends_each_run_with_one_line(filled):
    lines = errors(filled[1])
    assert len(lines) == 2
    assert "model_0000079.pth could not be written: No space left on device" in lines[0]
    assert all(line.endswith("No space left on device; the last good checkpoint is model_0000039.pth") for line in lines)


def test_a_run_goes_on_when_there_is_room_again(filled):
    end = filled[0][-1]
    assert (end["code"], end["tag"], end["partial"]) == (0, "model_final.pth", 0)
    assert end["found"]["model_final.pth"] == 199 and len(end["found"]) == 6
    assert "Starting training from iteration 40" in filled[1].stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_log_without_room_names_the_folder_and_the_last_good_checkpoint(tmp_path):
    done = run(tmp_path, "log")
    assert done.returncode == 2, done.stderr[-4000:]
    (line,) = errors(done)
    assert line == (
        f"error: OUTPUT_DIR {tmp_path / 'run'}: No space left on device; the last good checkpoint is model_0000039.pth"
    )
    assert (tmp_path / "run" / "last_checkpoint").read_text() == "model_0000039.pth"
