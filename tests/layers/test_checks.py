"""Rules that settings obey."""

import math

import numpy as np
import pytest
import torch

from rfpn.layers import ConvLSTMCell, GALAHGRUCell, HGRUCell, RecurrentLayer
from rfpn.layers.checks import Range, check_setting


@pytest.mark.parametrize(
    "value, rule",
    [
        (1, Range(1, 3)),
        (3, Range(1, 3)),
        (math.inf, Range(0, math.inf)),
        (0.99, Range(0, 1, below=True)),
        ("a", ("a",)),
        (np.int64(2), Range(1, 3, whole=True)),
    ],
)
def test_admitted(value, rule):
    check_setting("KEY", value, rule)


@pytest.mark.parametrize(
    "value, rule, words",
    [
        (0, Range(1, 3), "at least 1, got 0"),
        (4, Range(1, 3), "at most 3, got 4"),
        (math.nan, Range(1, 3), "at least 1, got nan"),
        (1, Range(0, 1, below=True), r"in \[0, 1\), got 1"),
        (math.nan, Range(0, 1, below=True), r"in \[0, 1\), got nan"),
        (2.0, Range(1, 3, whole=True), "a whole number, got 2.0"),
        (True, Range(1, 3, whole=True), "a whole number, got True"),
        ("2", Range(1, 3), "a number, got '2'"),
        (None, Range(1, 3), "a number, got None"),
        ("c", ("a", "b"), "one of a, b, got 'c'"),
    ],
)
def test_refused_by_name(value, rule, words):
    with pytest.raises(ValueError, match=f"KEY must .*{words}"):
        check_setting("KEY", value, rule)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: ConvLSTMCell(3, 3)(torch.rand(2, 4, 5, 5), torch.rand(2, 6, 5, 5)), r"of 3 .* a state \(N, 6, H, W\)"),
        (lambda: ConvLSTMCell(3, 3)(torch.rand(3, 5, 5), torch.rand(2, 6, 5, 5)), "convLSTM of 3 channels needs a drive"),
        (lambda: GALAHGRUCell(64, gate_reduction=2.0), "GALA gate reduction must be a whole number"),
        (lambda: GALAHGRUCell(64, groups=2.0), "hGRU norm groups must be a whole number"),
        (lambda: RecurrentLayer(HGRUCell(3, 3), 2)(np.zeros((2, 3, 5, 5))), "needs a floating-point drive .* got ndarray"),
        (lambda: next(RecurrentLayer(HGRUCell(3, 3), 2).unroll(torch.zeros(2, 3, 5, 5).long(), 1)), "floating-point drive"),
    ],
)
def test_wrong_drives_and_sizes_are_refused_in_the_projects_words(make, words):
    with pytest.raises(ValueError, match=words):
        make()
