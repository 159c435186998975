"""Two processes on the CPU (gloo): equal gradients, equal parameters, no hang."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("distributed_job.py")


# ids of the tests by the jobs that they ask for
JOBS = {
    "gradients": "E7_gradients_equal_one_process",
    "steps": "E8_parameters_bit_equal_after_ten_steps",
    "drawn": "steps_drawn_anew_are_the_same_on_all_ranks",
    "accumulate": "gradients_of_several_batches",
    "metrics": "logged_losses_are_means_over_ranks",
    "statistics": "E8_ranks_are_evaluated_with_the_statistics_of_checkpoints",
    "empty": "C1_no_roi_on_one_or_all_ranks",
    "stopping": "C4_ranks_stop_at_different_steps",
    "nonfinite": "C6_ranks_end_together_on_nan",
    "resume": "D5_stopped_and_resumed_on_all_ranks",
}


def run(*names: str, timeout: int = 120) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(JOB), *names]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as late:  # what has passed till then is told; its output is bytes even with text
        return subprocess.CompletedProcess(command, -1, (late.stdout or b"").decode(), f"hung for {timeout} s")


@pytest.fixture(scope="module")
def jobs() -> subprocess.CompletedProcess:
    """All jobs, one after the other in the same two processes, whose start takes most of the time."""
    return run(*JOBS)


@pytest.mark.parametrize("name", JOBS, ids=JOBS.get)
def test_two_processes(jobs, name):
    """The first to fail ends the jobs after it too."""
    assert f"{name} passed on 2 ranks" in jobs.stdout, jobs.stderr[-3000:]


def test_the_jobs_end_well(jobs):
    assert jobs.returncode == 0, jobs.stderr[-3000:]


def test_one_rank_failing_ends_the_job():
    result = run("exception")
    assert result.returncode != 0
    assert "rank 1 fails on purpose" in result.stderr
