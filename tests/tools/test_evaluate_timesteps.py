"""The program that scores a checkpoint at many steps."""

import csv
from pathlib import Path

import evaluate_timesteps
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog

from rfpn.data.pathfinder.dataset import split_folder, write_split
from rfpn.data.pathfinder.registration import register_pathfinder
from rfpn.data.pathfinder.settings import PathfinderSettings

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


def run(monkeypatch, folder, *arguments):
    words = ["evaluate_timesteps.py", "--config-file", str(QUICK), *arguments]
    monkeypatch.setattr("sys.argv", [*words, "MODEL.DEVICE", "cpu", "OUTPUT_DIR", str(folder)])
    evaluate_timesteps.main(evaluate_timesteps.parse_args())


def test_two_data_sets_in_one_command(datasets, monkeypatch, tmp_path):
    sets = ["--datasets", ",".join(datasets), "--steps", "1-3,6"]
    run(monkeypatch, tmp_path, *sets, "MODEL.ALLOW_MISSING_WEIGHTS", "True")
    with open(tmp_path / "timesteps" / "timesteps.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2", "3", "6"] * 2
    assert [row["dataset"] for row in rows] == ["timesteps_train"] * 4 + ["timesteps_test"] * 4
    assert all(0 <= float(row["IoU"]) <= 1 for row in rows)
    assert (tmp_path / "timesteps" / "timesteps.png").is_file()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--steps", "0-3"], "--steps takes steps from 1"),
        (["--datasets", "nowhere"], "nowhere"),
        (["--datasets", "timesteps_test,coco_2017_val_panoptic_separated"], "--datasets must be of one kind"),
        (["--datasets", "timesteps_test"], "MODEL.ALLOW_MISSING_WEIGHTS"),
    ],
)
def test_wrong_input_gives_one_line(datasets, monkeypatch, tmp_path, capsys, arguments, words):
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, tmp_path, *arguments)
    assert end.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert words in line
