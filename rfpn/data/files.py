"""Where data sets lie, files that are either whole or not there, and what messages say of many."""

import contextlib
import csv
import errno
import fcntl
import json
import math
import os
from pathlib import Path
from typing import Iterator, Sequence

import numpy as np

# errors of a write to a disk, or a quota, that is full
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


def datasets_root() -> str:
    """The folder of all data sets: ``$DETECTRON2_DATASETS`` with ``~`` expanded, by default ``datasets``."""
    return os.path.expanduser(os.getenv("DETECTRON2_DATASETS", "datasets"))


@contextlib.contextmanager
def locked(path: str | os.PathLike) -> Iterator[None]:
    """Hold ``path``.lock, which one process at a time can, and wait for it; on file systems without locks, do without."""
    lock = os.open(f"{os.fspath(path)}.lock", os.O_RDWR | os.O_CREAT)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        # processes forked meanwhile hold it too
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


@contextlib.contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[Path]:
    """A path to write to that becomes ``path`` at the end and is gone after an error. Raises OSError naming ``path``."""
    # named after this process, since others may write the same file
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
        content: what :mod:`json` can write, and NumPy's numbers. indent: spaces, each value then on a line of its own.

    Raises:
        OSError: naming ``path``, which cannot be written.
    """
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with whole_file(path) as temporary, open(temporary, "w") as file:
        json.dump(content, file, indent=indent, default=_pythons_own)
        file.write("\n")


def _pythons_own(value):
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"JSON has no word for a {type(value).__name__}")


def finite(content):
    """The same content with None in the place of numbers that are not finite, which JSON has no word for."""
    if isinstance(content, dict):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [finite(value) for value in content]
    return None if isinstance(content, (float, np.floating)) and not math.isfinite(content) else content


def write_csv(path: str | os.PathLike, rows: list[dict]) -> None:
    """Write rows as a whole CSV file, and make its folder; a row without a column's value leaves it empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with whole_file(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def differences(old: dict, new: dict) -> str:
    """How two JSON objects differ, objects within them entry by entry: "num 20, not 40; ...", empty where they are equal."""
    changes = []
    for key in {**old, **new}:
        before, after = old.get(key, "nothing"), new.get(key, "nothing")
        if isinstance(before, dict) and isinstance(after, dict):
            changes += filter(None, [differences(before, after)])
        elif before != after:
            changes.append(f"{key} {before}, not {after}")
    return "; ".join(changes)


def read_json(path: str) -> dict:
    """The JSON object that a file holds.

    Raises:
        OSError, ValueError: the file is missing or unreadable, or no JSON object; all name it.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if text.startswith("\ufeff"):
            raise ValueError("save it as UTF-8 without a byte order mark")
        content = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a JSON file ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, got a {type(content).__name__}")
    return content


def _refuse_constant(name: str):
    raise ValueError(f"{name} is no JSON number")


def read_npz(path: str) -> dict[str, np.ndarray]:
    """Arrays by name from an .npz archive; nothing in it is run. Raises ValueError naming one that cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
    # damaged archives raise almost anything
    except Exception as error:
        raise ValueError(f"{path} cannot be read as .npz archive: {' '.join(str(error).split())}") from None
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{path} is no .npz archive: {name!r} in it is no array")
    return arrays


def first_few(values: Sequence, most: int = 5) -> str:
    """The first ``most`` of some values, with commas between, and how many more there are; empty if there are none."""
    shown = ", ".join(map(str, values[:most]))
    return shown + (f" and {len(values) - most} more" if len(values) > most else "")
