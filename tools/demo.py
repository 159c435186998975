#!/usr/bin/env python3
"""Draw a model's predictions over pictures and videos.

    python tools/demo.py --config-file configs/Scenes/rfpn_demo.yaml --weights output/demo/run/model_final.pth \\
        --input photos/ "more/*.jpg" film.mp4 --output output/pictures
    ... --steps 1,5,10,20             a row for each picture: the prediction after each of these steps; steps.png has
                                      the rows of the first pictures
    ... --compare CONFIG WEIGHTS      a second model beside it

Words at the end are configuration overrides, as in MODEL.DEVICE cpu. Files that cannot be read are named and left out;
the exit status is then 1.
"""

import argparse
import itertools
import logging
import os
import sys
from typing import Iterable, Iterator

import numpy as np
from analysis_models import load_overlay
from detectron2.config import CfgNode
from detectron2.utils.logger import setup_logger
from tqdm import tqdm

from arguments import step_list
from rfpn.analysis.figures import enlarge, side_by_side, stack_rows
from rfpn.analysis.media import Video, find_media, free_path, is_video, output_paths, write_video
from rfpn.analysis.overlay import LARGEST_SIDE, Overlay, enlargement
from rfpn.config import get_cfg
from rfpn.data.images import read_image, write_image
from rfpn.programs import one_line_errors

logger = logging.getLogger("rfpn")

# rows of the sheet that shows the steps of several pictures
_SHEET_ROWS = 8


@one_line_errors()
def main(args) -> int:
    """Draw everything; returns 1 if anything had to be left out, else 0."""
    setup_logger(name="rfpn", abbrev_name="rfpn")
    steps = args.steps or []
    files, problems = find_media(args.input)
    if not files:
        raise FileNotFoundError(f"--input: {'; '.join(problems)}")
    targets = output_paths(files, args.output)
    overlays = load_overlays(args)
    if steps and not overlays[0].recurrent:
        raise ValueError(f"--steps needs a recurrent model, {args.config_file} is {overlays[0].title}")
    os.makedirs(args.output, exist_ok=True)
    draw = Drawer(overlays, steps, args.side)
    problems += draw_pictures(draw, {path: targets[path] for path in files if not is_video(path)}, args.output)
    for path in filter(is_video, files):
        try:
            draw_video(draw, path, targets[path], args.max_frames)
        except (OSError, ValueError) as error:
            problems.append(str(error))
    for problem in problems:
        print(f"left out: {problem}", file=sys.stderr)
    logger.info("written to %s", args.output)
    return 1 if problems else 0


def load_overlays(args) -> list[Overlay]:
    """The model and, with ``--compare``, the second one, under different titles."""
    weights = ["MODEL.WEIGHTS", args.weights] if args.weights else []
    overlays = [load_overlay(args.config_file, args.opts + weights)]
    if args.compare:
        config_file, weights = args.compare
        overlays.append(load_overlay(config_file, [*args.opts, "MODEL.WEIGHTS", weights]))
        if overlays[0].title == overlays[1].title:
            for overlay in overlays:
                overlay.title += f" ({os.path.relpath(overlay.cfg.MODEL.WEIGHTS)})"
    return overlays


class Drawer:
    """Turns images into pictures of what one or two models predict."""

    def __init__(self, overlays: list[Overlay], steps: list[int], side: int):
        """
        Args:
            steps: those of the first model to show; none for its final prediction.
            side: images whose shorter side has fewer pixels are enlarged to it.
        """
        self.overlays = overlays
        self.steps = steps
        self.side = side
        self.batch_size = max(overlay.batch_size for overlay in overlays)

    def __call__(self, images: list[np.ndarray]) -> list[np.ndarray]:
        """A picture for each image (H, W, 3), RGB uint8."""
        columns = []  # title, overlay, outputs
        for overlay in self.overlays:
            if self.steps:
                outputs = overlay.predict_steps(images, self.steps)
                columns += [(f"step {step}", overlay, of_step) for step, of_step in outputs.items()]
            else:
                columns.append((overlay.title, overlay, overlay.predict(images)))
        return [self._picture(image, columns, index) for index, image in enumerate(images)]

    def _picture(self, image: np.ndarray, columns: list, index: int) -> np.ndarray:
        scale = enlargement(image, self.side)
        panels = [overlay.draw(image, outputs[index], scale) for _, overlay, outputs in columns]
        if len(panels) == 1 and not self.steps:
            return panels[0]
        return side_by_side([enlarge(image, scale), *panels], ["image", *(title for title, _, _ in columns)])


