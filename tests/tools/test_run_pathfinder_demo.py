"""tools/run_pathfinder_demo.py, with few images and iterations."""

import json
import os
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parents[2] / "tools"
PROGRAM = """
import sys, run_pathfinder_demo as demo
from rfpn.modeling import PathfinderNet
demo.IMAGES, demo.PICTURES, sizes = {"train": 8, "test": 10}, 10, []
unroll = PathfinderNet.time_course
PathfinderNet.time_course = lambda model, inputs, *rest: sizes.append(len(inputs)) or unroll(model, inputs, *rest)
# a batch of fewer than the pictures that are drawn
options = ["OUTPUT_DIR", sys.argv[1], "SOLVER.MAX_ITER", "2", "MODEL.PATHFINDER.CHANNELS", "2", "SOLVER.IMS_PER_BATCH", "9"]
demo.main(demo.argument_parser("").parse_args(["--config-file", demo.CONFIG, *options]))
assert sizes[-2:] == [9, 1], sizes
"""


def test_writes_scores_and_pictures(tmp_path):
    output = tmp_path / "demo" / "run"
    # a process of its own: the sets' folder is read from the environment when the package is imported
    paths = os.pathsep.join([str(TOOLS), str(TOOLS.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "DETECTRON2_DATASETS": str(tmp_path / "datasets"), "PYTHONPATH": paths}
    command = [sys.executable, "-c", PROGRAM, str(output)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((output.parent / "metrics.json").read_text())
    assert 0 <= metrics["IoU"] <= 1 and 0.2 < metrics["IoU_every_stroke"] < 0.6 and metrics["seconds"] > 0
    for name in ("contour_growth.png", "joining_steps.png", "timesteps.png", "timesteps.csv", "run/model_final.pth"):
        assert (output.parent / name).stat().st_size > 0
