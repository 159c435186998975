#!/usr/bin/env python3
"""Time of a training iteration against the number of processes, one a GPU, at the same number of images on each.

    python tools/benchmark_scaling.py --processes 1 4 --images 32 --config-file configs/Pathfinder/hgru15_crbp20_pf14.yaml
    python tools/benchmark_scaling.py --processes 1 4 --images 16 --output scaling.json \\
        --config-file configs/COCO-PanopticSegmentation/rfpn_R_50_1x.yaml SOLVER.AMP.ENABLED True

Runs the launcher once for each number and reads its log: medians over what was logged after the first third, so data,
gradients' exchange and logging are in. Without GPUs the processes run on the CPU.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from arguments import output_file, positive
from rfpn.analysis.logs import Series, read_log
from rfpn.data.files import write_json
from rfpn.engine.setup import load_cfg
from rfpn.programs import one_line_errors

LAUNCHER = Path(__file__).with_name("train_net.py")


def parse_arguments() -> argparse.Namespace:
    """The command line; an error of it ends the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config-file", required=True, metavar="FILE", help="configuration of every run")
    parser.add_argument("--processes", type=positive, nargs="+", default=[1, 4], help="their numbers (default: 1 4)")
    parser.add_argument("--images", type=positive, required=True, help="images of a batch in each process")
    parser.add_argument("--iterations", type=positive, default=120, help="of each run (default: 120), at least 60")
    parser.add_argument("--output", type=output_file, help="JSON file to write")
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="KEY VALUE overrides of every run's configuration, last")
    arguments = parser.parse_args()
    # the log has a line for 20 iterations
    if arguments.iterations < 60:
        parser.error("--iterations: fewer than 60 leave nothing after the first third")
    return arguments


def train(arguments: argparse.Namespace, processes: int) -> dict[str, Series]:
    """Iterations done and values by scalar of a run. SystemExit with its error, or the end of its output, where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "SOLVER.REFERENCE_WORLD_SIZE": 0,
            "SOLVER.IMS_PER_BATCH": processes * arguments.images,
            "SOLVER.MAX_ITER": arguments.iterations,
            "SOLVER.CHECKPOINT_PERIOD": arguments.iterations,
            "DATASETS.TEST": "()",
            "OUTPUT_DIR": folder,
        }
        # of a key given twice the later value counts
        words = [*arguments.opts, *(str(word) for pair in options.items() for word in pair)]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command = [*torchrun, LAUNCHER, "--config-file", arguments.config_file, *words]
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if run.returncode:
            # torchrun's own words come after those of the program
            said = [line for line in run.stdout.splitlines() if line.startswith("error: ")]
            sys.exit(f"the run on {processes} ended with status {run.returncode}: {said[0] if said else run.stdout[-2000:]}")
        return read_log(f"{folder}/metrics.json")


def row(arguments: argparse.Namespace, processes: int, batches: int) -> dict:
    """Number of processes, milliseconds of an iteration of so many batches, those of waiting for data, images a second."""
    log, first = train(arguments, processes), arguments.iterations // 3
    seconds, wait = (statistics.median(v for i, v in zip(*log[key]) if i > first) for key in ("time", "data_time"))
    speed = processes * arguments.images * batches / seconds
    return {"processes": processes, "milliseconds": 1e3 * seconds, "data": 1e3 * wait, "images_per_second": speed}


@one_line_errors()
def main() -> None:
    """Run, print and write row after row; ``linear`` is speed over that of the first row, a process."""
    arguments = parse_arguments()
    # what is wrong with it is told here, before the launcher's processes fail one by one
    batches = load_cfg(arguments.config_file, arguments.opts).SOLVER.ACCUMULATE
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{card}, PyTorch {torch.__version__}, {arguments.images} images each")
    print(f"{'processes':>9} {'ms':>9} {'data, ms':>9} {'images/s':>9} {'linear':>7}")
    rows = []
    for processes in arguments.processes:
        new = row(arguments, processes, batches)
        first = rows[0] if rows else new
        new["linear"] = new["images_per_second"] / processes / (first["images_per_second"] / first["processes"])
        rows.append(new)
        figures = f"{new['milliseconds']:9.1f} {new['data']:9.1f} {new['images_per_second']:9.1f} {new['linear']:7.3f}"
        print(f"{processes:9} {figures}", flush=True)
        if arguments.output:
            heading = {"card": card, "torch": torch.__version__, "configuration": Path(arguments.config_file).stem}
            write_json(arguments.output, {**heading, "images": arguments.images, "rows": rows}, indent=1)


if __name__ == "__main__":
    main()
