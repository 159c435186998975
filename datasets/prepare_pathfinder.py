"""Generates Pathfinder: a split of the published size and layout, or any other.

    python datasets/prepare_pathfinder.py --length 14 --split train --num 190000 --seed 0 --workers 16
    python datasets/prepare_pathfinder.py --length 14 --split test --num 10000 --seed 0 --workers 16
    python datasets/prepare_pathfinder.py --length 6 --split train --num 2000 --window 128 --padding 10 \\
        --distractors 4 --output easy
    python datasets/prepare_pathfinder.py --benchmark

Run the same command again to go on with a stopped run. The files do not depend on the number of workers.
"""

import argparse
import io
import os
import time
from dataclasses import MISSING, fields
from pathlib import Path

from PIL import Image

from rfpn.data.files import datasets_root
from rfpn.data.pathfinder.dataset import split_folder, write_split
from rfpn.data.pathfinder.generator import generate_sample
from rfpn.data.pathfinder.settings import SPLITS, PathfinderSettings
from rfpn.programs import one_line_errors


def parse_args(argv=None) -> argparse.Namespace:
    """What to generate, and every field of PathfinderSettings as an option."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, help="dashes in a long contour; published: 6, 9, 14, 20, 25")
    parser.add_argument("--split", choices=SPLITS, help="each has random numbers of its own")
    parser.add_argument("--num", type=int, help="samples in the split; published: 190000 train, 10000 test")
    parser.add_argument("--seed", type=int, default=0, help="of the whole set, 0 or more (default: 0)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (default: one per core)")
    root = Path(datasets_root()) / "pathfinder"
    parser.add_argument("--output", type=Path, default=root, help="parent folder (default: %(default)s)")
    parser.add_argument("--benchmark", action="store_true", help="print milliseconds a sample, of --length or 14, 20, 25")
    looks = parser.add_argument_group("settings, in pixels of the window")
    for field in fields(PathfinderSettings):
        if field.default is not MISSING:
            kind = float if field.type is float else int
            default = "by length" if field.default is None else field.default
            looks.add_argument(f"--{field.name.replace('_', '-')}", type=kind, help=f"default: {default}")
    args = parser.parse_args(argv)
    if not args.benchmark and (args.length is None or args.split is None or args.num is None):
        parser.error("--length, --split and --num are required")
    if args.num is not None and args.num < 1:
        parser.error(f"--num must be 1 or more, got {args.num}")
    if args.output.is_file():
        parser.error(f"--output {args.output} is a file, give a folder")
    return args


def benchmark(num: int, seed: int, lengths: tuple[int, ...], options: dict):
    """Prints the time of a sample on one core, PNG encoding included, as a mean of ``num``, for each length."""
    for length in lengths:
        start = time.process_time()
        for index in range(num):
            for picture in generate_sample(length, seed, index, **options)[:2]:
                Image.fromarray(picture).save(io.BytesIO(), "PNG", compress_level=1)
        print(f"length {length}: {1000 * (time.process_time() - start) / num:.1f} ms a sample, mean of {num}")


def main(argv=None) -> None:
    """Generate a split, or measure."""
    args = parse_args(argv)
    with one_line_errors():
        given = {field.name: getattr(args, field.name) for field in fields(PathfinderSettings)}
        options = {name: value for name, value in given.items() if value is not None and name != "length"}
        if args.benchmark:
            benchmark(args.num or 200, args.seed, (14, 20, 25) if args.length is None else (args.length,), options)
            return
        settings = PathfinderSettings(args.length, **options)
        written = write_split(args.output, settings, args.split, args.num, args.seed, args.workers)
    folder = split_folder(args.output, args.length, args.split)
    print(f"{folder} is finished: {args.num} samples, {written or 'none'} of them written now")


if __name__ == "__main__":
    main()
