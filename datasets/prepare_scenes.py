#!/usr/bin/env python3
"""Makes the procedural panoptic set ``scenes`` in COCO's layout; see datasets/README.md.

    python datasets/prepare_scenes.py --output datasets/scenes --train 2000 --val 200 --workers 4

The same options and seed give the same bytes for any number of workers. Where the same set is there, nothing is done.
"""

import argparse
import os

from tqdm import tqdm

from rfpn.data.files import datasets_root
from rfpn.data.scenes.dataset import IMAGE_FORMATS, write_scenes
from rfpn.data.scenes.render import SceneOptions
from rfpn.programs import one_line_errors


def build_parser() -> argparse.ArgumentParser:
    default = SceneOptions()
    root = os.path.join(datasets_root(), "scenes")
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--output", default=root, help="folder")
    parser.add_argument("--train", type=int, default=2000, help="scenes for training, 0 for none")
    parser.add_argument("--val", type=int, default=200, help="scenes for validation, 0 for none")
    parser.add_argument("--seed", type=int, default=0, help="of both splits, 0 or more")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--image-format", choices=IMAGE_FORMATS, default="png", help="of the pictures; masks are PNGs")
    look = parser.add_argument_group("look of the scenes")
    size, ends = (default.height, default.width), ("MIN", "MAX")
    look.add_argument("--size", type=int, nargs=2, metavar=("H", "W"), default=size, help="pixels")
    look.add_argument("--things", type=int, nargs=2, metavar=ends, default=default.things, help="things of a scene")
    look.add_argument(
        "--thing-size", type=float, nargs=2, metavar=ends, default=default.thing_size,
        help="diameters, share of the shorter side",
    )  # fmt: skip
    look.add_argument("--stuff", type=int, nargs=2, metavar=ends, default=default.stuff, help="stuff classes of a scene")
    look.add_argument("--clutter", type=int, nargs=2, metavar=ends, default=default.clutter, help="small marks, of no class")
    look.add_argument("--occlusion", type=float, default=default.occlusion, help="probability that a thing overlaps another")
    look.add_argument(
        "--texture-conflict", type=float, default=default.texture_conflict,
        help="share of scenes where a thing bears the texture of the stuff beside it",
    )  # fmt: skip
    look.add_argument("--noise", type=float, default=default.noise, help="standard deviation, of 255 grey levels")
    return parser


def parse_args() -> argparse.Namespace:
    """The command line; an error of it ends the program."""
    parser = build_parser()
    args = parser.parse_args()
    for name, least in (("train", 0), ("val", 0), ("seed", 0), ("workers", 1)):
        if getattr(args, name) < least:
            parser.error(f"--{name} must be a whole number of at least {least}, got {getattr(args, name)}")
    if args.train == args.val == 0:
        parser.error("--train 0 and --val 0 leave nothing to make")
    if os.path.isfile(args.output):
        parser.error(f"--output {args.output} is a file, give a folder")
    return args


def main() -> None:
    """Make both splits."""
    args = parse_args()
    options = SceneOptions(
        height=args.size[0],
        width=args.size[1],
        things=tuple(args.things),
        thing_size=tuple(args.thing_size),
        stuff=tuple(args.stuff),
        occlusion=args.occlusion,
        clutter=tuple(args.clutter),
        texture_conflict=args.texture_conflict,
        noise=args.noise,
    )
    for split, count in (("train", args.train), ("val", args.val)):
        if count == 0:
            continue
        with one_line_errors():
            made = write_scenes(
                args.output,
                split,
                count,
                seed=args.seed,
                options=options,
                image_format=args.image_format,
                workers=args.workers,
                progress=lambda results: tqdm(results, total=count, desc=f"scenes {split}"),
            )
        print(f"{args.output}: {count} {split} scenes " + ("made" if made else "there already"))


if __name__ == "__main__":
    main()
