"""The program that scores a checkpoint at many steps."""

import csv
from pathlib import Path

import evaluate_timesteps
import pytest
import torch
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.modeling import build_model

from rfpn.data.pathfinder.dataset import split_folder, write_split
from rfpn.data.pathfinder.registration import register_pathfinder
from rfpn.data.pathfinder.settings import PathfinderSettings
from rfpn.engine.setup import load_cfg

QUICK = Path(__file__).parents[2] / "configs" / "quick_schedules" / "pathfinder_quick.yaml"


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    root = tmp_path_factory.mktemp("datasets")
    settings = PathfinderSettings(6, window=128, padding=14, distractors=2)
    names = []
    for split in ("train", "test"):
        write_split(root, settings, split, 6, progress=False)
        names.append(f"timesteps_{split}")
        register_pathfinder(names[-1], str(split_folder(root, 6, split)))
    yield names
    for name in names:
        DatasetCatalog.remove(name)
        MetadataCatalog.pop(name)


def run(monkeypatch, folder, *arguments, config=("--config-file", str(QUICK))):
    words = ["evaluate_timesteps.py", *config, *arguments]
    monkeypatch.setattr("sys.argv", [*words, "MODEL.DEVICE", "cpu", "OUTPUT_DIR", str(folder)])
    evaluate_timesteps.main(evaluate_timesteps.parse_args())


def save_model(folder, seed):
    """A checkpoint of the quick configuration with its config.yaml beside it."""
    torch.manual_seed(seed)
    cfg = load_cfg(str(QUICK), ["MODEL.DEVICE", "cpu", "MODEL.RECURRENT.STEPS", str(seed + 1)])
    folder.mkdir()
    (folder / "config.yaml").write_text(cfg.dump())
    torch.save({"model": build_model(cfg).state_dict()}, folder / "model_final.pth")
    return folder / "model_final.pth"


def test_two_data_sets_in_one_command(datasets, monkeypatch, tmp_path):
    sets = ["--datasets", ",".join(datasets), "--steps", "1-3,6"]
    run(monkeypatch, tmp_path, *sets, "MODEL.ALLOW_MISSING_WEIGHTS", "True")
    with open(tmp_path / "timesteps" / "timesteps.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2", "3", "6"] * 2
    assert [row["dataset"] for row in rows] == ["timesteps_train"] * 4 + ["timesteps_test"] * 4
    assert all(0 <= float(row["IoU"]) <= 1 for row in rows)
    assert (tmp_path / "timesteps" / "timesteps.png").is_file()


def test_several_models_in_one_figure(datasets, monkeypatch, tmp_path):
    weights = [f"--weights=one={save_model(tmp_path / 'a', 1)}", f"--weights={save_model(tmp_path / 'b', 2)}"]
    sets = ["--datasets", datasets[1], "--steps", "1,2", "--output", str(tmp_path / "out")]
    run(monkeypatch, tmp_path, *weights, *sets, config=())
    with open(tmp_path / "out" / "timesteps.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["step"]) for row in rows] == [("one", "1"), ("one", "2"), ("b", "1"), ("b", "2")]
    assert rows[0]["residual"] == rows[2]["residual"] == "1.0" and rows[1]["residual"] != rows[3]["residual"]
    assert (tmp_path / "out" / "timesteps.png").is_file()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--steps", "0-3"], "--steps takes steps from 1"),
        (["--datasets", "nowhere"], "data set 'nowhere' is not registered"),
        (["DATASETS.TEST", "()"], "DATASETS.TEST is empty"),
        (["--datasets", "timesteps_test,coco_2017_val_panoptic_separated"], "which PathfinderNet cannot read"),
        (["--datasets", "timesteps_test"], "MODEL.ALLOW_MISSING_WEIGHTS"),
        (["--weights", "a=nowhere.pth"], "nowhere.pth does not exist"),
        (["--resume", "--weights", "a=nowhere.pth"], "not those of --weights: give one of the two"),
    ],
)
def test_wrong_input_gives_one_line(datasets, monkeypatch, tmp_path, capsys, arguments, words):
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, tmp_path, *arguments)
    assert end.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert words in line
