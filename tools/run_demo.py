#!/usr/bin/env python3
"""The main job in small, on two CPU cores: generated scenes, R-FPN trained with C-RBP, PQ, pictures.

    make demo

Writes output/demo/metrics.json (PQ, PQ_th, PQ_st, SQ, RQ in percent, seconds of training), output/demo/*.png (image,
ground truth, prediction), and into output/demo/run what every run writes: config.yaml, logs, model_final.pth.
"""

import json
import os
import time
from typing import Callable

from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.engine import DefaultPredictor, HookBase, default_argument_parser
from tqdm import tqdm

from rfpn.analysis.figures import PanopticTruth, draw_panoptic, enlarge, side_by_side, write_picture
from rfpn.data.images import read_image
from rfpn.data.scenes.dataset import write_scenes
from rfpn.engine.setup import one_line_errors, setup
from rfpn.engine.trainer import Trainer
from rfpn.evaluation.panoptic import visible_segments

CONFIG = os.path.join(os.path.dirname(__file__), "..", "configs", "Scenes", "rfpn_demo.yaml")
SCENES = {"train": 2000, "val": 200}
PICTURES = 12
SCALE = 2.0


def main(args) -> None:
    """Generate, train, score, draw."""
    trainer, seconds = train(args, make_scenes)
    # Detectron2 evaluates at the end of training and keeps the results here
    scores = trainer._last_eval_results["panoptic_seg"]
    metrics = {key: round(float(scores[key]), 2) for key in ("PQ", "PQ_th", "PQ_st", "SQ", "RQ")}
    folder = os.path.dirname(trainer.cfg.OUTPUT_DIR)
    draw(trainer.cfg, folder)
    write_metrics(folder, {**metrics, "seconds": round(seconds, 1)})


def train(args, make_data: Callable[[], None]) -> tuple[Trainer, float]:
    """Make the data sets and train as the command line says: the trainer, and the seconds of training."""
    with one_line_errors():
        make_data()
        trainer = Trainer(setup(args))
        trainer.resume_or_load(resume=args.resume)
    clock = TrainingClock()
    trainer.register_hooks([clock])
    trainer.train()
    return trainer, clock.seconds


def write_metrics(folder: str, metrics: dict) -> None:
    """Scores into metrics.json in ``folder`` and onto the console."""
    with open(os.path.join(folder, "metrics.json"), "w") as file:
        json.dump(metrics, file, indent=1)
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
    root = os.path.join(os.getenv("DETECTRON2_DATASETS", "datasets"), "scenes")
    for split, count in SCENES.items():
        workers = os.cpu_count() or 1
        write_scenes(
            root, split, count, workers=workers, progress=lambda made: tqdm(made, total=count, desc=f"scenes {split}")
        )


def draw(cfg, folder: str) -> None:
    """Image, ground truth and prediction side by side for the first held-out scenes."""
    name = cfg.DATASETS.TEST[0]
    metadata = MetadataCatalog.get(name)
    truth = PanopticTruth(metadata)
    cfg = cfg.clone()
    cfg.defrost()
    cfg.MODEL.WEIGHTS = os.path.join(cfg.OUTPUT_DIR, "model_final.pth")
    predict = DefaultPredictor(cfg)
    for record in DatasetCatalog.get(name)[:PICTURES]:
        image = read_image(record["file_name"], "RGB")
        segments, info = predict(image[..., ::-1])["panoptic_seg"]
        info = visible_segments(segments, info, record["file_name"])
        panels = [
            enlarge(image, SCALE),
            draw_panoptic(image, *truth(record["image_id"]), metadata, SCALE),
            draw_panoptic(image, segments.cpu().numpy(), info, metadata, SCALE),
        ]
        picture = side_by_side(panels, ["image", "ground truth", "prediction"])
        stem = os.path.splitext(os.path.basename(record["file_name"]))[0]
        write_picture(os.path.join(folder, f"{stem}.png"), picture)


if __name__ == "__main__":
    parser = default_argument_parser()
    parser.set_defaults(config_file=os.path.normpath(CONFIG))
    main(parser.parse_args())
