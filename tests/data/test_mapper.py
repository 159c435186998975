import numpy as np
import pytest
import torch
from detectron2.data import DatasetCatalog
from detectron2.data import transforms as T
from detectron2.modeling import build_model
from detectron2.structures import BitMasks, PolygonMasks
from detectron2.utils.events import EventStorage
from PIL import Image

from rfpn.config import get_cfg
from rfpn.data.mapper import PanopticMapper
from rfpn.data.panoptic import register_panoptic_folder
from tests.data.tiny_panoptic import mixed_layouts, write_set

pytestmark = pytest.mark.usefixtures("catalogs")


@pytest.fixture
def records(catalogs, tmp_path):
    """One image with two things, one without."""
    register_panoptic_folder("tiny", str(write_set(tmp_path / "set", mixed_layouts())), "train")
    return DatasetCatalog.get("tiny")


def mapper(is_train=True, augmentations=(), mask_format="bitmask", **options):
    return PanopticMapper(
        is_train,
        augmentations=list(augmentations),
        image_format="BGR",
        use_instance_mask=True,
        instance_mask_format=mask_format,
        **{"sem_seg_classes": 3, **options},
    )


def test_training_record(records):
    out = mapper()(records[0])
    assert out["image"].shape == (3, 48, 64) and out["sem_seg"].shape == (48, 64)
    assert out["sem_seg"].dtype == torch.int64 and set(out["sem_seg"].unique().tolist()) == {0, 1, 2, 255}
    assert out["instances"].gt_classes.tolist() == [1, 2]
    np.testing.assert_array_equal(out["instances"].gt_masks.tensor.sum((1, 2)), [400, 520])
    assert "annotations" in records[0], "the record itself must stay whole"


def test_inference_record_has_no_truth(records):
    out = mapper(is_train=False)(records[0])
    assert set(out) == {"file_name", "image_id", "height", "width", "image"}


def test_labels_are_those_of_the_configuration():
    cfg = get_cfg()
    cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES, cfg.MODEL.SEM_SEG_HEAD.IGNORE_VALUE = 7, 254
    made = PanopticMapper(cfg)
    assert (made.sem_seg_classes, made.ignore_label) == (7, 254)


def test_A3_value_beyond_the_classes_is_named(records):
    path = records[0]["sem_seg_file_name"]
    with pytest.raises(ValueError, match=r"label1.png: has the value 2, .*NUM_CLASSES is 2"):
        mapper(sem_seg_classes=2)(records[0])
    labels = np.array(Image.open(path))
    labels[0, 0] = 200
    Image.fromarray(labels).save(path)
    with pytest.raises(ValueError, match=r"label1.png: has the value 200, .*NUM_CLASSES is 3"):
        mapper()(records[0])


def test_A3_class_of_an_instance_is_checked(records):
    with pytest.raises(ValueError, match="photo1.png: has an instance of class 2, but MODEL.ROI_HEADS.NUM_CLASSES is 2"):
        mapper(thing_classes=2)(records[0])
    assert len(mapper(thing_classes=3)(records[0])["instances"]) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"segmentation": {"size": [48, 64], "counts": b"0"}},
        {"segmentation": {"size": [64, 48], "counts": b"0`00"}},
        {"segmentation": 5},
        {"bbox": [1, 2]},
        {"bbox_mode": None},
        {"category_id": None},
    ],
)
def test_damaged_instances_are_named(records, change):
    records[0]["annotations"][0].update(change)
    with pytest.raises(ValueError, match="photo1.png"):
        mapper()(records[0])


def test_label_map_of_another_size_is_named(records):
    Image.new("L", (8, 8)).save(records[0]["sem_seg_file_name"])
    with pytest.raises(ValueError, match="label1.png"):
        mapper()(records[0])


def test_G3_truncated_picture_is_named(records, tmp_path):
    path = tmp_path / "set/train/photo1.png"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ValueError, match="photo1.png"):
        mapper()(records[0])


@pytest.mark.parametrize("mask_format", ["bitmask", "polygon"])
def test_A10_image_without_instances_has_all_fields(records, mask_format):
    instances = mapper(mask_format=mask_format)(records[1])["instances"]
    assert len(instances) == len(instances.gt_masks) == len(instances.gt_boxes) == 0
    assert type(instances.gt_masks) is {"bitmask": BitMasks, "polygon": PolygonMasks}[mask_format]
    assert instances.gt_classes.dtype == torch.int64
    assert len(instances[torch.zeros(0, dtype=torch.int64)].gt_masks) == 0


def test_A10_image_of_crowds_alone_has_all_fields(records):
    for annotation in records[0]["annotations"]:
        annotation["iscrowd"] = 1
    instances = mapper()(records[0])["instances"]
    assert len(instances) == len(instances.gt_masks) == len(instances.gt_boxes) == 0


