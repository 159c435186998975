"""Processes that prepare data or score it."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """So many processes, which leave Ctrl-C to the main one (that tells of it and ends them) and end with it."""
    return ProcessPoolExecutor(workers, initializer=start_worker)


def start_worker() -> None:
    """What a worker process does first, in any pool: see :func:`worker_pool`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # workers of a killed process would wait for tasks for ever, and hold its output open
    multiprocessing.parent_process().join()
    os._exit(1)
