#!/usr/bin/env python3
"""Pathfinder in small, on two CPU cores: generated contours, an hGRU trained with C-RBP, IoU, pictures of tracing.

    make demo-pathfinder

Writes output/demo_pathfinder/metrics.json (IoU of the target on held-out images, IoU of marking every stroke, seconds of
training), contour_growth.png (the answer after each step), joining_steps.png (the step at which each pixel joined),
timesteps.csv and timesteps.png (IoU and residual by step), and into run/ what every run writes.
KEY VALUE overrides of the configuration come last.
"""

import os

from run_demo import run

from rfpn.analysis.contour_growth import draw_contour_growth, draw_joining_steps, first_images, joining_steps
from rfpn.analysis.courses import Course, plot_courses, write_courses
from rfpn.analysis.time_course import evaluate_time_course
from rfpn.analysis.unrolling import trained_steps
from rfpn.data.build import build_test_loader
from rfpn.data.files import datasets_root
from rfpn.data.pathfinder.dataset import write_split
from rfpn.data.pathfinder.registration import EASY_FOLDER, EASY_LENGTH
from rfpn.data.pathfinder.settings import PathfinderSettings
from rfpn.engine.launch import argument_parser
from rfpn.engine.trainer import Trainer
from rfpn.evaluation import build_main_evaluator

CONFIG = os.path.join(os.path.dirname(__file__), "..", "configs", "quick_schedules", "pathfinder_demo.yaml")
IMAGES = {"train": 6000, "test": 400}
# drawn at twice the size that the model sees
EASY = PathfinderSettings(
    length=EASY_LENGTH,
    window=128,
    padding=14,
    thickness=2.4,
    gap=2.4,
    continuity=3.0,
    marker_radius=3.2,
    start_distance=45.0,
    distractors=3,
    distractor_length=1,
)
PICTURES = 4
BRIGHT = 60  # grey value above which a pixel belongs to a stroke


def main(args) -> None:
    """Generate, train, score, draw."""
    run(args, "PathfinderNet", make_images, score, draw)


def make_images() -> None:
    """The easy set under DETECTRON2_DATASETS, made once."""
    root = os.path.join(datasets_root(), EASY_FOLDER)
    for split, count in IMAGES.items():
        write_split(root, EASY, split, count, workers=os.cpu_count() or 1)


def score(trainer: Trainer, results: dict) -> dict[str, float]:
    """Scores of the target contour, and the IoU of marking every stroke."""
    scores = results["pathfinder"]
    metrics = {key: round(float(scores[key]), 4) for key in ("IoU", "IoU_published", "precision", "recall")}
    loader = build_test_loader(trainer.cfg, trainer.cfg.DATASETS.TEST[0])
    return {**metrics, "IoU_every_stroke": round(iou_of_every_stroke(loader), 4)}


def draw(trainer: Trainer, folder: str) -> None:
    """The answer after each step for some held-out images, and the scores by step for all."""
    cfg, model = trainer.cfg, trainer.model.eval()
    trained, name = cfg.MODEL.RECURRENT.STEPS, cfg.DATASETS.TEST[0]
    loader = build_test_loader(cfg, name)
    steps = 2 * trained
    scores = evaluate_time_course(model, loader, list(range(1, steps + 1)), lambda: build_main_evaluator(cfg, name))
    courses = [Course("hGRU, C-RBP", name, trained_steps(cfg), scores)]
    write_courses(os.path.join(folder, "timesteps.csv"), courses)
    plot_courses(os.path.join(folder, "timesteps.png"), courses, "IoU")
    inputs, growth = first_images(model, loader, PICTURES, steps)
    draw_contour_growth(os.path.join(folder, "contour_growth.png"), inputs, growth, list(range(1, trained + 1)) + [steps])
    joined = {"joining step": joining_steps(growth[:trained])}
    draw_joining_steps(os.path.join(folder, "joining_steps.png"), inputs, joined, trained)


def iou_of_every_stroke(loader) -> float:
    """IoU of the target where every bright pixel is called target: what grouping nothing reaches."""
    common = either = 0
    for record in (record for batch in loader for record in batch):
        bright, target = record["image"][0] > BRIGHT, record["sem_seg"] == 1
        common, either = common + int((bright & target).sum()), either + int((bright | target).sum())
    return common / either


if __name__ == "__main__":
    parser = argument_parser(__doc__)
    parser.set_defaults(config_file=os.path.normpath(CONFIG))
    main(parser.parse_args())
