"""Triton kernels without a GPU: the smallest cases once more, in Triton's interpreter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CASES = "cpu and float32 and (transposed or (recorded and ones)) and (printed or gala)"


def test_kernels_on_a_cpu():
    pytest.importorskip("triton")
    forms = Path(__file__).with_name("test_forms.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(forms), "-k", CASES]
    # read as Triton is imported, so only a new process can have it
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout[-2000:]
    assert int(re.search(r"(\d+) passed", run.stdout)[1]) >= 8 and "skipped" not in run.stdout