@pytest.mark.parametrize("recompute_boxes", [False, True])
def test_A10_crop_that_removes_all_instances(records, recompute_boxes):
    crop = T.CropTransform(0, 40, 16, 8)
    out = mapper(augmentations=[crop], recompute_boxes=recompute_boxes)(records[0])
    assert len(out["instances"]) == 0 and out["instances"].gt_masks.tensor.shape == (0, 8, 16)


def test_rle_masks_under_polygon_format_name_the_key(records):
    with pytest.raises(ValueError, match="photo1.png.*INPUT.MASK_FORMAT"):
        mapper(mask_format="polygon")(records[0])


@pytest.mark.parametrize("is_train", [True, False])
def test_a_picture_too_thin_for_resizing_is_named(tmp_path, is_train):
    Image.new("RGB", (1, 5000)).save(tmp_path / "thin.png")
    resize = T.ResizeShortestEdge(48, 1333)
    with pytest.raises(ValueError, match=r"thin.png: 1x5000 pixels cannot be resized .*INPUT.MAX_SIZE"):
        mapper(is_train, augmentations=[resize])({"file_name": str(tmp_path / "thin.png")})


def small_cfg():
    cfg = get_cfg()
    cfg.MODEL.DEVICE = "cpu"
    cfg.MODEL.META_ARCHITECTURE = "PanopticFPN"
    cfg.MODEL.MASK_ON = True
    cfg.MODEL.BACKBONE.NAME = "build_resnet_fpn_backbone"
    cfg.MODEL.RESNETS.OUT_FEATURES = ["res2", "res3", "res4", "res5"]
    cfg.MODEL.RESNETS.DEPTH = 18
    cfg.MODEL.RESNETS.RES2_OUT_CHANNELS = 64
    cfg.MODEL.FPN.IN_FEATURES = ["res2", "res3", "res4", "res5"]
    cfg.MODEL.FPN.OUT_CHANNELS = 32
    cfg.MODEL.RPN.IN_FEATURES = ["p2", "p3", "p4", "p5", "p6"]
    cfg.MODEL.ANCHOR_GENERATOR.SIZES = [[8], [16], [32], [64], [128]]
    cfg.MODEL.RPN.BATCH_SIZE_PER_IMAGE = 16
    cfg.MODEL.ROI_HEADS.NAME = "StandardROIHeads"
    cfg.MODEL.ROI_HEADS.IN_FEATURES = ["p2", "p3", "p4", "p5"]
    cfg.MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE = 8
    cfg.MODEL.ROI_HEADS.NUM_CLASSES = 3
    cfg.MODEL.ROI_BOX_HEAD.NAME = "FastRCNNConvFCHead"
    cfg.MODEL.ROI_BOX_HEAD.NUM_FC = 1
    cfg.MODEL.ROI_BOX_HEAD.FC_DIM = 32
    cfg.MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION = 7
    cfg.MODEL.ROI_MASK_HEAD.NAME = "MaskRCNNConvUpsampleHead"
    cfg.MODEL.ROI_MASK_HEAD.NUM_CONV = 1
    cfg.MODEL.ROI_MASK_HEAD.CONV_DIM = 16
    cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = 3
    cfg.MODEL.SEM_SEG_HEAD.CONVS_DIM = 32
    cfg.INPUT.MIN_SIZE_TRAIN = (48,)
    cfg.INPUT.MASK_FORMAT = "bitmask"
    return cfg


@pytest.mark.parametrize("head", ["MaskRCNNConvUpsampleHead", "HGRUMaskHead"])
@pytest.mark.parametrize("chosen", [[1, 1], [0, 1]], ids=["all empty", "mixed"])
def test_A10_training_step_on_images_without_instances(records, chosen, head):
    torch.manual_seed(0)
    cfg = small_cfg()
    cfg.MODEL.ROI_MASK_HEAD.NAME = head
    cfg.MODEL.RECURRENT.STEPS = cfg.MODEL.RECURRENT.NEUMANN_TERMS = 2
    cfg.MODEL.RECURRENT.LIPSCHITZ.WEIGHT = 1.0
    cfg.MODEL.RECURRENT.LIPSCHITZ.COEFFICIENT = 0.0
    model = build_model(cfg).train()
    map_record = PanopticMapper(cfg, True)
    with EventStorage():
        losses = model([map_record(records[i]) for i in chosen])
        sum(losses.values()).backward()
    assert all(torch.isfinite(loss) for loss in losses.values())
    for key in losses.keys() & {"loss_mask", "loss_lipschitz"}:
        assert (losses[key] == 0) == (chosen == [1, 1])
    assert losses["loss_sem_seg"] > 0
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert model.sem_seg_head.predictor.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("wrong", [-1, 1.5, "1", None, True])
def test_A3_what_is_no_class_is_named(records, wrong):
    records[0]["annotations"][0]["category_id"] = wrong
    words = f"photo1.png: has an instance of class {wrong!r}, but .*: category_id is a whole number"
    with pytest.raises(ValueError, match=words):
        mapper(thing_classes=3)(records[0])
