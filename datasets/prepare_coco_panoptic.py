#!/usr/bin/env python3
"""Makes ``panoptic_stuff_*`` label maps (and instances JSONs where there are none) and checks a COCO panoptic tree.

    python datasets/prepare_coco_panoptic.py --root datasets/coco --splits train2017 val2017 --workers 8
    python datasets/prepare_coco_panoptic.py --root datasets/dsb2018_panoptic --splits train val

Every picture of a split is decoded: photograph, panoptic PNG, label map. Each missing, unreadable or inconsistent
file is named, and the exit status is then 1. Run it again at any time: correct files are kept.
"""

import argparse
import os
import sys
from concurrent.futures.process import BrokenProcessPool

from tqdm import tqdm

from rfpn.data.annotations import read_instances_json, read_panoptic_json
from rfpn.data.semantic import prepare_split, split_of_folder


def build_parser() -> argparse.ArgumentParser:
    root = os.path.join(os.getenv("DETECTRON2_DATASETS", "datasets"), "coco")
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--root", default=root, help="folder with annotations/, <split>/ and panoptic_<split>/")
    parser.add_argument("--splits", nargs="+", default=["train2017", "val2017"])
    parser.add_argument("--derived-dir", help="folder for label maps and instances JSON, where ROOT is read-only")
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
        if os.path.exists(paths.instances_json):
            read_instances_json(paths.instances_json)
    except BrokenProcessPool:
        return ["a process was ended from outside, perhaps for lack of memory; take fewer --workers"]
    except (OSError, ValueError) as error:
        return [str(error)]
    print(f"{split}: {count} pictures, {written} label maps made in {paths.sem_seg_root}, {len(problems)} problems")
    return problems


def main() -> int:
    args = build_parser().parse_args()
    if args.workers < 1:
        print(f"prepare_coco_panoptic: --workers must be at least 1, got {args.workers}", file=sys.stderr)
        return 2
    problems = [f"{split}: {line}" for split in args.splits for line in prepare(split, args)]
    for line in problems:
        print(line, file=sys.stderr)
    if problems:
        print(f"prepare_coco_panoptic: {len(problems)} problems; mend them and run again", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
