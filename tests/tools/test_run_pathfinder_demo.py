"""tools/run_pathfinder_demo.py, with few images and iterations."""

import json

import run_pathfinder_demo
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.engine import default_argument_parser

from rfpn.data.pathfinder import registration


def test_writes_scores_and_pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path / "datasets"))
    # names were registered under another root when the package was imported
    for split in registration.SPLITS:
        for registered in (DatasetCatalog, MetadataCatalog, registration._registered):
            monkeypatch.delitem(registered, f"pathfinder_easy_{split}", raising=False)
    registration.register_builtin_pathfinder(str(tmp_path / "datasets"))
    monkeypatch.setattr(run_pathfinder_demo, "IMAGES", {"train": 8, "test": 8})
    output = tmp_path / "demo" / "run"
    options = ["OUTPUT_DIR", str(output), "SOLVER.MAX_ITER", "2", "MODEL.PATHFINDER.CHANNELS", "2"]
    arguments = ["--config-file", run_pathfinder_demo.CONFIG, *options]
    run_pathfinder_demo.main(default_argument_parser().parse_args(arguments))
    metrics = json.loads((output.parent / "metrics.json").read_text())
    assert 0 <= metrics["IoU"] <= 1 and 0.2 < metrics["IoU_every_stroke"] < 0.6 and metrics["seconds"] > 0
    for name in ("contour_growth.png", "joining_steps.png", "timesteps.png", "timesteps.csv", "run/model_final.pth"):
        assert (output.parent / name).stat().st_size > 0
