"""How the programs of ``datasets/`` end early; for those that need models and training see ``rfpn.engine.setup``."""

import sys
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Iterator

from rfpn.data.pathfinder.settings import GenerationError


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the program with one line where its input is wrong or it lost a process (exit code 2), or on Ctrl-C (130)."""
    try:
        yield
    except BrokenProcessPool:
        _end("error: a process was ended from outside, perhaps for lack of memory; take fewer --workers", 2)
    except (ValueError, OSError, GenerationError) as error:
        _end(f"error: {' '.join(str(error).split())}", 2)
    except KeyboardInterrupt:
        _end("interrupted: run the same command again", 130)


def _end(line: str, status: int) -> None:
    print(line, file=sys.stderr)
    sys.exit(status)
