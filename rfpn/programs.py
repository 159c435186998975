"""How programs end early: with one line and an exit code."""

import _thread
import errno
import os
import re
import signal
import sys
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Iterator

# raised by wrong input; any other error is a fault of the program and keeps its traceback
INPUT_ERRORS = (ValueError, KeyError, OSError)
# the system's reasons in plainer words; others stand as they are
_REASONS = {
    errno.ENOENT: "does not exist",
    errno.EEXIST: "is a file, where a folder is needed",
    errno.ENOTDIR: "is, or lies below, a file, where a folder is needed",
    errno.EISDIR: "is a folder, where a file is needed",
}
# Seconds until Ctrl-C comes again; what dropped it is over by then, as a rule.
_SOON = 0.1


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the program with one line.

    Exit codes: 2 for wrong input or a process that was lost, 3 for numbers that are not finite, 130 for Ctrl-C.
    """
    try:
        with _no_lost_interrupts():
            yield
    except BrokenProcessPool:
        _end("error: a process was killed from outside, perhaps for lack of memory; use fewer workers", 2)
    except INPUT_ERRORS as error:
        text = error_text(error)
        # a bare key comes from a look-up that nobody wrote a message for: the traceback says more
        if isinstance(error, KeyError) and " " not in text:
            raise
        _end(f"error: {text}", 2)
    except FloatingPointError as error:
        _end(f"error: {error_text(error)}", 3)
    except RuntimeError as error:
        # a lost loader worker: PyTorch raises it in whatever the main process is doing
        if not str(error).startswith("DataLoader worker (pid"):
            raise
        _end(f"error: {error_text(error).rstrip('.')}, perhaps for lack of memory; set a smaller DATALOADER.NUM_WORKERS", 2)
    except KeyboardInterrupt:
        _end("interrupted", 130)


@contextmanager
def _no_lost_interrupts() -> Iterator[None]:
    """Let Ctrl-C come again where Python reports and drops it: in ``__del__`` (of a loader, say) and in callbacks.

    Raises:
        KeyboardInterrupt: also in place of an error that came of it, as where a library's clean-up stumbles over what it left.
    """
    report, coming = sys.unraisablehook, False

    def report_or_repeat(dropped) -> None:
        """As Python reports what it drops, but for Ctrl-C."""
        nonlocal coming
        if dropped.exc_type is not KeyboardInterrupt:
            report(dropped)
            return
        coming = True
        # not threading's, whose locks may be held by what was interrupted
        _thread.start_new_thread(_interrupt_soon, ())

    sys.unraisablehook = report_or_repeat
    try:
        yield
        if coming:
            # after the block nothing would expect it
            time.sleep(10 * _SOON)
    except Exception as error:
        before = error
        while before := before.__context__:
            if isinstance(before, KeyboardInterrupt):
                raise before from None
        raise
    finally:
        sys.unraisablehook = report


def _interrupt_soon() -> None:
    time.sleep(_SOON)
    # one to the process may reach another thread, and would not wake the main one
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def error_text(error: Exception) -> str:
    """What an error says, in one line: the system's errors as "<file>: <reason>", those of a worker without its traceback."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if text.startswith("Caught ") and "Original Traceback" in text:
        text = re.split(rf"\n(?:\w+\.)*{type(error).__name__}: ", text)[-1]
    text = " ".join(text.split())
    if of_file := re.fullmatch(r"\[Errno (\d+)\] (.+?): '([^']+)'", text):
        number, reason, path = int(of_file[1]), of_file[2], of_file[3]
        # a reason that is not the system's own was written in this project, with a remedy
        own = reason != os.strerror(number) or number == errno.EEXIST and os.path.isdir(path)
        return f"{path}: {reason if own else _REASONS.get(number, reason)}"
    return text


def _end(line: str, status: int) -> None:
    print(line, file=sys.stderr)
    sys.exit(status)
