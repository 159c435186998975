"""The Pathfinder mapper."""

import logging

import numpy as np
import pytest
import torch
from detectron2.utils import logger as detectron2_logger
from PIL import Image

from rfpn.config import get_cfg
from rfpn.data.pathfinder.mapper import PathfinderMapper


def write_sample(folder, image, target, mode=None):
    record = {"image_id": "0/sample_0"}
    for key, name, picture in (("file_name", "image.png", image), ("sem_seg_file_name", "target.png", target)):
        picture = Image.fromarray(picture)
        (picture.convert(mode) if mode and key == "file_name" else picture).save(folder / name)
        record[key] = str(folder / name)
    return record


def blob(size=40):
    """A bright rectangle off the centre, in image and target."""
    picture = np.zeros((size, size), np.uint8)
    picture[4:12, 6:30] = 255
    return picture


def test_resizes_and_thresholds(tmp_path):
    record = write_sample(tmp_path, blob() // 2, blob())
    result = PathfinderMapper(size=20)(record)
    assert result["image"].shape == (1, 20, 20) and result["image"].dtype == torch.uint8
    assert result["sem_seg"].shape == (20, 20) and result["sem_seg"].dtype == torch.uint8
    assert set(result["sem_seg"].unique().tolist()) == {0, 1}
    assert result["sem_seg"][2:6, 3:15].all() and result["sem_seg"].sum() == 4 * 12
    assert result["image"][0, 3, 5] == 127
    assert result["image_id"] == "0/sample_0"


def test_threshold_is_a_share_of_white(tmp_path):
    target = np.full((8, 8), 60, np.uint8)
    target[0, 0] = 255
    record = write_sample(tmp_path, target, target)
    assert PathfinderMapper(size=8, threshold=0.2)(record)["sem_seg"].all()
    assert PathfinderMapper(size=8, threshold=0.25)(record)["sem_seg"].sum() == 1


def test_files_of_the_right_size_are_untouched(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (20, 20), dtype=np.uint8)
    result = PathfinderMapper(size=20)(write_sample(tmp_path, image, blob(20)))
    np.testing.assert_array_equal(result["image"][0].numpy(), image)


def test_mirrors_image_and_target_together_in_all_four_ways(tmp_path):
    record = write_sample(tmp_path, blob(), blob())
    mapper = PathfinderMapper(size=40, flip=True)
    np.random.seed(0)
    results = [mapper(record) for _ in range(60)]
    assert all(torch.equal(r["image"][0] > 128, r["sem_seg"] == 1) for r in results)
    whole = PathfinderMapper(size=40)(record)["image"]
    mirrored = {whole.flip(axes).numpy().tobytes() for axes in ([], [1], [2], [1, 2])}
    assert len(mirrored) == 4 and {r["image"].numpy().tobytes() for r in results} == mirrored
    np.random.seed(0)
    again = [mapper(record) for _ in range(60)]
    assert all(torch.equal(a["image"], b["image"]) for a, b in zip(results, again))


def test_from_config_flips_in_training_only():
    cfg = get_cfg()
    cfg.INPUT.PATHFINDER_SIZE, cfg.INPUT.PATHFINDER_THRESHOLD = 64, 0.5
    train, test = PathfinderMapper(cfg, True), PathfinderMapper(cfg, False)
    assert (train.size, train.threshold, train.flip, test.flip) == (64, 0.5, True, False)
    cfg.INPUT.RANDOM_FLIP = "none"
    assert not PathfinderMapper(cfg, True).flip


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "LA"])
def test_G2_images_of_other_modes_give_the_same_greys(tmp_path, mode):
    grey = PathfinderMapper(size=40)(write_sample(tmp_path, blob(), blob()))
    other = PathfinderMapper(size=40)(write_sample(tmp_path, blob(), blob(), mode))
    torch.testing.assert_close(grey["image"], other["image"])


def test_G3_truncated_files_are_named(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8)
    record = write_sample(tmp_path, image, blob())
    path = tmp_path / "image.png"
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(ValueError, match="image.png: unreadable"):
        PathfinderMapper(size=20)(record)


def test_targets_that_do_not_fit_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"target.png: target \(30, 30\) does not fit its image \(40, 40\)"):
        PathfinderMapper(size=20)(write_sample(tmp_path, blob(40), blob(30)))
    with pytest.raises(ValueError, match="target.png: target pixels must be 255"):
        PathfinderMapper(size=20)(write_sample(tmp_path, blob(), blob() // 255))


def test_a_target_that_resizing_loses_is_warned_of_once(tmp_path, caplog, monkeypatch):
    target = np.zeros((40, 40), np.uint8)
    record = write_sample(tmp_path, blob(), target)
    monkeypatch.setattr(detectron2_logger, "_LOG_COUNTER", type(detectron2_logger._LOG_COUNTER)())
    with caplog.at_level(logging.WARNING, "rfpn"):
        # a picture may be without target
        assert not PathfinderMapper(size=5)(record)["sem_seg"].any() and not caplog.messages
        target[8, 8] = 255
        record = write_sample(tmp_path, blob(), target)
        assert PathfinderMapper(size=40)(record)["sem_seg"].any() and not caplog.messages
        assert not any(PathfinderMapper(size=5)(record)["sem_seg"].any() for _ in range(2))
    (line,) = caplog.messages
    assert line.endswith("target.png: its target is lost in resizing; set a larger INPUT.PATHFINDER_SIZE than 5")


@pytest.mark.parametrize("options, key", [({"size": 0}, "PATHFINDER_SIZE"), ({"threshold": 1.0}, "PATHFINDER_THRESHOLD")])
def test_unusable_settings_are_named(options, key):
    with pytest.raises(ValueError, match=f"INPUT.{key}"):
        PathfinderMapper(**options)


@pytest.mark.parametrize("level", [2, 51])
def test_targets_too_dark_to_have_a_pixel_are_named(tmp_path, level):
    """Such as numbers of classes or of a palette."""
    with pytest.raises(ValueError, match=f"target.png: target pixels must be 255 .*{level}"):
        PathfinderMapper(size=40)(write_sample(tmp_path, blob(), blob() // 255 * level))


def test_a_picture_that_exif_would_turn_away_from_its_target_is_named(tmp_path):
    record = write_sample(tmp_path, blob(), blob(), "RGB")
    PathfinderMapper(size=40)(record)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(record["file_name"]).save(record["file_name"], exif=exif)
    with pytest.raises(ValueError, match="image.png: its EXIF orientation"):
        PathfinderMapper(size=40)(record)
