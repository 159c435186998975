"""Triton kernels without a GPU: the smallest cases once more, in Triton's interpreter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# every kernel; series of the hGRU take long and have no kernel of their own
CASES = "cpu and (bfloat16 or float32 and (transposed or recorded and ones or neumann and gala))"


def test_kernels_on_a_cpu():
    pytest.importorskip("triton")
    files = [str(Path(__file__).with_name(f"test_{name}.py")) for name in ("forms", "spectral")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k", CASES]
    # read as Triton is imported, so only a new process can have it
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout[-2000:]
    assert int(re.search(r"(\d+) passed", run.stdout)[1]) >= 20 and "skipped" not in run.stdout
