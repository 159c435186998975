"""tools/arguments.py: arguments that programs share; what the help of the programs says."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from arguments import check_files, output_file, step_list

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.mark.parametrize(
    "text, steps", [("3", [3]), ("1-4", [1, 2, 3, 4]), ("40,1-3, 2,20", [1, 2, 3, 20, 40]), ("5-5", [5])]
)
def test_step_list(text, steps):
    assert step_list(text) == steps


@pytest.mark.parametrize("text", ["", "0", "a", "3-1", "1-", "-3", "1,,2", "1-2-3", "1-99999999999"])
def test_step_list_refuses(text):
    with pytest.raises(argparse.ArgumentTypeError, match="has no steps from 1 to 10000 and ranges, as in 1-10,20,40"):
        step_list(text)


def test_a_file_to_write_can_be_written(tmp_path, monkeypatch):
    there = tmp_path / "there.json"
    there.write_text("")
    assert output_file(str(there)) == there and output_file(str(tmp_path / "new.json")) == tmp_path / "new.json"
    for word in (tmp_path, tmp_path / "none" / "new.json"):
        with pytest.raises(argparse.ArgumentTypeError, match="no file in a folder that exists"):
            output_file(str(word))
    # whoever runs the tests may write everywhere
    for refused, word in ((there, there), (tmp_path, there), (tmp_path, tmp_path / "new.json")):
        monkeypatch.setattr("os.access", lambda path, mode, refused=refused: Path(path) != refused)
        with pytest.raises(argparse.ArgumentTypeError, match="new.json|there.json', or its folder, cannot be written to"):
            output_file(str(word))


def test_files_that_do_not_exist_are_named_with_their_option(tmp_path):
    check_files("--log", [("a", __file__)])
    missing = str(tmp_path / "none.json")
    with pytest.raises(FileNotFoundError, match=f"^--log b={missing}: {missing} does not exist$"):
        check_files("--log", [("a", __file__), ("b", missing)])


@pytest.mark.parametrize("name", ["_a", "$a$", "a|b"])
def test_names_that_figures_or_tables_would_lose_are_refused(name):
    with pytest.raises(ValueError, match=r"^--log .+: names in tables and figures must not begin with _ or hold"):
        check_files("--log", [("a_b", __file__), (name, __file__)])


@pytest.mark.parametrize(
    "program, purpose",
    [
        ("train_net", "Train or evaluate any model"),
        ("evaluate_timesteps", "Score checkpoints at any list"),
        ("run_demo", "The main job in small"),
        ("run_pathfinder_demo", "Pathfinder in small"),
    ],
)
def test_help_of_what_takes_detectron2s_arguments_says_what_it_does(program, purpose):
    command = [sys.executable, TOOLS / f"{program}.py", "--help"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage, text = found.split("\n\n", 1)
    assert usage.startswith("usage:") and text.startswith(purpose)
    assert "KEY VALUE overrides of the configuration come last" in text and "Run on single machine" not in text
