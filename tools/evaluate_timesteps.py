#!/usr/bin/env python3
"""Score checkpoints at any list of processing steps, on several data sets, each in one pass.

    python tools/evaluate_timesteps.py --config-file configs/Pathfinder/hgru15_crbp20_pf14.yaml --steps 1-40 \\
        --datasets pathfinder_14_test,pathfinder_20_test MODEL.WEIGHTS output/.../model_final.pth
    python tools/evaluate_timesteps.py --weights BPTT=output/a/model_final.pth --weights C-RBP=output/b/model_final.pth

Pathfinder models give the scores of the target contour, R-FPN gives PQ. Writes timesteps.csv and timesteps.png (score
and residual against the step) into --output. KEY VALUE overrides of the configuration come last.
"""

import logging
import os

from detectron2.data import MetadataCatalog
from detectron2.utils import comm

from analysis_models import add_model_arguments, load_model, model_configs, open_output
from arguments import step_list
from rfpn.analysis.courses import Course, plot_courses, write_courses
from rfpn.analysis.time_course import evaluate_time_course
from rfpn.analysis.unrolling import trained_steps
from rfpn.data.build import build_test_loader
from rfpn.data.check import check_kind
from rfpn.engine.launch import argument_parser, check_gpus, launch
from rfpn.evaluation import MAIN_SCORES, build_main_evaluator
from rfpn.programs import one_line_errors


def main(args):
    """What every process of the job does."""
    with one_line_errors():
        if args.eval_only:
            raise ValueError("--eval-only is for tools/train_net.py; this program always evaluates: leave it out")
        if args.resume and args.weights:
            raise ValueError("--resume takes the last checkpoint of OUTPUT_DIR, not those of --weights: give one of the two")
        configs = model_configs(args)
        datasets = {m: datasets_of(args, cfg) for m, cfg in configs.items()}
        score = MAIN_SCORES[kind_of([name for names in datasets.values() for name in names])]
        loaders = {(m, name): build_test_loader(configs[m], name) for m, names in datasets.items() for name in names}
        folder = open_output(args, configs, "timesteps")
        courses = []
        for label, cfg in configs.items():
            model = load_model(cfg, args.resume)
            for name in datasets[label]:
                scores = evaluate_time_course(model, loaders[label, name], args.steps, lambda: build_main_evaluator(cfg, name))
                courses.append(Course(label, name, trained_steps(cfg), scores))
        if comm.is_main_process():
            write(folder, courses, score)


def write(folder: str, courses: list[Course], score: str) -> None:
    """Log, write the table and draw the figure."""
    logger = logging.getLogger("rfpn")
    for label, name, _, course in courses:
        table = ", ".join(f"{step}: {scores.get(score, float('nan')):.4f}" for step, scores in course.items())
        logger.info("%s, %s, %s by step: %s", label, name, score, table)
    write_courses(os.path.join(folder, "timesteps.csv"), courses)
    plot_courses(os.path.join(folder, "timesteps.png"), courses, score)
    logger.info("written to %s", folder)


def datasets_of(args, cfg) -> list[str]:
    """``--datasets``, or the configuration's test sets. Raises KeyError or ValueError for one that does not suit."""
    names = [name.strip() for name in args.datasets.split(",")] if args.datasets else cfg.DATASETS.TEST
    for name in names:
        check_kind(name, cfg)
    return list(dict.fromkeys(names))


def kind_of(names: list[str]) -> str:
    """The one ``evaluator_type`` of all data sets.

    Raises:
        ValueError: there is no kind, or it has no time course.
    """
    kinds = {name: MetadataCatalog.get(name).get("evaluator_type") for name in names}
    if len(set(kinds.values())) != 1 or not set(kinds.values()) <= MAIN_SCORES.keys():
        found = ", ".join(f"{name} is {kind}" for name, kind in kinds.items()) or "DATASETS.TEST is empty"
        raise ValueError(f"--datasets must be of one kind, {' or '.join(MAIN_SCORES)}: {found}")
    return kinds.popitem()[1]


def parse_args():
    """Detectron2's arguments, models, data sets and steps."""
    parser = argument_parser(__doc__)
    add_model_arguments(parser)
    parser.add_argument("--steps", type=step_list, default="1-40", help="e.g. 1-10,20,40 (default: 1-40)")
    parser.add_argument("--datasets", help="registered names, with commas between (default: DATASETS.TEST)")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse_args()
    with one_line_errors():
        check_gpus(arguments)
        launch(main, arguments)
