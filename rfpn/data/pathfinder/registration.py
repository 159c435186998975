"""Registers Pathfinder folders in the published layout as Detectron2 data sets.

A folder holds ``imgs/<batch>/sample_<i>.png`` beside ``seg/<batch>/sample_<i>.png``. The built-in names
``pathfinder_<L>_{train,test}`` stand for what ``datasets/prepare_pathfinder.py`` makes by default:
``$DETECTRON2_DATASETS/pathfinder/<split>/curv_contour_length_<L>``; ``pathfinder_easy_{train,test}`` for the short contours of
``make demo-pathfinder``.
"""

import os
import re

from detectron2.data import DatasetCatalog

from rfpn.data.catalog import register_once
from rfpn.data.files import read_json
from rfpn.data.pathfinder.dataset import MANIFEST, UNFINISHED, split_folder
from rfpn.data.pathfinder.settings import SPLITS

LENGTHS = (6, 9, 14, 20, 25)
EASY_FOLDER, EASY_LENGTH = "pathfinder_easy", 3
SIZES = {"train": 190000, "test": 10000}  # images, as published


def register_builtin_pathfinder(root: str) -> None:
    """Register every length and split, and the easy set, under ``root``, whether the files are there yet or not.

    A name that is taken already is left alone.
    """
    for length in LENGTHS:
        for split in SPLITS:
            name = f"pathfinder_{length}_{split}"
            if name not in DatasetCatalog:
                register_pathfinder(name, builtin_folder(root, length, split), command=_command(root, length, split))
    for split in SPLITS:
        if (name := f"pathfinder_easy_{split}") not in DatasetCatalog:
            folder = split_folder(os.path.join(root, EASY_FOLDER), EASY_LENGTH, split)
            register_pathfinder(name, str(folder), command="make demo-pathfinder")


def builtin_folder(root: str, length: int, split: str) -> str:
    """Where the built-in set of one length and split lies."""
    return str(split_folder(os.path.join(root, "pathfinder"), length, split))


def register_pathfinder(
    name: str, folder: str, *, start: int = 0, stop: int | None = None, command: str | None = None
) -> None:
    """Register a folder in the published layout; it is read when the data set is first used.

    The authors' own folders hold all images of a length: give ``start`` and ``stop`` to split them.

    Args:
        folder: with ``imgs`` and ``seg``.
        start, stop: take samples [start, stop) in the order of batch and sample number; ``stop`` None for all.
        command: what makes the folder, for the error where it is missing.

    Raises:
        ValueError: ``name`` is taken by a set with other arguments.
    """
    arguments = (os.path.abspath(folder), start, stop)
    metadata = {
        "evaluator_type": "pathfinder",
        "image_root": os.path.join(folder, "imgs"),
        "stuff_classes": ["background", "target"],
    }
    register_once(name, arguments, lambda: load_pathfinder(folder, start, stop, command), metadata)


def load_pathfinder(folder: str, start: int = 0, stop: int | None = None, command: str | None = None) -> list[dict]:
    """Dataset dicts with ``file_name``, ``sem_seg_file_name`` and ``image_id`` ("batch/sample_i"); opens no picture.

    Raises:
        FileNotFoundError: the folder, its images or some of their targets are missing; says which and what helps.
        ValueError: the generator was stopped before the folder was finished, or its manifest counts other samples.
    """
    remedy = f"; make it with: {command}" if command else ""
    if os.path.isfile(os.path.join(folder, UNFINISHED)):
        raise ValueError(f"{os.path.abspath(folder)}: not finished; run the same datasets/prepare_pathfinder.py again")
    images, targets = (_samples(os.path.join(folder, kind), remedy) for kind in ("imgs", "seg"))
    unpaired = sorted(images.symmetric_difference(targets), key=_natural)
    if unpaired:
        raise FileNotFoundError(
            f"{os.path.abspath(folder)}: {len(unpaired)} samples lie in only one of imgs and seg, "
            f"e.g. {', '.join(unpaired[:3])}{remedy}"
        )
    manifest = os.path.join(folder, MANIFEST)
    # the authors' folders have none
    if os.path.isfile(manifest) and (number := read_json(manifest).get("num", len(images))) != len(images):
        raise ValueError(f"{os.path.abspath(folder)} holds {len(images)} samples, its {MANIFEST} says {number}{remedy}")
    names = sorted(images, key=_natural)[start:stop]
    if not names:
        raise FileNotFoundError(f"{os.path.abspath(folder)}: no sample in [{start}, {stop}) of {len(images)}{remedy}")
    return [
        {
            "file_name": os.path.join(folder, "imgs", name),
            "sem_seg_file_name": os.path.join(folder, "seg", name),
            "image_id": os.path.splitext(name)[0],
        }
        for name in names
    ]


def _samples(folder: str, remedy: str) -> set[str]:
    """Paths ``batch/sample_i.png`` below ``folder``; hidden files and folders, which some systems add, are none."""
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{os.path.abspath(folder)}: no such folder{remedy}")
    names = set()
    for batch in os.scandir(folder):
        if batch.is_dir() and not batch.name.startswith("."):
            files = (name for name in os.listdir(batch.path) if name.endswith(".png") and not name.startswith("."))
            names.update(f"{batch.name}/{name}" for name in files)
    return names


def _natural(name: str) -> list:
    """Sort key that puts sample_10 after sample_9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _command(root: str, length: int, split: str) -> str:
    output = os.path.join(root, "pathfinder")
    return (
        f"python datasets/prepare_pathfinder.py --length {length} --split {split} --num {SIZES[split]} --output {output}"
    )
