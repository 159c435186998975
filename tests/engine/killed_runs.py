"""Trains a run that is never stopped and one that is stopped six times; test_resume.py compares what they leave.

    python tests/engine/killed_runs.py FOLDER

Every life of a run is a process of its own, forked from this one, and is what tools/train_net.py does. Five lives end
by SIGKILL, one by a disk that takes no more.
"""

import os
import resource
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from detectron2.engine import default_argument_parser
from detectron2.utils.events import JSONWriter
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import train_net  # noqa: E402

from rfpn.data.pathfinder.registration import register_pathfinder  # noqa: E402
from rfpn.engine.trainer import Trainer  # noqa: E402

CONFIG = ROOT / "configs" / "quick_schedules" / "pathfinder_quick.yaml"
# a learning rate and a loss scale with a state of their own at every step, penalty probes drawn at every step, mirrored
# samples, an Adam
OPTIONS = """
    DATASETS.TRAIN ('killed_train',) DATASETS.TEST () INPUT.PATHFINDER_SIZE 16
    MODEL.PATHFINDER.CHANNELS 4 MODEL.RECURRENT.KERNEL_SIZE 3 MODEL.RECURRENT.STEPS 2 MODEL.RECURRENT.NEUMANN_TERMS 2
    MODEL.RECURRENT.LIPSCHITZ.PROBE rademacher MODEL.RECURRENT.LIPSCHITZ.COEFFICIENT 0.0
    MODEL.RECURRENT.LIPSCHITZ.WEIGHT 10.0
    SOLVER.IMS_PER_BATCH 2 SOLVER.MAX_ITER 200 SOLVER.CHECKPOINT_PERIOD 40 SOLVER.LR_SCHEDULER_NAME WarmupCosineLR
    SOLVER.WARMUP_ITERS 50 SOLVER.AMP.ENABLED True SOLVER.AMP.DTYPE float16 SEED 3 CUDNN_BENCHMARK False
""".split()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_step(iteration: int) -> None:
    """Killed after the optimizer's step, before anything is written of it."""
    step = Trainer.run_step

    def run_step(self):
        step(self)
        if self.iter == iteration:
            die()

    Trainer.run_step = run_step


def while_writing(iteration: int) -> None:
    """Killed with half of a checkpoint on disk."""

    def save(data, file):
        if data["iteration"] != iteration:
            return write(data, file)
        write(data, path := Path(file.name + "_whole"))
        file.write(path.read_bytes()[:3000])
        path.unlink()
        file.flush()
        die()

    write, torch.save = torch.save, save


def before_the_tag(iteration: int) -> None:
    """Killed when a checkpoint has its name, but ``last_checkpoint`` does not point to it yet."""

    def replace(source, target):
        if os.path.basename(target) == "last_checkpoint" and f"{iteration:07d}" in Path(source).read_text():
            die()
        move(source, target)

    move, os.replace = os.replace, replace


def in_the_log(iteration: int) -> None:
    """Killed with half a line in metrics.json."""

    def write_line(self):
        from detectron2.utils.events import get_event_storage

        if get_event_storage().iter == iteration:
            self._file_handle.write('{"iteration": 9')
            self._file_handle.flush()
            die()
        write(self)

    write, JSONWriter.write = JSONWriter.write, write_line


def on_a_full_disk(iteration: int) -> None:
    """The file of a checkpoint cannot grow beyond 4 KiB."""

    def save(data, file):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        if data["iteration"] == iteration:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            write(data, file)
            file.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    write, torch.save = torch.save, save


ENDS = [
    (in_a_step, 13, -signal.SIGKILL),
    (while_writing, 39, -signal.SIGKILL),
    (before_the_tag, 79, -signal.SIGKILL),
    (in_the_log, 99, -signal.SIGKILL),
    (in_a_step, 150, -signal.SIGKILL),
    (on_a_full_disk, 159, 2),
]


def live(folder: Path, end=None, iteration: int = 0) -> int:
    """One life of a run in a process of its own; its exit code, negative for a signal."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        if end:
            end(iteration)
        arguments = ["--config-file", str(CONFIG), "--resume", "OUTPUT_DIR", str(folder), *OPTIONS]
        train_net.main(default_argument_parser().parse_args(arguments))
        code = 0
    except SystemExit as error:
        code = error.code
    finally:
        sys.stdout.flush()
        os._exit(code)


def write_samples(folder: Path) -> None:
    generator = np.random.default_rng(0)
    for kind in ("imgs", "seg"):
        (folder / kind / "0").mkdir(parents=True)
        for i in range(7):
            picture = generator.integers(0, 256, (16, 16), dtype=np.uint8)
            picture = picture if kind == "imgs" else np.where(picture > 200, 255, 0).astype(np.uint8)
            Image.fromarray(picture).save(folder / kind / "0" / f"sample_{i}.png")


if __name__ == "__main__":
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    write_samples(root / "samples")
    register_pathfinder("killed_train", str(root / "samples"))
    assert live(root / "whole") == 0
    for end, iteration, code in ENDS:
        found = live(root / "killed", end, iteration)
        assert found == code, f"{end.__name__} at {iteration}: exit code {found}, wanted {code}"
    assert live(root / "killed") == 0
