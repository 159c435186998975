"""The launcher as a user runs it: train, resume, evaluate, two processes, wrong input."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rfpn.data.pathfinder.dataset import write_split
from rfpn.data.pathfinder.settings import PathfinderSettings
from rfpn.data.scenes.dataset import write_scenes
from rfpn.data.scenes.render import SceneOptions

ROOT = Path(__file__).parents[2]
QUICK = ROOT / "configs" / "quick_schedules" / "rfpn_quick.yaml"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
PATHFINDER = ROOT / "configs" / "Pathfinder" / "hgru15_crbp20_pf14.yaml"


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    root = tmp_path_factory.mktemp("datasets")
    options = SceneOptions(height=64, width=64)
    for split, count in (("train", 6), ("val", 2)):
        write_scenes(str(root / "scenes"), split, count, options=options)
    return root


def run(datasets, *arguments, config=QUICK, launcher=()):
    command = [sys.executable, *launcher, str(ROOT / "tools" / "train_net.py"), "--config-file", str(config)]
    environment = {**os.environ, "DETECTRON2_DATASETS": str(datasets), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONWARNINGS"] = "ignore"
    return subprocess.run(command + list(arguments), env=environment, capture_output=True, text=True, timeout=300)


def losses(folder) -> dict[int, float]:
    lines = [json.loads(line) for line in (folder / "metrics.json").read_text().splitlines()]
    return {line["iteration"]: line["total_loss"] for line in lines if "total_loss" in line}


def test_train_resume_evaluate(datasets, tmp_path):
    """D5 and C3 too: resume goes on where the run stopped; a SyncBN config runs on one CPU process."""
    out = tmp_path / "run"
    overrides = ["OUTPUT_DIR", str(out), "MODEL.ROI_MASK_HEAD.NORM", "SyncBN"]
    first = run(datasets, *overrides)
    assert first.returncode == 0, first.stderr[-2000:]
    assert "no GPU found: running on the CPU" in first.stderr
    assert "loss_lipschitz" in first.stdout
    scores = [json.loads(line) for line in (out / "metrics.json").read_text().splitlines()][-1]
    assert 0 <= scores["panoptic_seg/PQ"] <= 100
    assert {"sem_seg/mIoU", "bbox/AP", "segm/AP"} <= scores.keys()
    assert (out / "config.yaml").is_file() and (out / "last_checkpoint").read_text() == "model_final.pth"
    assert not list(out.glob("*.partial*"))

    resumed = run(datasets, "--resume", *overrides, "SOLVER.MAX_ITER", "3")
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    assert "Starting training from iteration 2" in resumed.stdout
    state = torch.load(out / "model_final.pth", weights_only=True)
    assert state["trainer"]["iteration"] == 2

    final = ["--eval-only", "MODEL.WEIGHTS", str(out / "model_final.pth"), *overrides]
    record = (out / "config.yaml").read_text()
    evaluated = run(datasets, *final, "MODEL.RECURRENT.TEST_STEPS", "2")
    assert (out / "config.yaml").read_text() == record and "TEST_STEPS: 2" in (out / "config_eval.yaml").read_text()
    assert evaluated.returncode == 0, evaluated.stderr[-2000:]
    assert re.search(r"loaded (\d+) of \1 tensors; missing 0; unexpected 0; wrong shape 0", evaluated.stdout)
    assert "Task: panoptic_seg" in evaluated.stdout

    expected = run(datasets, *final, "TEST.EXPECTED_RESULTS", "[['panoptic_seg','PQ',99.0,0.1]]")
    assert expected.returncode != 0 and "Result verification failed" in expected.stdout + expected.stderr


def test_D1_evaluation_of_a_feedforward_checkpoint_is_refused(datasets, tmp_path):
    base = ["OUTPUT_DIR", str(tmp_path / "fpn"), "SOLVER.MAX_ITER", "1"]
    fpn = ["MODEL.ROI_MASK_HEAD.NAME", "MaskRCNNConvUpsampleHead", "MODEL.ROI_MASK_HEAD.NORM", ""]
    assert run(datasets, *base, *fpn, "MODEL.ROI_MASK_HEAD.NUM_CONV", "4").returncode == 0
    weights = ["MODEL.WEIGHTS", str(tmp_path / "fpn" / "model_final.pth"), "OUTPUT_DIR", str(tmp_path / "rfpn")]
    refused = run(datasets, "--eval-only", *weights)
    assert refused.returncode == 2
    assert "missing" in refused.stderr and "MODEL.ALLOW_MISSING_WEIGHTS" in refused.stderr
    assert "roi_heads.mask_head" in refused.stderr and "backbone" not in refused.stderr
    assert run(datasets, "--eval-only", *weights, "MODEL.ALLOW_MISSING_WEIGHTS", "True").returncode == 0


def test_two_processes(datasets, tmp_path):
    result = run(datasets, "OUTPUT_DIR", str(tmp_path), "MODEL.ROI_MASK_HEAD.NORM", "SyncBN", launcher=TORCHRUN)
    assert result.returncode == 0, result.stderr[-2000:]
    assert len(losses(tmp_path)) > 0
    assert "Task: panoptic_seg" in result.stdout


def test_pathfinder_on_two_processes(tmp_path):
    """The shipped configuration on its built-in sets, as on several GPUs but small."""
    for split, number in (("train", 8), ("test", 4)):
        write_split(str(tmp_path / "pathfinder"), PathfinderSettings(14), split, number, progress=False)
    overrides = ["SOLVER.IMS_PER_BATCH", "4", "SOLVER.MAX_ITER", "2", "INPUT.PATHFINDER_SIZE", "48"]
    overrides += ["MODEL.RECURRENT.EXTRA_STEPS", "2"]
    overrides += ["MODEL.RECURRENT.STEPS", "2", "MODEL.RECURRENT.NEUMANN_TERMS", "1", "DATALOADER.NUM_WORKERS", "0"]
    out = ["OUTPUT_DIR", str(tmp_path / "out")]
    result = run(tmp_path, *overrides, *out, config=PATHFINDER, launcher=TORCHRUN)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "Task: pathfinder" in result.stdout
    resumed = run(tmp_path, "--resume", *overrides, *out, "SOLVER.MAX_ITER", "3", config=PATHFINDER, launcher=TORCHRUN)
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    assert "Starting training from iteration 2" in resumed.stdout


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["MODEL.WEIGTHS", "x"], "MODEL.WEIGTHS"),
        (["MODEL.WEIGHTS", "/no/such.pkl"], "MODEL.WEIGHTS /no/such.pkl does not exist"),
        (["MODEL.RECURRENT.STEPS", "0"], "MODEL.RECURRENT.STEPS must be at least 1, got 0"),
        (["DATASETS.TRAIN", "('coco_2017_train_panoptic_separated',)"], "missing"),
        (["DATASETS.TRAIN", "('nowhere',)"], "nowhere"),
        (["DATASETS.TRAIN", "('pathfinder_14_train',)"], "14_train is a Pathfinder set, which PanopticFPN cannot read"),
        (
            ["DATASETS.TEST", "('pathfinder_14_test',)", "MODEL.ALLOW_MISSING_WEIGHTS", "True", "--eval-only"],
            "pathfinder_14_test is a Pathfinder set",
        ),
    ],
)
def test_D2_D7_wrong_input_gives_one_line(datasets, tmp_path, arguments, words):
    flags = [word for word in arguments if word.startswith("--")]
    words_of = [word for word in arguments if word not in flags]
    result = run(datasets, *flags, "OUTPUT_DIR", str(tmp_path), *words_of)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert words in line
    assert not list(tmp_path.glob("*.pth"))


def test_a_missing_config_file_is_named(datasets):
    result = run(datasets, config="/no/such.yaml")
    assert result.returncode == 2 and "/no/such.yaml does not exist" in result.stderr