def draw_pictures(draw: Drawer, targets: dict[str, str], folder: str) -> list[str]:
    """Draw picture files, also a sheet of rows where steps are shown; returns a line for each left out."""
    problems, rows = [], []

    def readable() -> Iterator[tuple[str, np.ndarray]]:
        for path, target in tqdm(targets.items(), desc="pictures", disable=None if targets else True):
            try:
                image = read_image(path, "RGB")
            except (OSError, ValueError) as error:
                problems.append(str(error))
                continue
            try:
                for overlay in draw.overlays:
                    overlay.prepare(image)
            except ValueError as error:  # too thin to be resized
                problems.append(f"{path}: {error}")
            else:
                yield target, image

    for batch in batches(readable(), draw.batch_size):
        for (target, _), picture in zip(batch, draw([image for _, image in batch])):
            write_image(target, picture)
            rows += [picture] if len(rows) < _SHEET_ROWS else []
    if draw.steps and len(rows) > 1:
        taken = {os.path.realpath(path) for path in (*targets, *targets.values())}
        write_image(free_path(os.path.join(folder, "steps.png"), taken), stack_rows(rows))
    return problems


def draw_video(draw: Drawer, path: str, target: str, max_frames: int) -> None:
    """Draw the first frames of a video. Raises OSError or ValueError naming the file that cannot be used."""
    video = Video(path)
    count = min(video.length or max_frames, max_frames)
    frames = tqdm(itertools.islice(video, max_frames), desc=os.path.basename(path), total=count, disable=None)
    write_video(target, (picture for batch in batches(frames, draw.batch_size) for picture in draw(batch)), video.fps)
    if video.length > max_frames:
        logger.warning("%s: the first %d of %d frames; --max-frames takes more", path, max_frames, video.length)


def batches(items: Iterable, size: int) -> Iterator[list]:
    """Lists of ``size`` items, the last one shorter."""
    items = iter(items)
    while batch := list(itertools.islice(items, size)):
        yield batch


@one_line_errors()
def parse_args(words: list[str] | None = None):
    """Arguments; configuration keys, which have a dot and are no files, end the list of inputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config-file", required=True, metavar="FILE")
    parser.add_argument("--weights", metavar="FILE", help="checkpoint (default: MODEL.WEIGHTS)")
    parser.add_argument("--input", nargs="+", required=True, help="pictures, folders, globs, videos")
    parser.add_argument("--output", type=os.path.expanduser, default="output/pictures", help="folder (default: %(default)s)")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--compare", nargs=2, metavar=("CONFIG", "WEIGHTS"), help="a second model to show beside it")
    shown.add_argument("--steps", type=step_list, help="show the prediction after these steps, e.g. 1,5,10,20")
    parser.add_argument("--max-frames", type=int, default=1000, help="of a video, at most (default: 1000)")
    parser.add_argument("--side", type=int, default=320, help="shorter side of pictures in pixels, at least (320)")
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="KEY VALUE overrides of the configuration, last")
    args = parser.parse_args(words)
    if args.max_frames < 1 or not 1 <= args.side <= LARGEST_SIDE:
        parser.error(f"--max-frames must be at least 1, --side in [1, {LARGEST_SIDE}]")
    cfg = get_cfg()
    keys = [index for index, word in enumerate(args.input) if _is_key(word, cfg)]
    if keys:
        args.input, args.opts = args.input[: keys[0]], args.input[keys[0] :] + args.opts
    return args


def _is_key(word: str, cfg: CfgNode) -> bool:
    section, dot, _ = word.partition(".")
    return word.isupper() and bool(dot) and section in cfg and not os.path.exists(word)


if __name__ == "__main__":
    sys.exit(main(parse_args()))
