"""Command-line arguments that programs share: what is wrong ends a program in one line, before its work."""

import argparse
import os
import re
from pathlib import Path

# each step has an evaluator, a picture or a measurement of its own
_MOST_STEPS = 10_000


def positive(word: str) -> int:
    """A whole number of at least 1."""
    return _whole(word, 1)


def natural(word: str) -> int:
    """A whole number of at least 0."""
    return _whole(word, 0)


def step_list(word: str) -> list[int]:
    """Steps in ascending order from, say, "1-10,20,40"."""
    steps = set()
    for part in word.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= _MOST_STEPS:
            raise argparse.ArgumentTypeError(f"{word!r} has no steps from 1 to {_MOST_STEPS} and ranges, as in 1-10,20,40")
        steps.update(range(first, last + 1))
    return sorted(steps)


def output_file(word: str) -> Path:
    """A file to write, in a folder that is there."""
    path = Path(word)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{word!r} is no file in a folder that exists")
    # a file may be written in place, or beside it and renamed: both must be possible
    if not all(os.access(place, os.W_OK) for place in (path.parent, path) if place.exists()):
        raise argparse.ArgumentTypeError(f"{word!r}, or its folder, cannot be written to")
    return path


def png_file(word: str) -> Path:
    """A PNG file to write, in a folder that is there."""
    if not word.lower().endswith(".png"):
        raise argparse.ArgumentTypeError(f"{word!r} does not end in .png")
    return output_file(word)


def add_logs(parser: argparse.ArgumentParser) -> None:
    """Add ``--log``: name and path of the logs of runs."""
    parser.add_argument(
        "--log", type=named_file, action="append", required=True, metavar="NAME=FILE", help="metrics.json of a run, repeatable"
    )


def named_file(word: str) -> tuple[str, str]:
    """Name and path from NAME=FILE."""
    name, separator, path = word.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{word!r} needs NAME=FILE")
    return name, path


def check_name(option: str, name: str) -> None:
    """Raise ValueError for a name that Matplotlib leaves out of legends or reads as a formula, or that ends a table's cell."""
    if name.startswith("_") or set(name) & set("$|"):
        wrong = "names in tables and figures must not begin with _ or hold $ or |"
        raise ValueError(f"{option} {name}: {wrong}; give another as in NAME=FILE")


def check_files(option: str, files: list[tuple[str, str]], several: bool = False) -> None:
    """Raise OSError or ValueError naming the option where one of its NAME=FILE does not exist, or a name is wrong or twice.

    ``several``: a name may have several files, each once.
    """
    seen = set()
    for name, path in files:
        check_name(option, name)
        if not os.path.exists(path):
            raise FileNotFoundError(f"{option} {name}={path}: {os.path.abspath(path)} does not exist")
        if (given := (name, several and os.path.realpath(path))) in seen:
            raise ValueError(f"{option} {name}={path}: each {'file of a name' if several else 'name'} once")
        seen.add(given)


def _whole(word: str, least: int) -> int:
    if not word.isdecimal() or int(word) < least:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number of at least {least}")
    return int(word)
