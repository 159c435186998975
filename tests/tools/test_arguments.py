"""tools/arguments.py: arguments that programs share."""

import argparse

import pytest
from arguments import step_list


@pytest.mark.parametrize(
    "text, steps", [("3", [3]), ("1-4", [1, 2, 3, 4]), ("40,1-3, 2,20", [1, 2, 3, 20, 40]), ("5-5", [5])]
)
def test_step_list(text, steps):
    assert step_list(text) == steps


@pytest.mark.parametrize("text", ["", "0", "a", "3-1", "1-", "-3", "1,,2", "1-2-3", "1-99999999999"])
def test_step_list_refuses(text):
    with pytest.raises(argparse.ArgumentTypeError, match="has no steps from 1 to 10000 and ranges, as in 1-10,20,40"):
        step_list(text)
