"""Writes a whole Pathfinder split in the published layout, with any number of workers, and resumes stopped runs.

``<output>/<split>/curv_contour_length_<L>/`` holds ``imgs/<b>/sample_<i>.png`` beside ``seg/<b>/sample_<i>.png``,
``i`` counting through the split and ``b = i // 1000``, and ``manifest.json`` once all are there.
"""

import os
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from rfpn.data.files import differences, locked, read_json, whole_file, write_json
from rfpn.data.pathfinder.generator import generate_sample
from rfpn.data.pathfinder.settings import SPLITS, PathfinderSettings, whole_number
from rfpn.data.workers import refuse_unguarded, worker_pool

SAMPLES_PER_FOLDER = 1000
SAMPLES_PER_TASK = 10  # Ctrl-C waits for the tasks that processes have, two each
MOST_SAMPLES = 10_000_000  # more are a slip of the keyboard
MANIFEST = "manifest.json"
UNFINISHED = "manifest.unfinished.json"
FORMAT = 1  # raised whenever the same settings and seed come to give other samples


def split_folder(output, length: int, split: str) -> Path:
    """Folder of one split below ``output``."""
    return Path(output) / split / f"curv_contour_length_{length}"


def sample_paths(folder: Path, index: int) -> tuple:
    """Paths of a sample's image and target in a split's folder."""
    name = Path(str(index // SAMPLES_PER_FOLDER)) / f"sample_{index}.png"
    return folder / "imgs" / name, folder / "seg" / name


def write_split(
    output, settings: PathfinderSettings, split: str, num: int, seed: int = 0, workers: int = 1, progress: bool = True
) -> int:
    """Writes samples 0 to ``num - 1`` of a split, but for those that are there already; empty files are not.

    The files are the same for any number of workers. Nothing is written where the first sample cannot be drawn. Where another
    program writes the same split, it waits for it.

    Returns:
        How many samples it wrote: 0 for a finished split.

    Raises:
        FileExistsError: the folder holds a split with other parameters, or files of unknown origin.
        GenerationError: the contours do not fit.
        TypeError, ValueError: an argument is not valid.
        OSError: a file cannot be written.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    # range() takes integers alone, not 4 / 2
    num, seed, workers = whole_number("num", num, 1), whole_number("seed", seed, 0), whole_number("workers", workers, 1)
    if num > MOST_SAMPLES:
        raise ValueError(f"num must be at most {MOST_SAMPLES}, got {num}")
    folder = split_folder(output, settings.length, split)
    manifest = {"format": FORMAT, "split": split, "seed": seed, "num": num, "settings": asdict(settings)}
    _check_folder(folder, manifest)
    missing = _missing(folder, num)
    if _finished(folder) and not missing:
        return 0
    if missing:
        _draw(settings, split, seed, missing[0])
    refuse_unguarded()
    folder.mkdir(parents=True, exist_ok=True)
    # another program may be at it
    with locked(folder):
        _check_folder(folder, manifest)
        missing = _missing(folder, num)
        if _finished(folder) and not missing:
            return 0
        for index in range(0, num, SAMPLES_PER_FOLDER):
            for path in sample_paths(folder, index):
                path.parent.mkdir(parents=True, exist_ok=True)
        write_json(folder / UNFINISHED, manifest, indent=2)
        # one left from before would speak for samples that are removed by now
        (folder / MANIFEST).unlink(missing_ok=True)
        with tqdm(total=num, initial=num - len(missing), unit="sample", disable=not progress, desc=split) as bar:
            for done in _write_samples(partial(_write_task, folder, settings, split, seed), missing, workers):
                bar.update(done)
        os.replace(folder / UNFINISHED, folder / MANIFEST)
    return len(missing)


def _finished(folder: Path) -> bool:
    return (folder / MANIFEST).is_file() and not (folder / UNFINISHED).is_file()


def _write_sample(folder: Path, settings: PathfinderSettings, split: str, seed: int, index: int):
    """Writes one sample. The image comes last: where it is, the target is too."""
    image, target, _ = _draw(settings, split, seed, index)
    image_path, target_path = sample_paths(folder, index)
    _write_png(target_path, target)
    _write_png(image_path, image)


def _draw(settings: PathfinderSettings, split: str, seed: int, index: int) -> tuple:
    options = asdict(settings)
    return generate_sample(options.pop("length"), seed, index, split, **options)


def _write_samples(write, indices: list, workers: int):
    """Calls ``write`` on lists of indices; yields how many samples each call wrote."""
    tasks = [indices[k : k + SAMPLES_PER_TASK] for k in range(0, len(indices), SAMPLES_PER_TASK)]
    if workers == 1 or len(tasks) < 2:
        yield from map(write, tasks)
        return
    # not forked: the caller may hold threads
    with worker_pool(min(workers, len(tasks)), "spawn") as pool:
        yield from pool.map(write, tasks)


def _write_task(folder, settings, split, seed, indices) -> int:
    for index in indices:
        _write_sample(folder, settings, split, seed, index)
    return len(indices)


def _missing(folder: Path, num: int) -> list:
    present = {}
    for kind in ("imgs", "seg"):
        files = (entry for batch in _entries(folder / kind) for entry in _entries(batch.path))
        # a machine that lost its power may leave names without content
        present[kind] = {entry.name for entry in files if entry.stat().st_size}
    both = present["imgs"] & present["seg"]
    return [index for index in range(num) if f"sample_{index}.png" not in both]


def _entries(folder) -> list:
    return list(os.scandir(folder)) if os.path.isdir(folder) else []


def _check_folder(folder: Path, manifest: dict):
    """Refuses a folder whose samples another run made."""
    if not any(_entries(batch.path) for kind in ("imgs", "seg") for batch in _entries(folder / kind)):
        return
    path = next((folder / name for name in (UNFINISHED, MANIFEST) if (folder / name).is_file()), None)
    if path is None:
        raise FileExistsError(f"{folder} holds samples without a {MANIFEST}: choose another output folder")
    if changes := differences(read_json(str(path)), manifest):
        raise FileExistsError(f"{folder} holds samples made with other parameters: {changes}. Choose another output folder")


def _write_png(path: Path, array: np.ndarray):
    with whole_file(path) as temporary:
        Image.fromarray(array).save(temporary, "PNG", compress_level=1)
