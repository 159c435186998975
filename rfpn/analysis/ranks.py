"""Spearman's rank correlation where it may not exist."""

import numpy as np
from scipy.stats import spearmanr


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Correlation of the ranks of two sets of numbers (n,), pairs with a NaN left out.

    NaN where fewer than three pairs are left, or one set is constant.
    """
    known = ~(np.isnan(first) | np.isnan(second))
    first, second = first[known], second[known]
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(spearmanr(first, second).statistic)
