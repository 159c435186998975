"""Which records the loaders take, and which they refuse before any batch; see test_build.py for whole sets."""

import copy

import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog

from rfpn.data.build import build_test_loader, build_train_loader, check_datasets
from rfpn.data.panoptic import register_panoptic_folder
from tests.data.test_build import config
from tests.data.tiny_panoptic import mixed_layouts, write_set

pytestmark = pytest.mark.usefixtures("sets")


@pytest.mark.parametrize("filtered, images", [(True, 1), (False, 2)])
def test_all_training_sets_are_taken_with_or_without_pictures_that_show_no_object(tmp_path, filtered, images):
    register_panoptic_folder("other", str(write_set(tmp_path / "other", mixed_layouts())), "train")
    cfg = config()
    cfg.DATASETS.TRAIN = ("tiny", "other")
    cfg.DATALOADER.FILTER_EMPTY_ANNOTATIONS, cfg.SOLVER.IMS_PER_BATCH = filtered, 2 * images
    # each sample of an epoch is another
    epoch = next(iter(build_train_loader(cfg, seed=0)))
    assert len({sample["file_name"] for sample in epoch}) == 2 * images


def register_changed(change) -> None:
    """A loader of one's own: the panoptic set's records with a changed first one, as "faulty"."""
    records = copy.deepcopy(DatasetCatalog.get("tiny"))
    change(records[0])
    DatasetCatalog.register("faulty", lambda: records)
    MetadataCatalog.get("faulty").set(**{**MetadataCatalog.get("tiny").as_dict(), "name": "faulty"})


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda r: r["annotations"][0].update(category_id=3), "MODEL.ROI_HEADS.NUM_CLASSES"),
        (lambda r: r["annotations"][0].pop("bbox"), "photo1.png has no 'bbox'"),
        (lambda r: r.pop("sem_seg_file_name"), "'faulty': 1 of 1 images have no label map"),
    ],
)
def test_records_that_cannot_be_trained_on_are_refused_before_the_first_batch(change, words):
    register_changed(change)
    with pytest.raises(ValueError, match=words):
        build_train_loader(config("faulty"), seed=0)


def test_masks_that_cannot_be_scored_are_refused_before_training():
    register_changed(lambda record: record["annotations"][0]["segmentation"].update(counts=b"0"))
    with pytest.raises(ValueError, match="photo1.png: an RLE mask is damaged"):
        check_datasets(config(test="faulty"))


def test_evaluation_has_pictures_as_they_are_and_as_many_workers_as_are_set():
    cfg = config()
    cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.CROP.ENABLED = 0, True
    (first,), _ = build_test_loader(cfg, "tiny")
    assert first["image"].shape == (3, 48, 64) and first.keys().isdisjoint(("instances", "sem_seg"))
    cfg.DATALOADER.NUM_WORKERS = 3
    assert build_test_loader(cfg, "tiny").num_workers == 3
