"""Processes that prepare data."""

import signal
from concurrent.futures import ProcessPoolExecutor


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """So many processes, which leave Ctrl-C to the main one: that tells of it and ends them."""
    return ProcessPoolExecutor(workers, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))
