"""Files, functions and lines stay small enough to be read at a glance (CONTRIBUTING.md)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("rfpn", "tools", "datasets", "tests", "examples") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sizes(path):
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert not [number for number, line in enumerate(lines, start=1) if len(line) > 128], "lines of more than 128 characters"
    assert len(lines) <= 300, "a file of more than 300 lines"
    if ROOT / "tests" in path.parents:
        return
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    long = [node.name for node in functions if node.end_lineno - node.lineno >= 60]
    assert not long, f"functions of more than 60 lines: {long}"
