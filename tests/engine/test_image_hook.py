"""Pictures of predictions among what a run logs."""

import numpy as np
import pytest
from detectron2.utils.events import EventStorage
from torch import nn

from rfpn.engine.image_hook import PredictionImages
from tests.analysis.tiny_runs import CONTOURS, SCENES, build

pytestmark = pytest.mark.usefixtures("scenes", "contours")


class Trainer:
    """What a hook knows of its trainer."""

    def __init__(self, model: nn.Module, max_iter: int):
        self.model = model
        self.max_iter = max_iter


def logged(config, *overrides, iterations=4, max_iter=None):
    """Names, shapes and iterations of the pictures of a run that trains nothing."""
    cfg, model = build(config, *overrides)
    hook = PredictionImages(cfg)
    hook.trainer = Trainer(model.train(), max_iter or iterations)
    with EventStorage() as storage:
        for hook.trainer.iter in range(iterations):
            storage.iter = hook.trainer.iter
            hook.after_step()
        hook.after_train()
        assert model.training
        return [(name, tuple(picture.shape), iteration) for name, picture, iteration in storage._vis_data]


@pytest.mark.parametrize("config, dataset", [(SCENES, "tiny_scenes"), (CONTOURS, "tiny_contours")])
def test_pictures_come_with_every_evaluation(config, dataset):
    options = ["TEST.LOG_IMAGES", "2", "TEST.EVAL_PERIOD", "2", "DATASETS.TEST", f"('{dataset}',)"]
    found = logged(config, *options)
    assert [iteration for _, _, iteration in found] == [1, 1, 3, 3]
    assert all(name.startswith(f"{dataset}/") for name, _, _ in found) and len({name for name, _, _ in found}) == 2
    assert all(shape[0] == 3 and shape[2] > 3 * 320 for _, shape, _ in found)


def test_they_are_off_by_default():
    assert logged(SCENES, "TEST.EVAL_PERIOD", "1", "DATASETS.TEST", "('tiny_scenes',)") == []


@pytest.mark.parametrize("max_iter, pictures", [(2, 1), (4, 0)])
def test_a_run_that_failed_ends_without_pictures(max_iter, pictures):
    options = ["TEST.LOG_IMAGES", "1", "TEST.EVAL_PERIOD", "0", "DATASETS.TEST", "('tiny_contours',)"]
    assert len(logged(CONTOURS, *options, iterations=2, max_iter=max_iter)) == pictures


def test_looking_leaves_training_as_it_was():
    """Numpy's random numbers, by which images are augmented, go on as without pictures."""
    np.random.seed(1)
    logged(SCENES, "TEST.LOG_IMAGES", "1", "DATASETS.TEST", "('tiny_scenes',)", iterations=1)
    with_pictures = np.random.rand()
    np.random.seed(1)
    assert np.random.rand() == with_pictures
