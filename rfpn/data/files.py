"""Where data sets lie, and files that are either whole or not there."""

import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator


def datasets_root() -> str:
    """The folder of all data sets: ``$DETECTRON2_DATASETS`` with ``~`` expanded, by default ``datasets``."""
    return os.path.expanduser(os.getenv("DETECTRON2_DATASETS", "datasets"))


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


def write_json(path: str | os.PathLike, content, indent: int | None = None) -> None:
    """Write JSON as a whole file, and make its folder.

    Args:
        content: what :mod:`json` can write. indent: spaces, each value then on a line of its own.

    Raises:
        OSError: naming ``path``, which cannot be written.
    """
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with whole_file(path) as temporary, open(temporary, "w") as file:
        json.dump(content, file, indent=indent)
        file.write("\n")
