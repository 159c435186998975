#!/usr/bin/env python3
"""Write docs/configuration.md from rfpn/config.py: every key of this project, its default and its comment.

    python tools/document_config.py

The comment above a key in the source is its description, so a key without one is an error.
"""

import argparse
import ast
import json
from pathlib import Path
from typing import Iterator, NamedTuple

from arguments import output_file
from rfpn.config import get_cfg
from rfpn.programs import one_line_errors

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "rfpn" / "config.py"
TARGET = ROOT / "docs" / "configuration.md"
TABLE = "| key | default | meaning |\n| --- | --- | --- |\n"
INTRODUCTION = """# Configuration

Keys that this project adds to [Detectron2's](https://detectron2.readthedocs.io/en/latest/modules/config.html). They
stand in a YAML file or after a program's options as `KEY VALUE` pairs; an unknown key is an error. The README
[says](../README.md#choose-how-gradients-are-computed) which of them make which gradient method.

This page is made by `python tools/document_config.py` from the comments in `rfpn/config.py`: change those.
"""


class Entry(NamedTuple):
    """A key or a node as the source assigns it: full path, comment above it, whether it is a node."""

    path: str
    comment: str
    is_node: bool


def read_entries(source: str) -> Iterator[Entry]:
    """Yield what ``source`` assigns to paths below ``cfg``, in order.

    Raises:
        ValueError: naming the key that has no comment above it.
    """
    lines = source.splitlines()
    for function in ast.parse(source).body:
        if not isinstance(function, ast.FunctionDef):
            continue
        names = {"cfg": ""}
        for statement in function.body:
            if not isinstance(statement, ast.Assign):
                continue
            target = statement.targets[0]
            if isinstance(target, ast.Name):
                path = _path(statement.value, names)
                if path is not None:
                    names[target.id] = path
            elif (path := _path(target, names)) is not None:
                call = statement.value
                is_node = isinstance(call, ast.Call) and getattr(call.func, "id", None) == "CN"
                comment = _comment(lines, statement.lineno - 1)
                if not comment:
                    raise ValueError(f"{SOURCE.name}, line {statement.lineno}: {path} has no comment above it")
                yield Entry(path, comment, is_node)


def document(source: str, cfg) -> str:
    """The page: one section for each node, one row for each key.

    Args:
        source: text of rfpn/config.py. cfg: what it builds, for the default values.
    """
    headings: dict[str, str] = {}
    rows: dict[str, list[str]] = {}
    for path, comment, is_node in read_entries(source):
        if is_node:
            headings[path] = f"\n## {path}\n\n{comment}\n"
            continue
        node = path.rpartition(".")[0]
        headings.setdefault(node, f"\n## {node}\n")
        meaning = comment.replace("|", "\\|")
        rows.setdefault(node, [TABLE]).append(f"| `{path}` | `{_default(cfg, path)}` | {meaning} |\n")
    return INTRODUCTION + "".join(f"{heading}\n{''.join(rows.get(node, []))}" for node, heading in headings.items())


def _path(node: ast.AST, names: dict[str, str]) -> str | None:
    """Full key of an expression like ``node.LIPSCHITZ.WEIGHT``; None where it does not start at the configuration."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    above = _path(node.value, names)
    return None if above is None else f"{above}.{node.attr}".lstrip(".")


def _comment(lines: list[str], index: int) -> str:
    """The comment lines directly above line ``index``, joined."""
    start = index
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    return " ".join(line.strip().lstrip("#").strip() for line in lines[start:index])


def _default(cfg, path: str) -> str:
    value = cfg
    for name in path.split("."):
        value = value[name]
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


@one_line_errors()
def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=output_file, default=TARGET, help="page to write (default: docs/configuration.md)")
    arguments = parser.parse_args()
    arguments.output.write_text(document(SOURCE.read_text(encoding="utf-8"), get_cfg()), encoding="utf-8")
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
