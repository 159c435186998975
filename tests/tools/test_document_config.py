"""The page of configuration keys."""

import re

import document_config
import pytest
from detectron2.config import get_cfg as detectron2_cfg

from rfpn.config import flatten, get_cfg

SOURCE = document_config.SOURCE.read_text(encoding="utf-8")
EXAMPLE = """
def add(cfg):
    # The model: a | b.
    cfg.MODEL.NEW = CN()
    node = cfg.MODEL.NEW
    size = 3
    # Side in pixels,
    # at least 1.
    node.SIZE = size

    node.PART = CN()
"""


def test_page_is_up_to_date():
    page = document_config.TARGET.read_text(encoding="utf-8")
    assert page == document_config.document(SOURCE, get_cfg()), "run python tools/document_config.py"


def test_every_key_of_the_project_is_documented():
    added = flatten(get_cfg()).keys() - flatten(detectron2_cfg()).keys()
    rows = re.findall(r"^\| `([A-Z0-9_.]+)` \|", document_config.document(SOURCE, get_cfg()), re.MULTILINE)
    assert len(rows) == len(set(rows)) and set(rows) == added


def test_defaults_are_those_that_the_code_sets():
    cfg = get_cfg()
    cfg.MODEL.RECURRENT.STEPS = 7
    cfg.MODEL.RECURRENT.CELL = "λ"
    page = document_config.document(SOURCE, cfg)
    assert "| `MODEL.RECURRENT.STEPS` | `7` |" in page and '| `MODEL.RECURRENT.CELL` | `"λ"` |' in page


def test_comments_of_keys_and_nodes():
    commented = EXAMPLE.replace("    node.PART", "    # Its part.\n    node.PART")
    assert list(document_config.read_entries(commented)) == [
        ("MODEL.NEW", "The model: a | b.", True),
        ("MODEL.NEW.SIZE", "Side in pixels, at least 1.", False),
        ("MODEL.NEW.PART", "Its part.", True),
    ]


def test_key_without_comment_is_named():
    with pytest.raises(ValueError, match="line 11: MODEL.NEW.PART has no comment"):
        list(document_config.read_entries(EXAMPLE))


def test_program_writes_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["document_config.py", "--output", str(tmp_path / "page.md")])
    document_config.main()
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == document_config.document(SOURCE, get_cfg())


def test_a_folder_is_no_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["document_config.py", "--output", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        document_config.main()
    assert end.value.code == 2 and f"--output: {str(tmp_path)!r} is no file in a folder that exists" in capsys.readouterr().err
