"""Who may import whom, read from the sources, and what works without Detectron2."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rfpn"
# part of the package -> the other parts it may import
ALLOWED = {
    "fixed_point": set(),
    "layers": {"fixed_point"},
    "modeling": {"fixed_point", "layers"},
    "data": set(),
    "evaluation": {"data", "fixed_point"},
    "config": {"data", "modeling"},
    "programs": set(),
    "analysis": {"config", "data", "evaluation", "fixed_point", "layers", "modeling"},
    "engine": {"analysis", "config", "data", "evaluation", "fixed_point", "layers", "modeling"},
    "model_zoo": {"engine", "modeling"},
}
THIRD_PARTY = {"fixed_point": {"torch"}, "layers": {"torch", "triton"}}
FILES = sorted(PACKAGE.rglob("*.py"))


def part(path: Path) -> str:
    """The part a file belongs to: its folder under rfpn, or its own name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Full names of all modules that a file imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            # `from rfpn import data` names a part as well
            names |= {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "rfpn" else {node.module}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path):
    names = imported(path)
    if path == PACKAGE / "__init__.py":
        assert not names, f"rfpn/__init__.py must import nothing, has {sorted(names)}"
        return
    own = part(path)
    assert own in ALLOWED, f"{path}: rfpn/{own} has no place in the import order; add it to this test"
    used = {name.split(".")[1] for name in names if name.startswith("rfpn.")}
    assert used <= ALLOWED[own] | {own}, f"{path}: rfpn.{own} must not import {sorted(used - ALLOWED[own] - {own})}"
    assert "rfpn" not in names, f"{path}: import the part that is needed, not rfpn"
    if own in THIRD_PARTY:
        foreign = {name.split(".")[0] for name in names} - {"rfpn"} - sys.stdlib_module_names
        assert foreign <= THIRD_PARTY[own], f"{path}: rfpn.{own} must not need {sorted(foreign - THIRD_PARTY[own])}"


def test_nothing_imports_scripts_or_tests():
    for path in FILES:
        assert not {name.split(".")[0] for name in imported(path)} & {"tools", "datasets", "tests", "examples"}, path


WITHOUT_DETECTRON2 = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"detectron2", "fvcore", "iopath", "panopticapi", "pycocotools", "cv2"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
import torch
from rfpn.analysis.jacobian import sample_stability
from rfpn.layers import GALAHGRUCell, RecurrentLayer

layer, drive = RecurrentLayer(GALAHGRUCell(32), 3, lipschitz=True), torch.rand(2, 32, 7, 7)
output = layer(drive)
(output.hidden.sum() + output.penalty).backward()
assert sample_stability(layer, drive, output.hidden.detach(), 1).spectral_radius > 0
assert not torch.cuda.is_initialized()
"""


def test_layers_work_without_detectron2():
    done = subprocess.run([sys.executable, "-c", WITHOUT_DETECTRON2], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, rfpn; sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'detectron2')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_importing_the_layers_does_not_load_the_compiler():
    """Which takes as long as PyTorch itself."""
    loaded = "'torch._dynamo' in sys.modules"
    code = f"import sys, torch; before = {loaded}; import rfpn.layers; sys.exit({loaded} and not before)"
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT).returncode == 0
