"""Weights that turn infinite in the middle of a run (docs/failures.md)."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rfpn.data.scenes.dataset import write_scenes
from rfpn.data.scenes.render import SceneOptions

ROOT = Path(__file__).parents[2]
TRAIN = """
import torch
from detectron2.engine import HookBase, default_argument_parser
from detectron2.utils import comm
from rfpn.engine.launch import launch
from rfpn.engine.setup import setup
from rfpn.engine.trainer import Trainer
from rfpn.programs import one_line_errors

class Spoil(HookBase):
    def before_step(self):
        if self.trainer.iter == 3 and comm.get_rank() == comm.get_world_size() - 1:
            with torch.no_grad():
                for name, p in self.trainer.model.named_parameters():
                    if name.endswith("cell.alpha"):
                        p.fill_(float("inf"))

def main(args):
    with one_line_errors():
        trainer = Trainer(setup(args))
        trainer.register_hooks([Spoil()])
        trainer.train()

if __name__ == "__main__":
    launch(main, default_argument_parser().parse_args())
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_C6_infinite_head_weights_end_all_ranks_by_name(tmp_path, ranks):
    write_scenes(str(tmp_path / "scenes"), "train", 6, options=SceneOptions(height=64, width=64))
    (tmp_path / "spoiled.py").write_text(TRAIN)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if ranks == 2 else []
    command = [sys.executable, *launcher, tmp_path / "spoiled.py"]
    command += ["--config-file", ROOT / "configs" / "quick_schedules" / "rfpn_quick.yaml", "OUTPUT_DIR", tmp_path / "out"]
    command += ["SOLVER.MAX_ITER", 9, "SOLVER.CHECKPOINT_PERIOD", 2, "DATASETS.TEST", "()"]
    environment = {
        **os.environ, "DETECTRON2_DATASETS": str(tmp_path), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
        "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, timeout=200)
    ended = time.time()
    assert done.returncode != 0
    good = tmp_path / "out" / "model_0000001.pth"
    assert ended - good.stat().st_mtime < 60
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == ranks
    for error in errors:
        assert "iteration 3: not finite: " in error and "loss_lipschitz" in error and "loss_mask" in error
        assert error.endswith(f"the last good checkpoint is {good.name}")
    weights = torch.load(good, weights_only=True)["model"]
    assert all(value.isfinite().all() for value in weights.values())
    assert (tmp_path / "out" / "last_checkpoint").read_text() == good.name
    assert [path.name for path in (tmp_path / "out").glob("*.pth")] == [good.name]
