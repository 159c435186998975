"""mIoU counts classes and void, and nothing else."""

import numpy as np
import pytest
import torch
from detectron2.data import DatasetCatalog, MetadataCatalog
from PIL import Image

from rfpn.data.images import read_label_map
from rfpn.data.panoptic import register_panoptic_folder
from rfpn.evaluation.semantic import SemanticEvaluator
from tests.data.tiny_panoptic import mixed_layouts, write_set


@pytest.fixture
def evaluator(tmp_path, monkeypatch):
    monkeypatch.setenv("RFPN_DERIVED_DIR", str(tmp_path / "derived"))
    name = f"semantic_{tmp_path.name}"
    register_panoptic_folder(name, str(write_set(tmp_path / "set", mixed_layouts())), "train")
    evaluator = SemanticEvaluator(name, str(tmp_path / "output"))
    evaluator.reset()
    evaluator.records = DatasetCatalog.get(name)
    return evaluator


def score(evaluator, size=(48, 64)):
    evaluator.process(evaluator.records[:1], [{"sem_seg": torch.zeros(3, *size)}])


# 3 counts as void, 4 as another class; 9 has no place in the counts
@pytest.mark.parametrize("value", [3, 4, 9])
def test_a_value_that_is_no_class_is_named(evaluator, value):
    score(evaluator)
    path = evaluator.records[0]["sem_seg_file_name"]
    labels = read_label_map(path)
    labels[0, 0] = value
    Image.fromarray(labels).save(path)
    with pytest.raises(ValueError, match=f"label1.png: has the value {value}, .*NUM_CLASSES is 3"):
        score(evaluator)


def test_label_map_of_another_size_is_named(evaluator):
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(evaluator.records[0]["sem_seg_file_name"])
    with pytest.raises(ValueError, match=r"label1.png: label map \(8, 8\) does not fit the prediction \(48, 64\)"):
        score(evaluator)


def test_a_prediction_of_another_size_is_named_as_such(evaluator):
    with pytest.raises(ValueError, match=r"label map \(48, 64\) does not fit the prediction \(24, 32\); .*sem_seg_postprocess"):
        score(evaluator, (24, 32))


@pytest.mark.parametrize("shape", [(4, 48, 64), (6, 48, 64), (48, 64)])
def test_a_prediction_of_more_classes_is_named(evaluator, shape):
    """A fourth one would count as void."""
    with pytest.raises(ValueError, match="photo1.png: the predicted sem_seg is of shape .* of 3 classes at most"):
        evaluator.process(evaluator.records[:1], [{"sem_seg": torch.zeros(shape)}])


def test_a_missing_prediction_is_named(evaluator):
    words = "photo1.png: the model returned no 'sem_seg', only instances; return it .* override Trainer.build_evaluator"
    with pytest.raises(ValueError, match=words):
        evaluator.process(evaluator.records[:1], [{"instances": None}])


def test_a_missing_label_map_is_named(evaluator):
    evaluator.input_file_to_gt_file = {evaluator.records[0]["file_name"]: "gone.png"}
    with pytest.raises(FileNotFoundError, match="gone.png: no such image"):
        score(evaluator)


def test_things_may_be_missing_in_the_id_map(evaluator, tmp_path):
    """Which is no category."""
    known, name = MetadataCatalog.get(f"semantic_{tmp_path.name}"), f"own_{tmp_path.name}"
    DatasetCatalog.register(name, lambda: evaluator.records)
    ids = {number: place for number, place in known.stuff_dataset_id_to_contiguous_id.items() if place}
    MetadataCatalog.get(name).set(stuff_classes=known.stuff_classes, ignore_label=255, stuff_dataset_id_to_contiguous_id=ids)
    own = SemanticEvaluator(name, str(tmp_path))
    own.reset()
    own.process(evaluator.records[:1], [{"sem_seg": torch.zeros(3, 48, 64)}])
    assert "mIoU" in own.evaluate()["sem_seg"]
