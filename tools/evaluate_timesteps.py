#!/usr/bin/env python3
"""Score one checkpoint at any list of processing steps, on several data sets, each in one pass.

    python tools/evaluate_timesteps.py --config-file configs/Pathfinder/hgru15_crbp20_pf14.yaml --steps 1-40 \\
        --datasets pathfinder_14_test,pathfinder_20_test MODEL.WEIGHTS output/.../model_final.pth
    python tools/evaluate_timesteps.py --config-file configs/COCO-PanopticSegmentation/rfpn_R_50_1x.yaml --steps 1-30 \\
        MODEL.WEIGHTS output/.../model_final.pth

Pathfinder models give the scores of the target contour, R-FPN gives PQ. Writes timesteps.csv and timesteps.png into
OUTPUT_DIR/timesteps.
"""

import logging
import os

from detectron2.data import MetadataCatalog
from detectron2.engine import default_argument_parser
from detectron2.utils import comm

from rfpn.analysis.time_course import evaluate_time_course, parse_steps, plot_time_course, write_csv
from rfpn.data.build import build_test_loader
from rfpn.engine.checkpoint import Checkpointer, check_complete
from rfpn.engine.launch import check_gpus, launch
from rfpn.engine.setup import one_line_errors, setup
from rfpn.engine.trainer import Trainer
from rfpn.evaluation.panoptic import PanopticEvaluator
from rfpn.evaluation.pathfinder import PathfinderEvaluator

# score that is plotted, by evaluator_type
MAIN_SCORE = {"pathfinder": "IoU", "coco_panoptic_seg": "PQ"}


def main(args):
    """What every process of the job does."""
    with one_line_errors():
        steps = parse_steps(args.steps)
        cfg = setup(args)
        names = args.datasets.split(",") if args.datasets else list(cfg.DATASETS.TEST)
        kind = kind_of(names)
        loaders = {name: build_test_loader(cfg, name) for name in names}
        model = Trainer.build_model(cfg)
        checkpointer = Checkpointer(model, save_dir=cfg.OUTPUT_DIR)
        checkpointer.resume_or_load(cfg.MODEL.WEIGHTS, resume=args.resume)
        check_complete(checkpointer, cfg.MODEL.ALLOW_MISSING_WEIGHTS)
        courses = {
            name: evaluate_time_course(model, loader, steps, lambda name=name: build_evaluator(cfg, name))
            for name, loader in loaders.items()
        }
    if not comm.is_main_process():
        return
    folder = os.path.join(cfg.OUTPUT_DIR, "timesteps")
    write_csv(os.path.join(folder, "timesteps.csv"), courses)
    plot_time_course(os.path.join(folder, "timesteps.png"), courses, MAIN_SCORE[kind], cfg.MODEL.RECURRENT.STEPS)
    for name, course in courses.items():
        table = ", ".join(f"{step}: {scores.get(MAIN_SCORE[kind], float('nan')):.4f}" for step, scores in course.items())
        logging.getLogger("rfpn").info("%s, %s by step: %s", name, MAIN_SCORE[kind], table)
    logging.getLogger("rfpn").info("written to %s", folder)


def kind_of(names: list[str]) -> str:
    """The one ``evaluator_type`` of all data sets.

    Raises:
        ValueError: there is none, or it has no time course.
    """
    kinds = {MetadataCatalog.get(name).get("evaluator_type") for name in names}
    if len(kinds) != 1 or not kinds <= MAIN_SCORE.keys():
        raise ValueError(f"--datasets must be of one kind ({' or '.join(MAIN_SCORE)}); {', '.join(names)}: {kinds}")
    return kinds.pop()


def build_evaluator(cfg, name: str):
    """The evaluator of one step."""
    if MetadataCatalog.get(name).evaluator_type == "pathfinder":
        return PathfinderEvaluator(name)
    return PanopticEvaluator(name, workers=cfg.TEST.PQ_WORKERS)


def parse_args():
    """Detectron2's arguments, data sets and steps."""
    parser = default_argument_parser(__doc__)
    parser.add_argument("--steps", default="1-40", help="e.g. 1-10,20,40 (default: 1-40)")
    parser.add_argument("--datasets", help="registered names, with commas between (default: DATASETS.TEST)")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse_args()
    with one_line_errors():
        check_gpus(arguments)
    launch(main, arguments)
