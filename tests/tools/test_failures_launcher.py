"""Known failures that only whole runs of the programs show (docs/failures.md)."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rfpn.data.scenes.dataset import write_scenes
from rfpn.data.scenes.render import SceneOptions
from tests.analysis.tiny_runs import assert_equal
from tests.data.tiny_panoptic import write_set

ROOT = Path(__file__).parents[2]
QUICK = ROOT / "configs" / "quick_schedules" / "rfpn_quick.yaml"
ITERATIONS = 4


def run(command, datasets, **environment):
    environment = {
        **os.environ, "DETECTRON2_DATASETS": str(datasets), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
        "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(ROOT), **environment,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True, timeout=300, cwd=ROOT
    )


def train(datasets, out, *overrides):
    program = ROOT / "tools" / "train_net.py"
    return run([program, *overrides[:1], "--config-file", QUICK, "OUTPUT_DIR", out, *overrides[1:]], datasets)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Data sets, and two equal runs: their folders and the first one's messages."""
    root = tmp_path_factory.mktemp("runs")
    write_scenes(str(root / "scenes"), "train", 6, options=SceneOptions(height=64, width=64))
    overrides = ["SOLVER.MAX_ITER", ITERATIONS, "SOLVER.CHECKPOINT_PERIOD", 2, "DATASETS.TEST", "()"]
    done = [train(root, root / name, "--num-gpus=1", *overrides) for name in ("one", "two")]
    assert [d.returncode for d in done] == [0, 0], done[0].stderr[-2000:]
    return root, overrides, done[0]


def losses(folder) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.json").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "loss" in key or key == "lr"} for line in lines]


def checkpoint(folder, name="model_final.pth") -> dict:
    return torch.load(folder / name, weights_only=True)


def test_E11_same_seed_gives_the_same_losses_and_weights(runs):
    root, _, _ = runs
    assert losses(root / "one") == losses(root / "two") != []
    assert_equal(checkpoint(root / "one")["model"], checkpoint(root / "two")["model"])


def test_G4_training_runs_without_a_gpu_and_says_so(runs):
    root, _, done = runs
    assert "no GPU found: running on the CPU (MODEL.DEVICE cpu)" in done.stdout + done.stderr
    assert losses(root / "one")[-1]["loss_mask"] > 0


def test_D5_a_resumed_run_goes_on_with_all_counters(runs):
    root, overrides, _ = runs
    (root / "cut").mkdir()
    shutil.copy(root / "one" / "model_0000001.pth", root / "cut")
    (root / "cut" / "last_checkpoint").write_text("model_0000001.pth")
    done = train(root, root / "cut", "--resume", *overrides)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Starting training from iteration 2" in done.stdout
    whole, cut = checkpoint(root / "one"), checkpoint(root / "cut")
    assert cut["trainer"]["iteration"] == ITERATIONS - 1 == whole["trainer"]["iteration"]
    for state in (whole, cut):  # times differ
        state["trainer"].get("hooks", {}).pop("IterationTimer", None)
    assert_equal(whole["trainer"], cut["trainer"])
    assert_equal(whole["model"], cut["model"])
    assert losses(root / "one")[-1]["lr"] == losses(root / "cut")[-1]["lr"]


def test_A2_missing_stuff_metadata_ends_the_run_before_its_first_iteration(tmp_path):
    root = write_set(tmp_path / "set", [[(7, (0, 0, 20, 20), 0), (40, (0, 20, 64, 48), 0)]] * 2)
    program = f"""
import runpy, sys
from detectron2.data.datasets.coco_panoptic import register_coco_panoptic_separated
from rfpn.data.semantic import prepare_split, split_of_folder
paths = split_of_folder({str(root)!r}, "train")
prepare_split(paths)
register_coco_panoptic_separated("mine", {{}}, paths.image_root, paths.panoptic_root, paths.panoptic_json,
                                 paths.sem_seg_root, paths.instances_json)
runpy.run_path({str(ROOT / "tools" / "train_net.py")!r}, run_name="__main__")
"""
    names = ["DATASETS.TRAIN", "('mine_separated',)", "DATASETS.TEST", "('mine_separated',)"]
    done = run(["-c", program, "--config-file", QUICK, "OUTPUT_DIR", tmp_path / "out", *names], tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "error: dataset 'mine_separated' lacks the metadata" in done.stderr and "stuff_classes" in done.stderr
    assert "Starting training" not in done.stdout and not (tmp_path / "out" / "metrics.json").exists()


def test_G4_no_import_touches_the_gpu():
    modules = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in sorted((ROOT / "rfpn").rglob("*.py"))]
    modules = [m.removesuffix(".__init__") for m in modules if "triton" not in m and "kernels" not in m and "stages" not in m]
    code = f"""
import importlib, torch
def refuse(*args, **kwargs):
    raise AssertionError("CUDA at import")
torch.cuda._lazy_init = torch.cuda.is_available = torch.cuda.device_count = refuse
for name in {modules!r}:
    importlib.import_module(name)
"""
    done = run(["-c", code], ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


def test_D7_every_program_takes_the_one_configuration():
    """No program builds Detectron2's bare configuration, which knows none of our keys, or lets unknown keys pass."""
    for path in [*(ROOT / "tools").glob("*.py"), *(ROOT / "datasets").glob("*.py"), *(ROOT / "rfpn").rglob("*.py")]:
        program = not path.is_relative_to(ROOT / "rfpn")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if program and isinstance(node, ast.ImportFrom) and (node.module or "").startswith("detectron2.config"):
                assert "get_cfg" not in {alias.name for alias in node.names}, path
            if isinstance(node, ast.Attribute):
                assert node.attr != "set_new_allowed", path
