"""Predictions over their images."""

import numpy as np
import pytest
import torch
from detectron2.data import DatasetCatalog, Metadata
from detectron2.modeling import build_model
from detectron2.structures import Boxes, Instances
from PIL import Image

from rfpn.analysis.figures import enlarge
from rfpn.analysis.overlay import SegmentationOverlay, build_overlay, enlargement, model_title
from rfpn.data.images import read_image
from rfpn.data.mapper import PanopticMapper
from rfpn.data.pathfinder.mapper import PathfinderMapper
from rfpn.engine.setup import load_cfg
from tests.analysis.tiny_runs import CONFIGS, CONTOURS, EVERYTHING, SCENES, build


def overlay(config, *overrides):
    cfg, model = build(config, *overrides)
    return build_overlay(model, cfg)


def images(count, shape=(40, 56, 3)):
    return list(np.random.default_rng(0).integers(0, 255, (count, *shape), np.uint8))


def test_inputs_are_those_of_evaluation(scenes, contours):
    for config, mapper, path in ((SCENES, PanopticMapper, scenes), (CONTOURS, PathfinderMapper, contours)):
        ours = overlay(config)
        name = "tiny_scenes" if path is scenes else "tiny_contours"
        expected = mapper(ours.cfg, False)(DatasetCatalog.get(name)[0])
        found = ours.prepare(read_image(str(path), "RGB"))
        torch.testing.assert_close(found["image"], expected["image"])
        sizes = {"height", "width"} if config is SCENES else set()
        assert found.keys() == {"image"} | sizes and all(found[key] == expected[key] for key in sizes)


def test_colours_become_the_greys_of_training(tmp_path):
    paths = [str(tmp_path / f"{name}.png") for name in ("image", "target")]
    (picture,), ours = images(1), overlay(CONTOURS)
    # resized, and of the model's own size
    for side in (40, 32):
        Image.fromarray(picture[:side, :side]).save(paths[0])
        Image.fromarray(np.zeros((side, side), np.uint8)).save(paths[1])
        expected = PathfinderMapper(ours.cfg, False)({"file_name": paths[0], "sem_seg_file_name": paths[1]})["image"]
        torch.testing.assert_close(ours.prepare(read_image(paths[0], "RGB"))["image"], expected, rtol=0, atol=0)


@pytest.mark.parametrize("image_format, channels", [("RGB", 3), ("L", 1), ("YUV-BT.601", 3)])
def test_every_image_format_is_that_of_evaluation(scenes, image_format, channels):
    pixels = ["MODEL.PIXEL_MEAN", [100.0] * channels, "MODEL.PIXEL_STD", [1.0] * channels]
    cfg = load_cfg(str(SCENES), ["MODEL.DEVICE", "cpu", "INPUT.FORMAT", image_format, *pixels])
    expected = PanopticMapper(cfg, False)(DatasetCatalog.get("tiny_scenes")[0])["image"]
    found = SegmentationOverlay(torch.nn.Identity(), cfg).prepare(read_image(str(scenes), "RGB"))["image"]
    assert len(found) == channels and found.dtype in (torch.uint8, torch.float32)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("config", [SCENES, CONTOURS])
def test_the_last_step_is_the_prediction(config):
    ours, batch = overlay(config, *EVERYTHING), images(2)
    steps = ours.cfg.MODEL.RECURRENT.STEPS
    by_step = ours.predict_steps(batch, [1, steps])
    assert ours.recurrent and list(by_step) == [1, steps] and torch.is_grad_enabled()
    drawn = {step: [ours.draw(i, o, 2.0) for i, o in zip(batch, outputs)] for step, outputs in by_step.items()}
    final = [ours.draw(image, output, 2.0) for image, output in zip(batch, ours.predict(batch))]
    np.testing.assert_array_equal(drawn[steps], final)
    assert all(picture.shape == (80, 112, 3) for picture in final)
    assert not np.array_equal(drawn[1], final)


def test_G2_a_grey_image_and_the_same_as_rgb_give_the_same(contours, tmp_path):
    with Image.open(contours) as image:
        image.convert("RGB").save(tmp_path / "rgb.png")
    grey, rgb = (read_image(str(path), "RGB") for path in (contours, tmp_path / "rgb.png"))
    ours = overlay(CONTOURS)
    torch.testing.assert_close(ours.prepare(grey)["image"], ours.prepare(rgb)["image"])


