"""The program that scores a checkpoint at many steps."""

import csv
import itertools
import runpy
from pathlib import Path

import evaluate_timesteps
import pytest
import torch
import train_net
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.detection_utils import build_augmentation
from detectron2.modeling import build_model
from detectron2.modeling.roi_heads import StandardROIHeads
from detectron2.structures import Instances

from rfpn.data.mapper import PanopticMapper
from rfpn.data.pathfinder.dataset import split_folder, write_split
from rfpn.data.pathfinder.registration import register_pathfinder
from rfpn.data.pathfinder.settings import PathfinderSettings
from rfpn.engine.setup import load_cfg
from tests.analysis.tiny_runs import EVERYTHING, SCENES, write_run

ROOT = Path(__file__).parents[2]
QUICK = ROOT / "configs" / "quick_schedules" / "pathfinder_quick.yaml"


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
    # a set named twice is scored once
    sets = ["--datasets", ",".join([*datasets, datasets[0]]), "--steps", "1-3,6"]
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


@pytest.fixture
def boxes_of_the_truth(monkeypatch):
    """A function of a configuration: any model then detects the objects of its first test set, in turn, so that PQ is not 0."""

    def provide(cfg):
        mapper = PanopticMapper(cfg, True, augmentations=build_augmentation(cfg, False))
        turns = itertools.cycle([mapper(record)["instances"] for record in DatasetCatalog.get(cfg.DATASETS.TEST[0])])

        def boxes(heads, features, proposals):
            (image,), truth = proposals, next(turns)
            assert image.image_size == truth.image_size
            fields = {"pred_boxes": truth.gt_boxes.clone(), "pred_classes": truth.gt_classes, "scores": torch.ones(len(truth))}
            return [Instances(truth.image_size, **fields)]

        monkeypatch.setattr(StandardROIHeads, "_forward_box", boxes)

    return provide


def test_scores_of_a_mask_head_are_those_of_eval_only(scenes, monkeypatch, tmp_path, boxes_of_the_truth):
    folder = write_run(tmp_path / "run", SCENES, *EVERYTHING, "DATASETS.TEST", "('tiny_scenes',)")
    weights = str(folder / "model_final.pth")
    cfg = load_cfg(str(folder / "config.yaml"), ["MODEL.WEIGHTS", weights, "OUTPUT_DIR", str(tmp_path / "eval")])
    boxes_of_the_truth(cfg)
    run(monkeypatch, folder, "--weights", weights, "--steps", "1,2,4", "--output", str(tmp_path / "out"), config=())
    with open(tmp_path / "out" / "timesteps.csv") as file:
        rows = {int(row["step"]): row for row in csv.DictReader(file)}
    assert len({row["PQ"] for row in rows.values()}) == 3 and all(float(row["PQ"]) > 1 for row in rows.values())
    for step, row in rows.items():
        cfg.MODEL.RECURRENT.TEST_STEPS = step
        results = train_net.evaluate(cfg, resume=False)
        expected = {**results["panoptic_seg"], "residual": results["convergence"]["residual"]}
        assert {name: float(row[name]) for name in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("program", ["evaluate_timesteps", "train_net"])
def test_a_job_that_cannot_be_started_gives_one_line(monkeypatch, capsys, program):
    def launch(main, arguments):
        raise OSError("no port is free")

    monkeypatch.setattr("rfpn.engine.launch.launch", launch)
    monkeypatch.setattr("sys.argv", [f"{program}.py"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "tools" / f"{program}.py"), run_name="__main__")
    assert end.value.code == 2 and capsys.readouterr().err == "error: no port is free\n"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--datasets", "nowhere"], "data set 'nowhere' is not registered"),
        (["DATASETS.TEST", "()"], "DATASETS.TEST is empty"),
        (["--datasets", "timesteps_test,coco_2017_val_panoptic_separated"], "which PathfinderNet cannot read"),
        (["--datasets", "timesteps_test"], "MODEL.ALLOW_MISSING_WEIGHTS"),
        (["--weights", "a=nowhere.pth"], "nowhere.pth does not exist"),
        (["--eval-only"], "--eval-only is for tools/train_net.py"),
        (["--resume", "--weights", "a=nowhere.pth"], "not those of --weights: give one of the two"),
    ],
)
def test_wrong_input_gives_one_line(datasets, monkeypatch, tmp_path, capsys, arguments, words):
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, tmp_path, *arguments)
    assert end.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert words in line
