#!/usr/bin/env python3
"""Makes ``panoptic_stuff_*`` label maps (and instances JSONs where there are none) and checks a COCO panoptic tree.

    python datasets/prepare_coco_panoptic.py --root datasets/coco --splits train2017 val2017 --workers 8
    python datasets/prepare_coco_panoptic.py --root datasets/dsb2018_panoptic --splits train val

Every picture of a split is decoded: photograph, panoptic PNG, label map. Each missing, unreadable or inconsistent
file is named, and the exit status is then 1. Run it again at any time: correct files are kept, and what the program
made is renewed where it is out of date.
"""

import argparse
import os
import sys

from tqdm import tqdm

from rfpn.data.annotations import read_panoptic_json
from rfpn.data.files import datasets_root
from rfpn.data.semantic import prepare_split, split_of_folder
from rfpn.programs import error_text, one_line_errors


def build_parser() -> argparse.ArgumentParser:
    root = os.path.join(datasets_root(), "coco")
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--root", default=root, help="folder with annotations/, <split>/ and panoptic_<split>/")
    parser.add_argument("--splits", nargs="+", default=["train2017", "val2017"], help="names of the splits")
    parser.add_argument("--derived-dir", help="folder for label maps and instances JSON of ROOT alone, where that is read-only")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--skip-images", action="store_true", help="do not decode the photographs")
    return parser


def prepare(split: str, args: argparse.Namespace) -> list:
    """Prepares one split; returns its problems, one line each."""
    paths = split_of_folder(args.root, split, args.derived_dir)
    missing = [p for p in (paths.image_root, paths.panoptic_root, paths.panoptic_json) if not os.path.exists(p)]
    if missing:
        return [f"{path}: missing" for path in missing]
    try:
        count = len(read_panoptic_json(paths.panoptic_json)["annotations"])
        problems, written = prepare_split(
            paths,
            workers=args.workers,
            check_images=not args.skip_images,
            progress=lambda results: tqdm(results, total=count, desc=split),
        )
    except (OSError, ValueError) as error:
        return [error_text(error)]
    print(f"{split}: {count} pictures, {written} label maps made in {paths.sem_seg_root}, {len(problems)} problems")
    return problems


def main() -> int:
    """Prepare all splits; the exit status, 1 where files of theirs are wrong."""
    args = build_parser().parse_args()
    found = 0
    with one_line_errors():
        if args.workers < 1:
            raise ValueError(f"--workers must be at least 1, got {args.workers}")
        if not os.path.isdir(args.root):
            raise FileNotFoundError(f"--root {args.root} is no folder; datasets/README.md says what it must hold")
        for split in args.splits:
            # at once: the next split may be interrupted
            for line in prepare(split, args):
                print(f"{split}: {line}", file=sys.stderr)
                found += 1
    if found:
        print(f"prepare_coco_panoptic: {found} problems; mend them and run again", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
