import json
import subprocess
import sys
from pathlib import Path

import benchmark
import pytest
import torch

from rfpn.analysis import memory

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tools" / "benchmark.py"


def test_table_and_json(tmp_path):
    output = tmp_path / "rows.json"
    command = "pathfinder --device cpu --batch 1 --size 8 --steps 2 --bptt-steps 2 --terms 1 --repeats 1 --output".split()
    result = subprocess.run([sys.executable, PROGRAM, *command, output], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    table = json.loads(output.read_text())
    assert table["torch"] in result.stdout and table["card"] in result.stdout
    assert {row["job"] for row in table["rows"]} == {"pathfinder crbp", "pathfinder bptt"}
    assert all(row["gibibytes"] is None and row["ratio"] > 0 for row in table["rows"])


def _run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *map(str, arguments)])
    benchmark.main()


def _rows(path):
    return {(row["job"], row["method"], row["steps"]): row for row in json.loads(path.read_text())["rows"]}


@pytest.mark.parametrize("world", ["pathfinder", "mask_head"])
def test_memory_of_a_layer(world, tmp_path, monkeypatch, capsys):
    output = tmp_path / "rows.json"
    small = "--device cpu --batch 1 --size 8 --kernel-size 5 --rois 1 --terms 1 --repeats 1 --precision fp32".split()
    several = ["--steps", "2,1-2", "--methods", "rbp,crbp"]
    _run(monkeypatch, "memory", "--world", world, *small, *several, "--output", output)
    rows = _rows(output)
    assert [key[1:] for key in rows] == [("rbp", 1), ("crbp", 1), ("rbp", 2), ("crbp", 2)]
    assert all(row["milliseconds"] > 0 and row["gibibytes"] is None for row in rows.values())
    work = {"pathfinder": "hGRU 5×5, 1 images, 25×8×8, fp32", "mask_head": "mask-head hGRU, 1 RoIs, 256×14×14, fp32"}
    assert json.loads(output.read_text())["work"] == work[world] and "crbp" in capsys.readouterr().out


def test_rows_are_kept_when_a_sweep_is_stopped(tmp_path, monkeypatch):
    output = tmp_path / "rows.json"
    measure_layer, counts = memory.measure_layer, []

    def stop(job, *rest):
        counts.append(job.options["steps"])
        if len(counts) == 3:
            raise KeyboardInterrupt
        if len(counts) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return measure_layer(job, *rest)

    monkeypatch.setattr(memory, "measure_layer", stop)
    small = "--device cpu --batch 1 --size 8 --repeats 1 --methods bptt,rbp".split()
    with pytest.raises(SystemExit, match="130"):
        _run(monkeypatch, "memory", *small, "--steps", "1,2", "--output", output)
    assert {key[1:]: row["outcome"] for key, row in _rows(output).items()} == {
        ("bptt", 1): "measured",
        ("rbp", 1): "out of memory",
    }


def test_memory_of_whole_models(scenes, tmp_path, monkeypatch):
    """A configuration without recurrent layers is measured once, another at every T."""
    quick = ROOT / "configs" / "quick_schedules" / "rfpn_quick.yaml"
    fpn = tmp_path / "fpn.yaml"
    fpn.write_text(f"_BASE_: {quick}\nMODEL:\n  ROI_MASK_HEAD:\n    NAME: MaskRCNNConvUpsampleHead\n    NORM: ''\n")
    seen = []
    train_step = benchmark._train_step

    def note(cfg, batches):
        node = cfg.MODEL.RECURRENT
        step = train_step(cfg, batches)
        seen.append((node.STEPS, node.GRADIENT, node.LIPSCHITZ.WEIGHT > 0, step))
        return step

    monkeypatch.setattr(benchmark, "_train_step", note)
    sets = ["DATASETS.TRAIN", "('tiny_scenes',)", "DATALOADER.NUM_WORKERS", "0", "SOLVER.BASE_LR", "1e-9"]
    small = "--device cpu --steps 2,1-2 --repeats 1 --output".split()
    output = tmp_path / "rows.json"
    _run(monkeypatch, "memory", "--world", "model", *small, output, "--configs", fpn, quick, "--opts", *sets)
    rows = _rows(output)
    keys = [("rfpn_quick", method, steps) for steps in (1, 2) for method in benchmark.METHODS]
    assert list(rows) == [("fpn", "feedforward", None), *keys]
    assert all(row["outcome"] == "measured" for row in rows.values())
    methods = [("bptt", False), ("bptt", False), ("rbp", False), ("rbp", True)]
    assert [one[:3] for one in seen[1:]] == [(steps, *method) for steps in (1, 2) for method in methods]
    checkpointed = [one[3].model.roi_heads.mask_head.recurrent.fast == "off" for one in seen[1:]]
    assert checkpointed == [False, True, False, False] * 2


def test_whole_models_are_measured_as_they_train(scenes, monkeypatch):
    """With the precision, the accumulated batches and the frozen parts of their configurations."""
    quick = ROOT / "configs" / "quick_schedules" / "rfpn_quick.yaml"
    sets = ["DATASETS.TRAIN", "('tiny_scenes',)", "DATASETS.TEST", "('tiny_scenes',)", "DATALOADER.NUM_WORKERS", "0"]
    sets += ["SOLVER.AMP.ENABLED", "True", "SOLVER.AMP.DTYPE", "float16", "SOLVER.ACCUMULATE", "3"]
    sets += ["SOLVER.TRAIN_ONLY", "('roi_heads.mask_head',)"]
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "models", "--device", "cpu", "--configs", str(quick), "--opts", *sets])
    arguments, steps, seen = benchmark.parse_arguments(), [], []
    train_step = benchmark._train_step
    monkeypatch.setattr(benchmark, "_train_step", lambda *given: steps.append(train_step(*given)) or steps[0])
    train, infer = benchmark._model_runs(str(quick), arguments)
    model = steps[0].model
    assert {name.split(".")[1] for name, p in model.named_parameters() if p.requires_grad} == {"mask_head"}
    precision = lambda: torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")  # noqa: E731
    model.register_forward_pre_hook(lambda *_: seen.append((model.training, precision())))
    train()
    assert seen == [(True, torch.float16)] * 3
    infer()
    assert set(seen[3:]) == {(False, torch.float16)}
    arguments.world = "model"
    assert benchmark._work(arguments) == "whole models, batch 2 × 3, float16"


@pytest.mark.parametrize(
    "words, message",
    [
        ("memory --methods bptt,tbptt", "is not a list of bptt"),
        ("memory --steps 1,0", "'1,0' has no steps from 1 to 10000"),
        ("memory --world model", "needs --configs"),
        ("models", "needs --configs"),
        ("pathfinder --device nonsense", "'nonsense' cannot be used"),
        ("pathfinder --terms -1", "'-1' is not a whole number of at least 0"),
        ("pathfinder --output no_such_folder/rows.json", "no file in a folder that exists"),
        ("pathfinder --steps 1,2", "several --steps are for memory"),
    ],
)
def test_wrong_arguments(words, message, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        _run(monkeypatch, *words.split())
    assert end.value.code == 2 and message in capsys.readouterr().err


def test_configurations_of_one_name_are_refused(monkeypatch, capsys):
    """Rows go by it."""
    with pytest.raises(SystemExit):
        _run(monkeypatch, "memory", "--world", "model", "--configs", "a/rfpn.yaml", "b/rfpn.yaml")
    assert "--configs: files of one name" in capsys.readouterr().err
