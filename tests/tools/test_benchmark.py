import json
import subprocess
import sys
from pathlib import Path

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


def test_models_without_configurations():
    result = subprocess.run([sys.executable, PROGRAM, "models"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2 and "models needs --configs" in result.stderr
