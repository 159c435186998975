"""The seed of a run; test_trainer.py has loaders that are refused."""

import pytest

from rfpn.config import get_cfg
from rfpn.engine.loader import run_seed


@pytest.mark.parametrize("seed", [0, 7])
def test_a_seed_that_is_set_is_the_runs(seed):
    cfg = get_cfg()
    cfg.SEED = seed
    assert run_seed(cfg) == seed


def test_a_negative_seed_is_drawn():
    cfg = get_cfg()
    cfg.SEED = -1
    drawn = {run_seed(cfg) for _ in range(5)}
    assert len(drawn) > 1 and min(drawn) >= 0
