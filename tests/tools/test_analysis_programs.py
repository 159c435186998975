"""The programs that look at dynamics, from the command line to their files."""

import csv
import json
import logging
import shutil
from pathlib import Path

import analysis_models
import analyze_contour
import analyze_flood_fill
import analyze_stability
import analyze_state_space
import numpy as np
import pytest
import torch
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.modeling import build_model

from rfpn import model_zoo
from rfpn.data.panoptic import register_panoptic_folder
from rfpn.data.pathfinder.dataset import split_folder, write_split
from rfpn.data.pathfinder.registration import register_pathfinder
from rfpn.data.pathfinder.settings import PathfinderSettings
from rfpn.data.scenes.dataset import CATEGORIES, write_scenes
from rfpn.engine.setup import load_cfg

QUICK = Path(__file__).parents[2] / "configs" / "quick_schedules"
PROGRAMS = {
    "state_space": analyze_state_space,
    "stability": analyze_stability,
    "flood_fill": analyze_flood_fill,
    "contour": analyze_contour,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """--weights arguments by kind; their data sets are registered meanwhile."""
    root = tmp_path_factory.mktemp("analysis")
    write_split(root, PathfinderSettings(6, window=128, padding=14, distractors=2), "test", 6, progress=False)
    register_pathfinder("analysis_contours", str(split_folder(root, 6, "test")))
    write_scenes(root / "scenes", "val", 3, seed=0, workers=1)
    register_panoptic_folder("analysis_scenes", str(root / "scenes"), "val", CATEGORIES)
    yield {
        "pathfinder": [save_model(root / name, "pathfinder_quick.yaml", "analysis_contours", i) for i, name in enumerate("ab")],
        "rfpn": [save_model(root / "r", "rfpn_quick.yaml", "analysis_scenes", 0)],
    }
    for name in ("analysis_contours", "analysis_scenes"):
        DatasetCatalog.remove(name)
        MetadataCatalog.pop(name)


def save_model(folder, config, dataset, seed):
    """A checkpoint with its config.yaml beside it, as training leaves them."""
    torch.manual_seed(seed)
    cfg = load_cfg(str(QUICK / config), ["MODEL.DEVICE", "cpu", "DATASETS.TEST", (dataset,), "OUTPUT_DIR", str(folder)])
    folder.mkdir()
    (folder / "config.yaml").write_text(cfg.dump())
    model = build_model(cfg)
    if hasattr(model, "roi_heads"):
        model.roi_heads.mask_head.predictor.weight.data.normal_(std=1.0)  # masks that change with the state
    else:
        model.readout.bias.data.zero_()  # so that both classes are predicted
    torch.save({"model": model.state_dict()}, folder / "model_final.pth")
    return f"--weights={folder.name}={folder / 'model_final.pth'}"


@pytest.fixture(autouse=True)
def no_log_outlives_its_test():
    yield
    for library in ("rfpn", "fvcore"):
        logging.getLogger(library).handlers.clear()


def run(job, *arguments):
    PROGRAMS[job].main(PROGRAMS[job].parse_args([str(a) for a in arguments]))


def rows(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def test_state_space_of_two_models(models, tmp_path, capsys):
    """N is 6: four steps, and up to two more drawn in training."""
    run("state_space", *models["pathfinder"], "--output", tmp_path)
    table = rows(tmp_path / "state_space.csv")
    found = [(row["model"], row["samples"], row["N"], row["T"]) for row in table]
    assert found == [("a", "6", "6", "12"), ("b", "6", "6", "12")]
    (pair,) = rows(tmp_path / "state_space_pairs.csv")
    assert (pair["first"], pair["second"]) == ("a", "b") and 0 <= float(pair["p"]) <= 1
    assert float(pair["mu_first"]) == float(table[0]["mu_after"])
    with np.load(tmp_path / "state_space.npz") as states:
        assert states["a"].shape == (6, 12, 8)
    assert (tmp_path / "state_space.png").is_file() and "mu_after" in capsys.readouterr().out


def test_mask_heads_have_a_state_space_of_rois(models, tmp_path):
    run("state_space", *models["rfpn"], "--output", tmp_path, "--steps", 5, "--images", 2)
    (row,) = rows(tmp_path / "state_space.csv")
    assert int(row["samples"]) > 2 and (row["N"], row["T"]) == ("2", "5")
    assert not (tmp_path / "state_space_pairs.csv").exists()


@pytest.mark.parametrize("kind, images, count", [("pathfinder", 1, 2), ("rfpn", 1, 1)])
def test_stability(models, tmp_path, kind, images, count):
    run("stability", *models[kind], "--output", tmp_path, "--images", images, "--rois", 1)
    table = rows(tmp_path / "stability.csv")
    assert len(table) == count
    for row in table:
        assert 0 < float(row["spectral_radius"]) <= float(row["singular_value"]) * 1.001
    summary = json.loads((tmp_path / "stability.json").read_text())
    assert sum(model["samples"] for model in summary.values()) == count
    assert (tmp_path / "stability.png").is_file()


@pytest.mark.parametrize("boxes", ["truth", "predicted"])
def test_flood_fill_of_mask_heads(models, tmp_path, boxes, capsys):
    arguments = [*models["rfpn"], "--output", tmp_path, "--boxes", boxes, "--steps", 6]
    if boxes == "predicted":  # an untrained model's boxes meet no object
        with pytest.raises(SystemExit):
            run("flood_fill", *arguments)
        assert "large enough to tessellate" in capsys.readouterr().err
        return
    run("flood_fill", *arguments)
    table = rows(tmp_path / "flood_fill.csv")
    assert {row["image"] for row in table} == {"0", "1", "2"} and {row["model"] for row in table} == {"r"}
    assert all(0 <= float(row["reached"]) <= 1 and int(row["cells"]) >= 5 for row in table)
    summary = json.loads((tmp_path / "flood_fill.json").read_text())["r"]
    assert summary["objects"] == len(table)
    assert (tmp_path / "flood_fill.png").is_file() and (tmp_path / "flood_fill_scores.png").is_file()


def test_flood_fill_of_contours(models, tmp_path):
    run("flood_fill", *models["pathfinder"], "--output", tmp_path, "--bridge", 2, "--cells", 6, "INPUT.PATHFINDER_SIZE", 96)
    assert {row["class"] for row in rows(tmp_path / "flood_fill.csv")} == {"target"}


def test_contour_heat_maps(models, tmp_path):
    run("contour", *models["pathfinder"], "--output", tmp_path, "--images", 2, "--steps", 3)
    table = rows(tmp_path / "contour.csv")
    assert [(row["model"], row["image"], row["step"]) for row in table[:4]] == [
        ("a", "0", "1"), ("a", "0", "2"), ("a", "0", "3"), ("a", "1", "1"),
    ]
    assert sum(int(row["joined_target"]) + int(row["joined_elsewhere"]) for row in table) > 0
    assert {path.name for path in tmp_path.glob("*.png")} == {"contour.png", "growth_a.png", "growth_b.png"}


def changed(weights: str, folder: Path, old: str, new: str) -> str:
    """The same model, from a copy of its run whose configuration has ``new`` in place of ``old``, by the folder's name."""
    shutil.copytree(Path(weights.partition("=")[2].partition("=")[2]).parent, folder)
    config = (folder / "config.yaml").read_text()
    assert old in config
    (folder / "config.yaml").write_text(config.replace(old, new))
    return f"--weights={folder.name}={folder / 'model_final.pth'}"


def test_contours_of_models_with_different_batches(models, tmp_path):
    """Five images are more than a batch of one model and fewer than one of the other."""
    a, b = models["pathfinder"]
    both = [a, changed(b, tmp_path / "larger", "IMS_PER_BATCH: 4", "IMS_PER_BATCH: 8")]
    for weights in (both, both[::-1]):
        run("contour", *weights, "--output", tmp_path / "out", "--images", 5, "--steps", 1)
        table = rows(tmp_path / "out" / "contour.csv")
        for name in ("a", "larger"):
            assert [row["image"] for row in table if row["model"] == name] == list("01234")


def test_contours_of_models_with_different_sizes_are_refused(models, tmp_path, capsys):
    """One picture could not show both in the places of its images."""
    a, b = models["pathfinder"]
    other = changed(b, tmp_path / "other", "PATHFINDER_SIZE: 32", "PATHFINDER_SIZE: 48")
    arguments = [a, other, "--output", tmp_path / "out", "--images", 1, "--steps", 1]
    with pytest.raises(SystemExit):
        run("contour", *arguments)
    assert "not [32, 48] pixels: set INPUT.PATHFINDER_SIZE for all" in capsys.readouterr().err
    run("contour", *arguments, "INPUT.PATHFINDER_SIZE", 32)


def test_models_of_the_zoo_are_read_with_their_own_configurations(models, tmp_path):
    configs = map(model_zoo.get_config, model_zoo.names())
    trained = [Path(cfg.MODEL.WEIGHTS) for cfg in configs if cfg.MODEL.PATHFINDER.LAYER == "recurrent"]
    weights = [f"{path.stem}={path}" for path in trained]
    arguments = [word for text in weights for word in ("--weights", text)]
    overrides = ["INPUT.PATHFINDER_SIZE", 32, "MODEL.DEVICE", "cpu", "DATALOADER.NUM_WORKERS", 0]
    options = ["--output", tmp_path, "--dataset", "analysis_contours", "--images", 1, "--steps", 2]
    run("contour", *arguments, *options, *overrides)
    assert {row["model"] for row in rows(tmp_path / "contour.csv")} == {path.stem for path in trained}


@pytest.mark.parametrize(
    "job, arguments, words",
    [
        ("state_space", ["--steps", 4], "--steps must be more than the 6 steps of training"),
        ("state_space", ["--components", -1], "'-1' is not a whole number of at least 0"),
        ("state_space", ["--images", -1], "'-1' is not a whole number of at least 0"),
        ("flood_fill", ["--images", -1], "'-1' is not a whole number of at least 0"),
        ("state_space", ["--sample", -300], "'-300' is not a whole number of at least 0"),
        ("state_space", ["--sample", 6], "--sample must be below 6, the number of samples of a, got 6"),
        ("stability", ["--dataset", "analysis_scenes"], "is no Pathfinder set, which PathfinderNet cannot read"),
        ("contour", ["--steps", -3], "'-3' is not a whole number of at least 1"),
        ("stability", ["--steps", 0], "'0' is not a whole number of at least 1"),
        ("stability", ["--images", 0], "'0' is not a whole number of at least 1"),
        ("stability", ["--rois", 0], "'0' is not a whole number of at least 1"),
        ("flood_fill", ["--threshold", 2], "--threshold must lie in (0, 1)"),
        ("contour", ["--images", 0], "'0' is not a whole number of at least 1"),
        ("contour", ["--dataset", "nowhere"], "'nowhere' is not registered"),
        ("contour", ["--weights", "a=nowhere.pth"], "two models are named 'a'"),
        ("contour", ["--weights", "c=nowhere.pth"], "nowhere.pth is no file"),
        ("contour", ["--weights", f"c={__file__}"], "no config.yaml beside it"),
        ("contour", ["--weights", "c/d=nowhere.pth"], "a name must not be empty or hold '/'"),
    ],
)
def test_wrong_input_gives_one_line(models, tmp_path, capsys, job, arguments, words):
    with pytest.raises(SystemExit) as end:
        run(job, *models["pathfinder"], "--output", tmp_path, *arguments)
    assert end.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert words in line


def test_names_that_figures_would_lose_are_refused_early(models, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run("contour", models["pathfinder"][0].replace("=a=", "=_a="), "--output", tmp_path)
    assert "--weights _a: names in tables and figures must not begin with _" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["file", "allow_pickle"])
def test_names_that_the_archive_cannot_hold_are_refused_early(models, tmp_path, capsys, monkeypatch, name):
    monkeypatch.setattr(analyze_state_space, "load_models", lambda configs: pytest.fail("a model is built"))
    with pytest.raises(SystemExit):
        run("state_space", models["pathfinder"][0].replace("=a=", f"={name}="), "--output", tmp_path)
    assert f"no model may be named {name!r}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "job, kind, options, file",
    [
        ("stability", "pathfinder", ["--images", 1, "--steps", 1], "stability.csv"),
        ("flood_fill", "rfpn", ["--images", 1, "--steps", 1], "flood_fill.json"),
        ("contour", "pathfinder", ["--images", 1, "--steps", 1], "contour.png"),
        ("state_space", "rfpn", ["--images", 1], "state_space.csv"),
    ],
)
def test_an_output_that_cannot_be_written_is_named(models, tmp_path, capsys, job, kind, options, file):
    (tmp_path / file).mkdir()
    with pytest.raises(SystemExit) as end:
        run(job, *models[kind], "--output", tmp_path, *options)
    assert end.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert str(tmp_path / file) in line


def test_models_that_cannot_be_looked_at(models, tmp_path, capsys):
    feedforward = ["MODEL.PATHFINDER.LAYER", "feedforward", "MODEL.RECURRENT.LIPSCHITZ.WEIGHT", 0.0]
    for job, arguments, overrides, words in (
        ("contour", models["rfpn"], [], "no Pathfinder model"),
        ("flood_fill", [*models["rfpn"], "--dataset", "analysis_contours"], [], "is a Pathfinder set, which PanopticFPN"),
        ("contour", [], [], "give --weights"),
        ("stability", models["pathfinder"], feedforward, "a has no recurrent layer"),
        ("flood_fill", models["rfpn"], ["MODEL.ROI_MASK_HEAD.NAME", "MaskRCNNConvUpsampleHead"], "r has no recurrent layer"),
    ):
        with pytest.raises(SystemExit):
            run(job, *arguments, "--output", tmp_path, *overrides)
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "job, options, words",
    [
        ("contour", ["--dataset", "analysis_contours"], "r is no Pathfinder model"),
        ("flood_fill", ["--dataset", "analysis_contours"], "is a Pathfinder set, which PanopticFPN cannot read"),
        # missing, or of other classes than the model's
        ("flood_fill", [], "dsb2018_panoptic_val"),
    ],
)
def test_a_misfit_of_the_last_model_is_found_before_any_is_built(models, tmp_path, capsys, monkeypatch, job, options, words):
    monkeypatch.setattr(PROGRAMS[job], "load_models", lambda configs: pytest.fail("a model is built"))
    last = save_model(tmp_path / "r", "rfpn_quick.yaml", "dsb2018_panoptic_val", 0)
    with pytest.raises(SystemExit):
        run(job, models["pathfinder"][0], last, "--output", tmp_path, *options)
    assert words in capsys.readouterr().err


def test_results_are_whole_files_with_null_for_what_is_not_finite(tmp_path):
    analysis_models.write_results(tmp_path, "job", [{"a": 1}], {"m": {"x": float("nan"), "y": [float("inf"), 2.0]}})
    before = {path: path.read_text() for path in tmp_path.iterdir()}
    assert json.loads(before[tmp_path / "job.json"]) == {"m": {"x": None, "y": [None, 2.0]}}
    assert before[tmp_path / "job.csv"].split() == ["a", "1"]

    class Unwritable:
        def __str__(self):
            raise ValueError("no text")

    with pytest.raises(ValueError, match="no text"):
        analysis_models.write_csv(tmp_path / "job.csv", [{"a": 2}, {"a": Unwritable()}])
    with pytest.raises(TypeError):
        analysis_models.write_results(tmp_path, "job", [{"a": 1}], {"m": {"x": 1.0, "y": {1}}})
    assert {path: path.read_text() for path in tmp_path.iterdir()} == before
