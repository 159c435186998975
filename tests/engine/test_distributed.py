"""Two processes on the CPU (gloo): equal gradients, equal parameters, no hang."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("distributed_job.py")


def run(name: str, timeout: int = 120) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(JOB), name]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("gradients", id="E7_gradients_equal_one_process"),
        pytest.param("steps", id="E8_parameters_bit_equal_after_ten_steps"),
        pytest.param("accumulate", id="gradients_of_several_batches"),
        pytest.param("empty", id="C1_no_roi_on_one_or_all_ranks"),
        pytest.param("stopping", id="C4_ranks_stop_at_different_steps"),
        pytest.param("nonfinite", id="C6_ranks_end_together_on_nan"),
        pytest.param("resume", id="D5_stopped_and_resumed_on_all_ranks"),
    ],
)
def test_two_processes(name):
    result = run(name)
    assert result.returncode == 0, result.stderr[-3000:]
    assert f"{name} passed on 2 ranks" in result.stdout


def test_one_rank_failing_ends_the_job():
    result = run("exception")
    assert result.returncode != 0
    assert "rank 1 fails on purpose" in result.stderr
