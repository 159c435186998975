#!/usr/bin/env python3
"""Time, peak memory and gradient error of recurrent layers and of whole models, side by side in one run.

    python tools/benchmark.py pathfinder                      # C-RBP and 6-step BPTT, plain and fast
    python tools/benchmark.py mask_head --rois 1024 --peers   # also checkpointed BPTT and, if installed, TorchDEQ
    python tools/benchmark.py models --configs configs/COCO-PanopticSegmentation/panoptic_fpn_R_50_1x.yaml \\
        configs/COCO-PanopticSegmentation/rfpn_R_50_1x.yaml --opts DATASETS.TRAIN '("my_set",)'
    python tools/benchmark.py memory --world pathfinder --seconds 300 --output pathfinder.json   # against steps
    python tools/benchmark.py memory --world model --configs ... --output rfpn50.json --opts ...

Writes the rows as JSON with --output, each as soon as it is known. Ratios refer to plain fp32 (pathfinder), plain bf16
(mask_head) or the first configuration (models). tools/plot_memory.py draws what memory writes. Its configurations
without recurrent layers are measured once; of the others, steps and gradient are set for each row.
"""

import argparse
import functools
import itertools
import platform
from pathlib import Path

import torch
from detectron2.utils.events import EventStorage

from arguments import natural, output_file, positive, step_list
from rfpn.analysis.benchmark import PRECISIONS, Row, alternate, checkpoint_steps, compare, mask_head, measure, pathfinder
from rfpn.analysis.memory import METHODS, MemoryRow, Point, layer_points, sweep
from rfpn.analysis.unrolling import has_recurrent_layer
from rfpn.data.build import check_datasets
from rfpn.data.files import finite, write_json
from rfpn.engine.freeze import train_only
from rfpn.engine.setup import load_cfg
from rfpn.engine.step import TrainStep
from rfpn.engine.trainer import Trainer
from rfpn.layers import RecurrentLayer
from rfpn.programs import one_line_errors

SWEEP = [1, 2, 5, 10, 20, 50, 100, 200, 300]
_WARMUP = 12  # training steps of a whole model on CUDA before times count


