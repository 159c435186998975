#!/usr/bin/env python3
"""Train or evaluate any model of this project.

    python tools/train_net.py --config-file configs/COCO-PanopticSegmentation/rfpn_R_50_1x.yaml --num-gpus 8
    torchrun --nproc-per-node 4 tools/train_net.py --config-file ...
    python tools/train_net.py --config-file ... --eval-only MODEL.WEIGHTS output/model_final.pth

KEY VALUE overrides of the configuration come last, as in SOLVER.MAX_ITER 1000 OUTPUT_DIR output/run.
"""

from detectron2.utils import comm

from rfpn.engine.checkpoint import load_for_evaluation, name_full_disk
from rfpn.engine.launch import argument_parser, check_gpus, launch
from rfpn.engine.rules import verify_expected_results
from rfpn.engine.setup import setup
from rfpn.engine.trainer import Trainer
from rfpn.programs import one_line_errors


def main(args):
    """What every process of the job does."""
    with one_line_errors():
        cfg = setup(args)
        with name_full_disk(cfg.OUTPUT_DIR):
            if args.eval_only:
                return evaluate(cfg, args.resume)
            trainer = Trainer(cfg)
            trainer.resume_or_load(resume=args.resume)
            return trainer.train()


def evaluate(cfg, resume):
    """Score MODEL.WEIGHTS, or with ``resume`` the last checkpoint, on DATASETS.TEST."""
    if not cfg.DATASETS.TEST:
        raise ValueError("--eval-only: DATASETS.TEST names no data set")
    model = load_for_evaluation(Trainer.build_model(cfg), cfg, resume)
    results = Trainer.test(cfg, model)
    if comm.is_main_process():
        verify_expected_results(cfg, results)
    return results


if __name__ == "__main__":
    arguments = argument_parser(__doc__).parse_args()
    with one_line_errors():
        check_gpus(arguments)
        launch(main, arguments)
