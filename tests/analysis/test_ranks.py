"""Rank correlations, and where there are none."""

import warnings

import numpy as np
import pytest

from rfpn.analysis.ranks import rank_correlation

NAN = float("nan")


def test_pairs_without_a_number_are_left_out():
    first, second = np.array([1.0, NAN, 3.0, 2.0, 9.0]), np.array([10.0, 0.0, 11.0, 30.0, NAN])
    # ranks 1, 3, 2 against 1, 2, 3: 1 − 6·(1 + 1) / (3·8)
    assert rank_correlation(first, second) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "first, second", [([1, 2], [1, 2]), ([1, 2, NAN], [1, 2, 3]), ([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [2, 2, 2])]
)
def test_two_pairs_or_a_constant_have_none(first, second):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(rank_correlation(np.array(first, float), np.array(second, float)))
