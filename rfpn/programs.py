"""How programs end early: with one line and an exit code."""

import errno
import os
import re
import sys
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


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the program with one line.

    Exit codes: 2 for wrong input or a process that was lost, 3 for numbers that are not finite, 130 for Ctrl-C.
    """
    try:
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