def parse_arguments() -> argparse.Namespace:
    """The command line, with the defaults that depend on the job filled in; an error of it ends the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=("pathfinder", "mask_head", "models", "memory"), help="what is measured")
    parser.add_argument("--device", type=_device, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=positive, help="timed runs, whose median is reported (default: 5, in memory 2)")
    parser.add_argument("--output", type=output_file, help="JSON file to write")
    layer = parser.add_argument_group("pathfinder, mask_head")
    layer.add_argument("--batch", type=positive, default=32, help="images (pathfinder)")
    layer.add_argument("--size", type=positive, default=150, help="side of an image in pixels (pathfinder)")
    layer.add_argument("--kernel-size", type=positive, default=15, help="edge of the hGRU's kernels in pixels (pathfinder)")
    layer.add_argument("--rois", type=positive, default=1024, help="RoIs (mask_head)")
    layer.add_argument("--steps", type=step_list, help="steps of processing (default: 20); in memory several, as in 1-5,10")
    layer.add_argument("--bptt-steps", type=positive, default=6, help="steps of processing of BPTT (pathfinder)")
    layer.add_argument("--terms", type=natural, default=15, help="terms of the Neumann series")
    layer.add_argument("--peers", action="store_true", help="also other methods, without penalty")
    memory = parser.add_argument_group("memory")
    memory.add_argument("--world", choices=("pathfinder", "mask_head", "model"), default="pathfinder", help="what trains")
    memory.add_argument("--methods", type=_methods, default=list(METHODS), help=f"some of {','.join(METHODS)}")
    memory.add_argument("--precision", choices=PRECISIONS, help="of a layer (default: fp32, of the mask head bf16)")
    memory.add_argument("--seconds", type=float, default=float("inf"), help="start no measurement after so many seconds")
    models = parser.add_argument_group("models, memory --world model")
    models.add_argument("--configs", nargs="+", default=[], help="configurations to compare")
    models.add_argument("--opts", nargs=argparse.REMAINDER, default=[], help="KEY VALUE overrides of every configuration, last")
    arguments = parser.parse_args()
    whole = arguments.job == "models" or arguments.job == "memory" and arguments.world == "model"
    if whole and not arguments.configs:
        parser.error("whole models: needs --configs")
    if len({Path(path).stem for path in arguments.configs}) < len(arguments.configs):
        parser.error("--configs: files of one name, by which rows go; rename one")
    arguments.repeats = arguments.repeats or (2 if arguments.job == "memory" else 5)
    arguments.steps = arguments.steps or (SWEEP if arguments.job == "memory" else [20])
    if arguments.job != "memory" and len(arguments.steps) > 1:
        parser.error("several --steps are for memory")
    arguments.precision = arguments.precision or ("bf16" if arguments.world == "mask_head" else "fp32")
    return arguments


def _device(word: str) -> str:
    try:
        torch.empty(0, device=word)
    except (RuntimeError, AssertionError) as error:
        raise argparse.ArgumentTypeError(f"{word!r} cannot be used: {str(error).splitlines()[0]}") from None
    return word


def _methods(words: str) -> list[str]:
    methods = words.split(",")
    if not set(methods) <= METHODS.keys():
        raise argparse.ArgumentTypeError(f"{words!r} is not a list of {','.join(METHODS)}")
    return methods


def _pathfinder(arguments: argparse.Namespace):
    sizes = {"batch": arguments.batch, "size": arguments.size, "kernel_size": arguments.kernel_size}
    return functools.partial(pathfinder, terms=arguments.terms, **sizes)


def layer_rows(arguments: argparse.Namespace):
    """Rows of the jobs on recurrent layers."""
    device, (steps,), terms = torch.device(arguments.device), arguments.steps, arguments.terms
    if arguments.job == "pathfinder":
        make = _pathfinder(arguments)
        jobs = [make("crbp", steps=steps), make("bptt", steps=arguments.bptt_steps)]
        without_penalty = make("rbp", steps=steps)
    else:
        jobs = [mask_head("crbp", arguments.rois, steps, terms)]
        without_penalty = mask_head("rbp", arguments.rois, steps, terms)
    for job in jobs:
        yield from compare(job, device, arguments.repeats)
    if arguments.peers:
        yield from compare(without_penalty, device, arguments.repeats, peers=True)


def model_rows(arguments: argparse.Namespace):
    """Rows of training steps and of inference of whole models, on their own data; those of one kind are timed in turns."""
    device, nan = torch.device(arguments.device), float("nan")
    cuda, runs = device.type == "cuda", {"training step": [], "inference": []}
    for path in arguments.configs:
        held = torch.cuda.memory_allocated(device) / 2**30 if cuda else nan
        # the number of RoIs varies from step to step: warm up until CUDA graphs for all of them are there
        for form, run, warmup in zip(runs, _model_runs(path, arguments), (_WARMUP if cuda else 1, 1)):
            runs[form].append((run, measure(run, device, 4, warmup).gibibytes - held))
    for form, pairs in runs.items():
        functions, memory = zip(*pairs)
        times = alternate(functions, device, 2 * arguments.repeats)
        for path, milliseconds, gibibytes in zip(arguments.configs, times, memory):
            yield Row(Path(path).stem, form, milliseconds, gibibytes, milliseconds / times[0], nan, nan)


def _model_runs(path: str, arguments: argparse.Namespace):
    """Functions that run a training step of a configuration's model on one of four batches, and inference of 8 images."""
    cfg, device = _config(path, arguments), torch.device(arguments.device).type
    if not cfg.DATASETS.TEST:
        raise ValueError(f"{path}: inference needs a data set in DATASETS.TEST")
    step = _train_step(cfg, _batches(cfg, 4))
    images = list(itertools.islice(Trainer.build_test_loader(cfg, cfg.DATASETS.TEST[0]), 8))

    def train():
        step.model.train()
        with EventStorage():
            step.run_step()

    def infer():
        step.model.eval()
        with torch.no_grad(), torch.autocast(device, step.amp_dtype, enabled=step.amp_dtype is not None):
            return [step.model(image) for image in images]

    return train, infer


def memory_rows(arguments: argparse.Namespace):
    """Rows of peak memory and time of a training step against the number of steps."""
    if arguments.world == "model":
        points = model_points(arguments)
    else:
        device = torch.device(arguments.device)
        if arguments.world == "pathfinder":
            make = _pathfinder(arguments)
        else:
            make = functools.partial(mask_head, rois=arguments.rois, terms=arguments.terms)
        points = layer_points(
            lambda method, steps: make(method, steps=steps),
            arguments.methods,
            arguments.steps,
            device,
            arguments.precision,
            arguments.repeats,
        )
    yield from sweep(points, arguments.seconds)


def model_points(arguments: argparse.Namespace):
    """Points of whole models: one for each configuration without recurrent layers, curves for the others."""
    for path in arguments.configs:
        cfg, name = _config(path, arguments), Path(path).stem
        batches = _batches(cfg, arguments.repeats)
        run = functools.partial(_measure_training, batches=batches, arguments=arguments)
        if not has_recurrent_layer(cfg):
            yield Point(name, "feedforward", None, functools.partial(run, cfg))
            continue
        weight = cfg.MODEL.RECURRENT.LIPSCHITZ.WEIGHT
        if "crbp" in arguments.methods and weight <= 0:
            raise ValueError(f"{path}: method crbp needs MODEL.RECURRENT.LIPSCHITZ.WEIGHT above 0")
        for steps, method in itertools.product(arguments.steps, arguments.methods):
            gradient, penalised = METHODS[method]
            row = cfg.clone()
            row.MODEL.RECURRENT.STEPS, row.MODEL.RECURRENT.GRADIENT = steps, gradient
            row.MODEL.RECURRENT.LIPSCHITZ.WEIGHT = weight if penalised else 0.0
            yield Point(name, method, steps, functools.partial(run, row, method == "checkpointed_bptt"))


