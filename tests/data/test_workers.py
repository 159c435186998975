"""Processes of a pool that Ctrl-C ends."""

import multiprocessing
import signal
import time

import pytest

from rfpn.data.workers import worker_pool


def test_ctrl_c_while_workers_start_leaves_none(monkeypatch):
    """The program would wait for them for ever when it ends."""

    def start_interrupted(process):
        start(process)
        signal.raise_signal(signal.SIGINT)

    start, before = multiprocessing.process.BaseProcess.start, multiprocessing.active_children()
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start_interrupted)
    with pytest.raises(KeyboardInterrupt), worker_pool(2) as pool:
        pool.submit(abs, 1)
    left = set(multiprocessing.active_children()) - set(before)
    for process in left:
        process.kill()
    assert not left


def test_ctrl_c_does_not_wait_for_tasks_that_have_not_begun():
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), worker_pool(1) as pool:
        for _ in range(100):
            pool.submit(time.sleep, 0.2)
        raise KeyboardInterrupt
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_ctrl_c_does_not_reach_workers_that_start(start_method):
    """Each would print a traceback and be gone."""
    with worker_pool(1, start_method) as pool:
        assert signal.SIGINT in pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