def test_other_models_of_detectron2_are_drawn_too():
    boxes = overlay(SCENES, "MODEL.META_ARCHITECTURE", "GeneralizedRCNN", "MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.0")
    # a grey that resizing leaves as it is: any other pixel was drawn
    image = np.full((40, 56, 3), 120, np.uint8)
    others = [(boxes, "instances")]
    for architecture, key in (("SemanticSegmentor", "sem_seg"), ("ProposalNetwork", "proposals")):
        cfg = load_cfg(str(SCENES), ["MODEL.DEVICE", "cpu", "MODEL.META_ARCHITECTURE", architecture])
        others.append((build_overlay(build_model(cfg), cfg), key))
    for ours, key in others:
        (output,) = ours.predict([image])
        assert key in output and "panoptic_seg" not in output
        picture = ours.draw(image, output, 2.0)
        assert picture.shape == (80, 112, 3) and not np.array_equal(picture, enlarge(image, 2.0))


def test_of_proposals_only_the_surest_are_drawn():
    cfg = load_cfg(str(SCENES), ["MODEL.DEVICE", "cpu", "MODEL.META_ARCHITECTURE", "ProposalNetwork"])
    ours, (image,) = build_overlay(torch.nn.Identity(), cfg), images(1)

    def drawn(count):
        corners = torch.arange(count)[:, None] + torch.tensor([0, 0, 9, 9])
        return ours.draw(image, {"proposals": Instances((40, 56), proposal_boxes=Boxes(corners))})

    assert not np.array_equal(drawn(20), drawn(19)) and np.array_equal(drawn(20), drawn(30))
    assert drawn(0).shape == image.shape


def test_instances_found_on_a_set_without_things_are_void():
    """As in evaluation, with a box head that was trained elsewhere."""
    ours, (image,) = overlay(SCENES), images(1)
    ours.metadata = Metadata(thing_classes=[], stuff_classes=["things", "sky"], stuff_colors=[[0, 0, 0], [0, 0, 255]])
    segments = torch.ones(40, 56, dtype=torch.int32)
    sky = {"id": 1, "isthing": False, "category_id": 1}
    segments[10:20] = 2
    found = ours.draw(image, {"panoptic_seg": (segments, [sky, {"id": 2, "isthing": True, "category_id": 3, "score": 0.9}])})
    void = ours.draw(image, {"panoptic_seg": (segments.masked_fill(segments == 2, 0), [sky])})
    np.testing.assert_array_equal(found, void)


def test_classes_of_an_unknown_data_set_go_by_number():
    ours = overlay(SCENES, "DATASETS.TEST", "('nowhere',)", *EVERYTHING)
    assert ours.metadata.thing_classes == [f"thing {i}" for i in range(5)]
    assert ours.metadata.stuff_classes[1] == "stuff 1"
    (image,) = images(1)
    assert ours.draw(image, ours.predict([image])[0]).shape == image.shape


@pytest.mark.parametrize(
    "config, title",
    [
        ("COCO-PanopticSegmentation/rfpn_R_50_1x.yaml", "R-FPN, C-RBP 20"),
        ("COCO-PanopticSegmentation/rfpn_R_50_1x_bptt.yaml", "R-FPN, BPTT 3"),
        ("COCO-PanopticSegmentation/panoptic_fpn_R_50_1x.yaml", "FPN"),
        ("Pathfinder/hgru15_crbp20_pf14.yaml", "hGRU, C-RBP 20 to 40"),
        ("Pathfinder/hgru15_rbp20_pf14.yaml", "hGRU, RBP 20"),
        ("Pathfinder/conv_lstm15_bptt6_pf14.yaml", "convLSTM, BPTT 6"),
        ("Pathfinder/feedforward6_pf14.yaml", "feedforward, 6 layers"),
    ],
)
def test_models_are_named_by_what_they_are(config, title):
    assert model_title(load_cfg(str(CONFIGS / config), [])) == title


def test_small_images_are_enlarged_and_large_ones_left():
    assert enlargement(np.zeros((160, 200, 3))) == 2.0
    assert enlargement(np.zeros((800, 1000, 3))) == 1.0
    assert enlargement(np.zeros((1, 2048, 3))) == 2.0 and enlargement(np.zeros((1, 9000, 3))) == 1.0


@pytest.mark.parametrize("image", [np.zeros((8, 8), np.uint8), np.zeros((8, 8, 4), np.uint8), np.zeros((8, 8, 3))])
def test_G2_arrays_of_another_form_are_refused(image):
    ours = overlay(CONTOURS)
    with pytest.raises(ValueError, match=r"image must be \(H, W, 3\) uint8"):
        ours.predict([image])
    with pytest.raises(ValueError, match=r"image must be \(H, W, 3\) uint8"):
        ours.predict_steps([image], [1])