def _measure_training(cfg, checkpointed=False, *, batches: list, arguments: argparse.Namespace):
    step = _train_step(cfg, batches)
    for module in step.model.modules() if checkpointed else ():
        if isinstance(module, RecurrentLayer):
            checkpoint_steps(module)
    device = torch.device(arguments.device)
    # two passes over the batches: CUDA plans its convolutions in the first
    warmup = 2 * len(batches) if device.type == "cuda" else 1
    with EventStorage():
        return measure(step.run_step, device, arguments.repeats, warmup)


def _config(path: str, arguments: argparse.Namespace):
    # a sweep of memory evaluates nothing
    tests = ["DATASETS.TEST", "()"] if arguments.job == "memory" else []
    return load_cfg(path, [*arguments.opts, "MODEL.DEVICE", arguments.device, *tests])


def _batches(cfg, count: int) -> list:
    """The same training batches for every configuration."""
    check_datasets(cfg)
    return list(itertools.islice(Trainer.build_train_loader(cfg, seed=0), count))


def _train_step(cfg, batches: list):
    """Training steps of a new model on the same batches over and over, with the same weights every time."""
    torch.manual_seed(0)
    model = Trainer.build_model(cfg)
    if cfg.SOLVER.TRAIN_ONLY:
        train_only(model, cfg.SOLVER.TRAIN_ONLY)
    options = {"amp_dtype": cfg.SOLVER.AMP.DTYPE if cfg.SOLVER.AMP.ENABLED else None, "accumulate": cfg.SOLVER.ACCUMULATE}
    return TrainStep(model.train(), itertools.cycle(batches), Trainer.build_optimizer(cfg, model), **options)


def _print_head(job: str) -> None:
    if job == "memory":
        print(f"{'job':28} {'method':18} {'steps':>5} {'ms':>9} {'GiB':>7}")
    else:
        print(f"{'job':28} {'form':22} {'ms':>9} {'GiB':>7} {'ratio':>7} {'error':>8} {'worst':>8}")


def _print_row(row: Row | MemoryRow) -> None:
    if isinstance(row, MemoryRow):
        figures = f"{row.milliseconds:9.2f} {row.gibibytes:7.2f}" if row.outcome == "measured" else f"  {row.outcome}"
        print(f"{row.job:28} {row.method:18} {row.steps or '':>5} {figures}", flush=True)
    else:
        figures = f"{row.milliseconds:9.2f} {row.gibibytes:7.2f} {row.ratio:7.3f} {row.error:8.1e} {row.worst:8.1e}"
        print(f"{row.job:28} {row.form:22} {figures}", flush=True)


def _heading(arguments: argparse.Namespace) -> dict:
    """What the JSON says besides rows."""
    cuda = arguments.device.startswith("cuda")
    card = torch.cuda.get_device_name() if cuda else platform.processor() or "CPU"
    heading = {"card": card, "torch": torch.__version__}
    if arguments.job != "memory":
        return heading
    limit = torch.cuda.get_device_properties(arguments.device).total_memory / 2**30 if cuda else None
    return {**heading, "card_gibibytes": limit, "work": _work(arguments), "repeats": arguments.repeats}


def _work(arguments: argparse.Namespace) -> str:
    if arguments.world == "pathfinder":
        edge, size = arguments.kernel_size, f"{arguments.batch} images, 25×{arguments.size}×{arguments.size}"
        return f"hGRU {edge}×{edge}, {size}, {arguments.precision}"
    if arguments.world == "mask_head":
        return f"mask-head hGRU, {arguments.rois} RoIs, 256×14×14, {arguments.precision}"
    solver = _config(arguments.configs[0], arguments).SOLVER
    accumulated = f" × {solver.ACCUMULATE}" if solver.ACCUMULATE > 1 else ""
    return f"whole models, batch {solver.IMS_PER_BATCH}{accumulated}, {solver.AMP.DTYPE if solver.AMP.ENABLED else 'float32'}"


def _write(path: Path, heading: dict, rows: list) -> None:
    """All rows so far; a program that is stopped leaves a whole file."""
    write_json(path, finite({**heading, "rows": [row._asdict() for row in rows]}), indent=1)


def main() -> None:
    """Measure, print and write row after row."""
    arguments = parse_arguments()
    produce = {"models": model_rows, "memory": memory_rows}.get(arguments.job, layer_rows)
    with one_line_errors():
        heading, rows = _heading(arguments), []
        print(f"{heading['card']}, PyTorch {heading['torch']}")
        _print_head(arguments.job)
        for row in produce(arguments):
            rows.append(row)
            _print_row(row)
            if arguments.output:
                _write(arguments.output, heading, rows)


if __name__ == "__main__":
    main()
