#!/usr/bin/env python3
"""The main job in small, on two CPU cores: generated scenes, R-FPN trained with C-RBP, PQ, pictures.

    make demo

Writes output/demo/metrics.json (PQ, PQ_th, PQ_st, SQ, RQ in percent, seconds of training), output/demo/*.png (image,
ground truth, prediction), and into output/demo/run what every run writes: config.yaml, logs, model_final.pth.
KEY VALUE overrides of the configuration come last.
"""

import json
import os
import time
from typing import Callable

from detectron2.engine import HookBase
from tqdm import tqdm

from rfpn.analysis.overlay import build_overlay
from rfpn.analysis.samples import draw_samples
from rfpn.data.architectures import descends
from rfpn.data.files import datasets_root, write_json
from rfpn.data.images import write_image
from rfpn.data.scenes.dataset import write_scenes
from rfpn.engine.checkpoint import name_full_disk
from rfpn.engine.launch import argument_parser
from rfpn.engine.setup import setup
from rfpn.engine.trainer import Trainer
from rfpn.programs import one_line_errors

CONFIG = os.path.join(os.path.dirname(__file__), "..", "configs", "Scenes", "rfpn_demo.yaml")
SCENES = {"train": 2000, "val": 200}
PICTURES = 12
SIDE = 256  # pixels, twice those of a scene


def main(args) -> None:
    """Generate, train, score, draw."""
    run(args, "PanopticFPN", make_scenes, score, draw)


def run(
    args,
    architecture: str,
    make_data: Callable[[], None],
    score: Callable[[Trainer, dict], dict],
    draw: Callable[[Trainer, str], None],
) -> None:
    """Make the data sets, train as the command line says, score, draw.

    Scores and seconds of training go into metrics.json beside OUTPUT_DIR and onto the console. Wrong input, a full disk,
    values that are not finite and Ctrl-C end the program in one line.

    Args:
        architecture: which MODEL.META_ARCHITECTURE is to be, or to be derived from.
        score: by name, of a trained trainer and what its last evaluation gave. draw: with a trained trainer, into the folder
            of metrics.json.
    """
    with one_line_errors():
        # refused before data are made, which takes minutes
        if args.eval_only or max(args.num_gpus, args.num_machines) > 1:
            raise ValueError("a demo trains one process; --eval-only, --num-gpus, --num-machines are for tools/train_net.py")
        cfg = setup(args)
        if not descends(cfg.MODEL.META_ARCHITECTURE, architecture):
            raise ValueError(f"MODEL.META_ARCHITECTURE {cfg.MODEL.META_ARCHITECTURE} is not this demo's, {architecture}")
        if len(cfg.DATASETS.TEST) != 1:
            raise ValueError(f"DATASETS.TEST must name one data set, which is scored, got {tuple(cfg.DATASETS.TEST)}")
        make_data()
        with name_full_disk(cfg.OUTPUT_DIR):
            trainer = Trainer(cfg)
            trainer.resume_or_load(resume=args.resume)
            clock = TrainingClock()
            trainer.register_hooks([clock])
            metrics = {**score(trainer, trainer.train()), "seconds": round(clock.seconds, 1)}
            folder = os.path.dirname(os.path.abspath(cfg.OUTPUT_DIR))
            # before the pictures: no fault of theirs costs the scores
            write_json(os.path.join(folder, "metrics.json"), metrics, indent=1)
            draw(trainer, folder)
    print(json.dumps(metrics))


class TrainingClock(HookBase):
    """Seconds from the start of training to its last iteration, evaluation not counted."""

    seconds = 0.0

    def before_train(self):
        """Start."""
        self._start = time.perf_counter()

    def after_step(self):
        """Read."""
        self.seconds = time.perf_counter() - self._start


def make_scenes() -> None:
    """The generated set under DETECTRON2_DATASETS, made once."""
    root = os.path.join(datasets_root(), "scenes")
    for split, count in SCENES.items():
        workers = os.cpu_count() or 1
        write_scenes(
            root, split, count, workers=workers, progress=lambda made: tqdm(made, total=count, desc=f"scenes {split}")
        )


def score(trainer: Trainer, results: dict) -> dict[str, float]:
    """PQ and its parts in percent."""
    scores = results["panoptic_seg"]
    return {key: round(float(scores[key]), 2) for key in ("PQ", "PQ_th", "PQ_st", "SQ", "RQ")}


def draw(trainer: Trainer, folder: str) -> None:
    """Image, ground truth and prediction side by side for the first held-out scenes."""
    overlay = build_overlay(trainer.model, trainer.cfg)
    for sample in draw_samples(overlay, trainer.cfg.DATASETS.TEST[0], PICTURES, side=SIDE):
        stem = os.path.splitext(sample.name)[0]
        write_image(os.path.join(folder, f"{stem}.png"), sample.sheet())


if __name__ == "__main__":
    parser = argument_parser(__doc__)
    parser.set_defaults(config_file=os.path.normpath(CONFIG))
    main(parser.parse_args())
