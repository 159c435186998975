"""Processes that prepare data or score it."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Iterator


def worker_pool(workers: int, start_method: str | None = None) -> ProcessPoolExecutor:
    """So many processes, which leave Ctrl-C to the main one (that tells of it and ends them) and end with it.

    Leaving its block waits for the tasks that processes have, about two each, and drops all others: Ctrl-C takes as long.
    Where a process is killed, as by the system, results raise ``BrokenProcessPool``. ``start_method`` is multiprocessing's.
    """
    return _Pool(workers, mp_context=multiprocessing.get_context(start_method), initializer=_start)


@contextmanager
def interrupted_after() -> Iterator[None]:
    """Let Ctrl-C take effect at the end of the block; processes that are started within leave it to this one.

    Python loses an interrupt that comes while it forks: that its workers were gone would be all that this process heard of it.
    """
    # other threads cannot set handlers, and one that is not Python's own cannot be set again
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    came = []
    handler = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    # for the processes, which inherit it, also where they are spawned; here another thread may get the signal
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def refuse_unguarded() -> None:
    """Raise RuntimeError in a worker that runs its program from the top: it would wait for a lock that the program holds."""
    # multiprocessing's own mark, by which it refuses to start workers
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError("a program that starts workers must do its work below `if __name__ == '__main__':`")


class _Pool(ProcessPoolExecutor):
    def submit(self, *args, **kwargs):
        """As the standard library's, which starts the processes here; interrupted half-way, it would leave them for ever."""
        with interrupted_after():
            return super().submit(*args, **kwargs)

    def __exit__(self, *error):
        self.shutdown(cancel_futures=True)


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # workers of a killed process would wait for tasks for ever, and hold its output open
    multiprocessing.parent_process().join()
    os._exit(1)
