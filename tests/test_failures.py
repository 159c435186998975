"""docs/failures.md: every known failure with tests that exist and bear its id."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "failures.md").read_text(encoding="utf-8")
IDS = (
    "A1 A2 A3 A4 A6 A8 A9 A10 A12 B1 B2 B3 B4 B7 B8 B9 C1 C2 C3 C4 C5 C6 C7 C9 C11 "
    "D1 D2 D3 D5 D7 E1 E2 E3 E4 E6 E7 E8 E10 E11 F1 F2 F3 F4 F5 F6 G2 G3 G4"
).split()
ROWS = {row[1]: row[0] for row in re.finditer(r"^\| ([A-G]\d+) \|.*\|$", PAGE, re.MULTILINE)}


def test_the_page_lists_every_id_once():
    assert len(IDS) == 48
    assert re.findall(r"^\| ([A-G]\d+) \|", PAGE, re.MULTILINE) == IDS


@pytest.mark.parametrize("failure", IDS)
def test_the_named_tests_exist_and_one_bears_the_id(failure):
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", ROWS[failure])
    assert named
    for file, function in named:
        assert re.search(rf"^def {function}\(", (TESTS / file).read_text(encoding="utf-8"), re.MULTILINE), (file, function)
    assert any(f"_{failure}_" in function for _, function in named)
