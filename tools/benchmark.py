#!/usr/bin/env python3
"""Time, peak memory and gradient error of recurrent layers and of whole models, side by side in one run.

    python tools/benchmark.py pathfinder                      # C-RBP and 6-step BPTT, plain and fast
    python tools/benchmark.py mask_head --rois 1024 --peers   # also checkpointed BPTT and, if installed, TorchDEQ
    python tools/benchmark.py models --configs configs/COCO-PanopticSegmentation/panoptic_fpn_R_50_1x.yaml \\
        configs/COCO-PanopticSegmentation/rfpn_R_50_1x.yaml --opts DATASETS.TRAIN '("my_set",)'

Writes the rows as JSON with --output. Ratios refer to plain fp32 (pathfinder), plain bf16 (mask_head) or the first
configuration (models).
"""

import argparse
import itertools
import json
import platform
from pathlib import Path

import torch

from rfpn.analysis.benchmark import Row, compare, mask_head, measure, pathfinder


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=("pathfinder", "mask_head", "models"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs, whose median is reported")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    layer = parser.add_argument_group("pathfinder, mask_head")
    layer.add_argument("--batch", type=int, default=32, help="images (pathfinder)")
    layer.add_argument("--size", type=int, default=150, help="side of an image in pixels (pathfinder)")
    layer.add_argument("--rois", type=int, default=1024, help="RoIs (mask_head)")
    layer.add_argument("--steps", type=int, default=20, help="steps of processing")
    layer.add_argument("--bptt-steps", type=int, default=6, help="steps of processing of BPTT (pathfinder)")
    layer.add_argument("--terms", type=int, default=15, help="terms of the Neumann series")
    layer.add_argument("--peers", action="store_true", help="also other methods, without penalty")
    models = parser.add_argument_group("models")
    models.add_argument("--configs", nargs="+", default=[], help="configurations to compare")
    models.add_argument("--opts", nargs=argparse.REMAINDER, default=[], help="KEY VALUE pairs for every configuration")
    arguments = parser.parse_args()
    if arguments.job == "models" and not arguments.configs:
        parser.error("models needs --configs")
    return arguments


def layer_rows(arguments: argparse.Namespace):
    """Rows of the jobs on recurrent layers."""
    device, steps, terms = torch.device(arguments.device), arguments.steps, arguments.terms
    if arguments.job == "pathfinder":
        jobs = [
            pathfinder("crbp", arguments.batch, steps, terms, arguments.size),
            pathfinder("bptt", arguments.batch, arguments.bptt_steps, terms, arguments.size),
        ]
        without_penalty = pathfinder("rbp", arguments.batch, steps, terms, arguments.size)
    else:
        jobs = [mask_head("crbp", arguments.rois, steps, terms)]
        without_penalty = mask_head("rbp", arguments.rois, steps, terms)
    for job in jobs:
        yield from compare(job, device, arguments.repeats)
    if arguments.peers:
        yield from compare(without_penalty, device, arguments.repeats, peers=True)


def model_rows(arguments: argparse.Namespace):
    """Rows of training steps and of inference of whole models, on their own data."""
    # Detectron2 is needed by whole models alone
    from rfpn.config import get_cfg
    from rfpn.engine.step import TrainStep
    from rfpn.engine.trainer import Trainer

    device, nan, baselines = torch.device(arguments.device), float("nan"), {}
    for path in arguments.configs:
        cfg = get_cfg()
        cfg.merge_from_file(path)
        cfg.merge_from_list([*arguments.opts, "MODEL.DEVICE", str(device)])
        torch.manual_seed(0)
        model = Trainer.build_model(cfg)
        batches = list(itertools.islice(Trainer.build_train_loader(cfg), 4))
        amp = cfg.SOLVER.AMP.DTYPE if cfg.SOLVER.AMP.ENABLED else None
        step = TrainStep(model.train(), itertools.cycle(batches), Trainer.build_optimizer(cfg, model), amp_dtype=amp)
        images = list(itertools.islice(Trainer.build_test_loader(cfg, cfg.DATASETS.TEST[0]), 8))
        with _storage():
            training = measure(step.run_step, device, max(arguments.repeats, len(batches)))
        model.eval()
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=amp is not None):
            inference = measure(lambda: [model(image) for image in images], device, arguments.repeats)
        for form, measured in (("training step", training), ("inference", inference)):
            baseline = baselines.setdefault(form, measured.milliseconds)
            yield Row(Path(path).stem, form, *measured, measured.milliseconds / baseline, nan, nan)
        del model, step, batches


def _named_errors(rows):
    """Missing data and wrong keys end the program in one line."""
    from rfpn.engine.setup import one_line_errors

    with one_line_errors():
        yield from rows


def _storage():
    from detectron2.utils.events import EventStorage

    return EventStorage()


def main() -> None:
    arguments = parse_arguments()
    card = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else platform.processor() or "CPU"
    print(f"{card}, PyTorch {torch.__version__}")
    print(f"{'job':28} {'form':22} {'ms':>9} {'GiB':>7} {'ratio':>7} {'error':>8} {'worst':>8}")
    rows = []
    for row in _named_errors(model_rows(arguments)) if arguments.job == "models" else layer_rows(arguments):
        rows.append(row)
        print(
            f"{row.job:28} {row.form:22} {row.milliseconds:9.2f} {row.gibibytes:7.2f} {row.ratio:7.3f} "
            f"{row.error:8.1e} {row.worst:8.1e}",
            flush=True,
        )
    if arguments.output:
        # JSON knows no NaN
        known = [{key: None if value != value else value for key, value in row._asdict().items()} for row in rows]
        table = {"card": card, "torch": torch.__version__, "rows": known}
        arguments.output.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
