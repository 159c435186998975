"""Files that are either whole or not there."""

import os
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator


@contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[Path]:
    """A path to write to that becomes ``path`` at the end and is gone after an error. Raises OSError naming ``path``."""
    # of this process alone: others may write the same file
    temporary = Path(f"{os.fspath(path)}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is None:
            raise
        # a write to a file that is open fails without its name
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
