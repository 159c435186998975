import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_custom_cell_learns_the_digits():
    pytest.importorskip("sklearn")
    done = subprocess.run(
        [sys.executable, "examples/custom_cell.py"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    values = dict(re.findall(r"(accuracy|residual) (\S+)", done.stdout.splitlines()[-1]))
    assert float(values["accuracy"]) >= 0.94 and float(values["residual"]) < 0.01
    assert "truncated_share" in done.stdout
