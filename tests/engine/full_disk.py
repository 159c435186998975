"""Trains where no room is left; test_full_disk.py looks at what remains.

    python tests/engine/full_disk.py FOLDER log
    unshare --user --map-root-user --mount python tests/engine/full_disk.py FOLDER checkpoints

The second, for Linux, mounts a small disk in a namespace of its own and leaves in FOLDER/lives.json what that held.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from killed_runs import in_a_step, live, register_pathfinder, write_samples

from rfpn.engine.trainer import Trainer

ROOM_LEFT = 12_000  # bytes; a checkpoint of this run takes about 31,000


def fill_at(iteration: int) -> None:
    """Fill the disk, but for ``ROOM_LEFT``, before a checkpoint is written."""
    step = Trainer.run_step

    def run_step(self):
        step(self)
        if self.iter == iteration:
            filler = Path(self.cfg.OUTPUT_DIR).parent / "filler"
            disk = os.statvfs(filler.parent)
            filler.write_bytes(bytes(disk.f_bavail * disk.f_frsize - ROOM_LEFT))

    Trainer.run_step = run_step


def contents(run: Path) -> dict:
    """Iterations of a run's checkpoints by file name, the newest by its tag, and the number of unfinished files."""
    found = {path.name: torch.load(path, weights_only=True)["iteration"] for path in sorted(run.glob("*.pth"))}
    return {"found": found, "tag": (run / "last_checkpoint").read_text(), "partial": len(list(run.glob("*.partial*")))}


def log_on_a_full_disk(root: Path) -> int:
    """A run whose metrics.json takes nothing, after a life that wrote a checkpoint."""
    live(root / "run", in_a_step, 50)
    (root / "run" / "metrics.json").unlink()
    (root / "run" / "metrics.json").symlink_to("/dev/full")
    return live(root / "run")


def checkpoints_on_a_full_disk(root: Path) -> int:
    """A run whose disk fills up, one that starts while it is full, one that starts when there is room again."""
    disk = root / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=True)
    lives = []
    for end in (fill_at, None, None):
        if len(lives) == 2:
            (disk / "filler").unlink()
        lives.append({"code": live(disk / "run", end, 79), **contents(disk / "run")})
    (root / "lives.json").write_text(json.dumps(lives))
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    write_samples(folder / "samples")
    register_pathfinder("killed_train", str(folder / "samples"))
    sys.exit({"log": log_on_a_full_disk, "checkpoints": checkpoints_on_a_full_disk}[sys.argv[2]](folder))
