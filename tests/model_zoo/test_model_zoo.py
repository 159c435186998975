"""Models of the zoo build, load, and score what their configurations say."""

from pathlib import Path

import pytest
import torch

from rfpn import model_zoo
from rfpn.data.pathfinder.dataset import split_folder, write_split
from rfpn.data.pathfinder.mapper import PathfinderMapper
from rfpn.data.pathfinder.registration import load_pathfinder
from rfpn.data.pathfinder.settings import PathfinderSettings
from rfpn.evaluation.pathfinder import PathfinderEvaluator


def test_names():
    assert {"Pathfinder/hgru15_bptt6_pf14", "Pathfinder/hgru15_crbp20_pf14"} <= set(model_zoo.names())
    with pytest.raises(ValueError, match="no model 'Pathfinder/none' in the zoo, which has Pathfinder/feedforward6_pf20, "):
        model_zoo.get("Pathfinder/none")


@pytest.mark.parametrize("name", model_zoo.names())
def test_every_model_loads_and_says_what_it_scored(name):
    model, cfg = model_zoo.get(name), model_zoo.get_config(name)
    assert not model.training and all(torch.isfinite(p).all() for p in model.parameters())
    assert cfg.OUTPUT_DIR.startswith("./output/") and cfg.TEST.EXPECTED_RESULTS
    # also where there is no GPU
    assert "model" in torch.load(cfg.MODEL.WEIGHTS, weights_only=True)


def test_a_configuration_is_checked_and_of_this_machine(tmp_path, monkeypatch):
    name = "Pathfinder/hgru15_bptt6_pf14"
    cfg = model_zoo.get_config(name)
    assert cfg.MODEL.DEVICE == ("cuda" if torch.cuda.is_available() else "cpu")
    assert cfg.MODEL.WEIGHTS == str(Path(model_zoo.__file__).parent / f"{name}.pth")
    (tmp_path / "Pathfinder").mkdir()
    (tmp_path / "Pathfinder" / "own.pth").touch()
    (tmp_path / "Pathfinder" / "own.yaml").write_text("MODEL: {RECURRENT: {STEPS: 0}}")
    monkeypatch.setattr(model_zoo, "_FOLDER", tmp_path)
    with pytest.raises(ValueError, match="MODEL.RECURRENT.STEPS must be"):
        model_zoo.get_config("Pathfinder/own")


@pytest.mark.parametrize(
    "name, images",
    [("hgru15_bptt6_pf14", 16), ("hgru15_crbp20_pf14", 8), ("hgru15_crbp30_pf20", 6), ("feedforward6_pf20", 12)],
)
def test_a_model_scores_as_expected_on_fresh_images(tmp_path, name, images):
    model, cfg = model_zoo.get(f"Pathfinder/{name}"), model_zoo.get_config(f"Pathfinder/{name}")
    length = int(name[-2:])
    settings = PathfinderSettings(length)
    write_split(tmp_path, settings, "test", images, seed=5, progress=False)
    mapper = PathfinderMapper(cfg, False)
    inputs = [mapper(record) for record in load_pathfinder(str(split_folder(tmp_path, length, "test")))]
    with torch.no_grad():
        outputs = model(inputs)
    evaluator = PathfinderEvaluator("fresh")
    evaluator.process(inputs, outputs)
    _, _, expected, _ = cfg.TEST.EXPECTED_RESULTS[0]
    # some images, one batch, instead of 10,000
    assert abs(evaluator.evaluate()["pathfinder"]["IoU"] - expected) < 0.08
