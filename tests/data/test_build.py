"""What is checked before anything is built."""

from contextlib import nullcontext

import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.datasets.coco_panoptic import register_coco_panoptic, register_coco_panoptic_separated
from PIL import Image

from rfpn.config import get_cfg
from rfpn.data import build
from rfpn.data.build import build_test_loader, build_train_loader, check_datasets
from rfpn.data.panoptic import register_panoptic_folder
from rfpn.data.semantic import prepare_split, split_of_folder
from tests.data.tiny_panoptic import CATEGORIES, edit_json, mixed_layouts, write_set

pytestmark = pytest.mark.usefixtures("catalogs")
THINGS, STUFF = {3: 0, 7: 1, 60: 2}, {40: 1, 90: 2}


def config(train="tiny", test="tiny"):
    cfg = get_cfg()
    cfg.MODEL.META_ARCHITECTURE = "PanopticFPN"
    cfg.MODEL.MASK_ON = True
    cfg.MODEL.ROI_HEADS.NUM_CLASSES = cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = 3
    cfg.INPUT.MASK_FORMAT = "bitmask"
    cfg.DATASETS.TRAIN, cfg.DATASETS.TEST = (train,), (test,)
    cfg.DATALOADER.NUM_WORKERS = 0
    cfg.SOLVER.IMS_PER_BATCH = 1
    return cfg


@pytest.fixture
def root(tmp_path):
    root = write_set(tmp_path / "set", mixed_layouts(), extension="jpg")
    for i in (1, 2):
        (root / f"train/photo{i}.jpg").rename(root / f"train/label{i}.jpg")
    path = root / "annotations/panoptic_train.json"
    path.write_text(path.read_text().replace("photo", "label"))
    return root


def register_theirs(root, name="theirs", **metadata):
    """Detectron2's separated form with hand-made metadata."""
    paths = split_of_folder(str(root), "train")
    prepare_split(paths)
    register_coco_panoptic_separated(
        name, metadata, paths.image_root, paths.panoptic_root, paths.panoptic_json, paths.sem_seg_root, paths.instances_json
    )
    return name + "_separated"


def test_our_and_their_registration_pass(root):
    register_panoptic_folder("tiny", str(root), "train")
    stuff = {"stuff_classes": ["things", "sky", "road"], "stuff_dataset_id_to_contiguous_id": STUFF}
    cfg = config("tiny", register_theirs(root, **stuff))
    check_datasets(cfg)
    assert {"image", "sem_seg", "instances"} <= next(iter(build_train_loader(cfg, seed=0)))[0].keys()
    assert len(build_test_loader(cfg, "theirs_separated")) == 2


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda c: c["annotations"][0].pop("segmentation"), "annotation 1 has no mask"),
        (lambda c: c["annotations"][0].update(segmentation=[]), "annotation 1 has no mask"),
        (lambda c: c["annotations"][0].update(segmentation=[[0, 0, 5, 5]]), "annotation 1 .*fewer than three points"),
        (lambda c: c["images"].pop(), "image 2 of 'tiny' is not among its images"),
    ],
)
def test_A2_instances_that_cannot_be_scored_are_found_before_training(root, change, words):
    prepare_split(split_of_folder(str(root), "train"))
    edit_json(root / "annotations/instances_train.json", change)
    register_panoptic_folder("tiny", str(root), "train")
    with pytest.raises(ValueError, match=f"instances_train.json: {words}"):
        check_datasets(config())


def test_A1_registration_with_empty_metadata(root):
    paths = split_of_folder(str(root), "train")
    register_coco_panoptic("x", {}, paths.image_root, paths.panoptic_root, paths.panoptic_json)
    with pytest.raises(ValueError, match="'x' lacks the metadata thing_classes"):
        check_datasets(config("x", "x"))


def test_A2_separated_registration_with_empty_metadata(root):
    register_panoptic_folder("tiny", str(root), "train")
    name = register_theirs(root)
    for cfg in (config(name, "tiny"), config("tiny", name)):
        with pytest.raises(ValueError, match="theirs_separated' lacks the metadata .*stuff_classes"):
            check_datasets(cfg)
    with pytest.raises(ValueError, match="stuff_dataset_id_to_contiguous_id"):
        build_test_loader(config(test=name), name)  # evaluation alone


@pytest.mark.parametrize("fault", ["json", "picture", "map", "folder"])
def test_A2_a_set_that_cannot_be_evaluated_is_found_before_training(root, tmp_path, fault):
    register_panoptic_folder("tiny", str(root), "train")
    other = write_set(tmp_path / "other", mixed_layouts())
    prepare_split(split_of_folder(str(other), "train"))
    register_panoptic_folder("evaluated", str(other), "train")
    check_datasets(config(test="evaluated"))
    if fault == "json":
        edit_json(other / "annotations/panoptic_train.json", lambda c: c["annotations"][0]["segments_info"][0].pop("area"))
    elif fault == "picture":
        (other / "train/photo2.png").unlink()
    elif fault == "map":
        (other / "panoptic_stuff_train/label1.png").unlink()
    else:
        (other / "panoptic_train").rename(other / "elsewhere")
    with pytest.raises((OSError, ValueError), match="other"):
        check_datasets(config(test="evaluated"))


def test_A2_a_picture_that_its_exif_data_turn_is_found_before_training(root):
    """As phones write them; their records have the size that is stored."""
    register_panoptic_folder("tiny", str(root), "train")
    path, exif = root / "train/label1.jpg", Image.Exif()
    for orientation, fits in ((3, True), (6, False)):
        exif[0x0112] = orientation
        Image.open(path).save(path, exif=exif)
        with nullcontext() if fits else pytest.raises(ValueError, match="label1.jpg: the picture is 48x64 .* EXIF orientation"):
            check_datasets(config())


@pytest.mark.parametrize("fault", ["png", "record"])
def test_A2_panoptic_truth_of_any_loader_is_looked_at(root, fault):
    """Detectron2's records do not name the PNGs, and a loader may leave images out."""
    stuff = {"stuff_classes": ["things", "sky", "road"], "stuff_dataset_id_to_contiguous_id": STUFF}
    name = register_theirs(root, **stuff)
    check_datasets(config(name, name))
    if fault == "png":
        (root / "panoptic_train/label2.png").unlink()
        expected = pytest.raises(FileNotFoundError, match="missing files: image 2: .*panoptic_train/label2.png")
    else:
        records = DatasetCatalog.get(name)
        DatasetCatalog.pop(name)
        DatasetCatalog.register(name, lambda: records[:1])
        expected = pytest.raises(ValueError, match="1 annotated images of .*panoptic_train.json are not among .* image 2;")
    with expected:
        check_datasets(config(name, name))


def test_A2_label_maps_that_scoring_needs_are_looked_for_before_training(root):
    register_panoptic_folder("tiny", str(root), "train")
    first, second = DatasetCatalog.get("tiny")
    DatasetCatalog.register("maps", lambda: [first, {**second, "sem_seg_file_name": None}])
    MetadataCatalog.get("maps").set(**{**MetadataCatalog.get("tiny").as_dict(), "name": "maps", "evaluator_type": "sem_seg"})
    with pytest.raises(ValueError, match="'maps': 1 of 2 images have no label map"):
        check_datasets(config(test="maps"))


def test_A2_pathfinder_sets_are_looked_at_too(tmp_path):
    from rfpn.data.pathfinder.registration import register_pathfinder

    register_pathfinder("missing", str(tmp_path / "none"))
    cfg = config("pathfinder_14_train", "missing")
    cfg.MODEL.META_ARCHITECTURE = "PathfinderNet"
    with pytest.raises(FileNotFoundError, match="none"):
        check_datasets(cfg)


def test_sets_of_a_kind_that_the_model_cannot_read_are_named(root):
    register_panoptic_folder("tiny", str(root), "train")
    for names in (("pathfinder_14_train", "tiny"), ("tiny", "pathfinder_14_train")):
        with pytest.raises(ValueError, match="pathfinder_14_train is a Pathfinder set, which PanopticFPN cannot read"):
            check_datasets(config(*names))
    with pytest.raises(ValueError, match="pathfinder_14_train is a Pathfinder set, which PanopticFPN cannot read"):
        build_test_loader(config(), "pathfinder_14_train")
    cfg = config()
    cfg.MODEL.META_ARCHITECTURE = "PathfinderNet"
    with pytest.raises(ValueError, match="tiny is no Pathfinder set, which PathfinderNet cannot read"):
        check_datasets(cfg)


@pytest.mark.parametrize("kind", [None, "lvis"])
def test_a_set_of_an_unknown_kind_is_for_evaluators_of_ones_own(root, kind):
    register_panoptic_folder("tiny", str(root), "train")
    DatasetCatalog.register("other", lambda: DatasetCatalog.get("tiny"))
    MetadataCatalog.get("other").set(evaluator_type=kind)
    cfg = config(test="other")
    cfg.MODEL.META_ARCHITECTURE = "GeneralizedRCNN"
    remedy = "set its metadata evaluator_type to one of coco, coco_panoptic_seg, .*, or override Trainer.build_evaluator"
    with pytest.raises(ValueError, match=f"other: no evaluator for evaluator_type {kind!r} .*; {remedy}"):
        check_datasets(cfg)
    check_datasets(cfg, own_evaluator=True)


def test_A3_class_counts_of_any_loader(root):
    register_panoptic_folder("tiny", str(root), "train")
    cfg = config()
    cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = 2
    with pytest.raises(ValueError, match="MODEL.SEM_SEG_HEAD.NUM_CLASSES is 2.*needs 3"):
        check_datasets(cfg)


@pytest.mark.parametrize(
    "stuff_map, classes, message",
    [
        ({40: 0, 90: 1}, ["things", "sky", "road"], "does not map one to one onto"),
        ({40: 0, 90: 1}, ["sky", "road"], "NUM_CLASSES is 3, but .* needs 2"),
        ({40: 1, 90: 1}, ["things", "sky"], "does not map one to one onto"),
        ([0, 1, 2], ["things", "sky", "road"], "must be a list, and its id map a dict"),
        ({40: 1, 90: 2}, 3, "must be a list, and its id map a dict"),
        ({40: 1, 91: 2}, ["things", "sky", "road"], "has the category ids 91 .* lacks 90"),
        ({40: 2, 90: 1}, ["things", "road", "sky"], "numbers the category 40 2, not 1: .* ascending order, from 1"),
        ({40: 1, 90: 2, 7: 0}, ["things", "sky", "road"], "has the category ids 7"),
    ],
)
def test_B9_hand_made_stuff_map_that_does_not_fit(root, stuff_map, classes, message):
    register_panoptic_folder("tiny", str(root), "train")
    name = register_theirs(root, stuff_classes=classes, stuff_dataset_id_to_contiguous_id=stuff_map)
    with pytest.raises(ValueError, match=message):
        check_datasets(config("tiny", name))


def test_the_value_of_void_is_that_of_the_label_maps(root):
    register_panoptic_folder("tiny", str(root), "train")
    cfg = config()
    cfg.MODEL.SEM_SEG_HEAD.IGNORE_VALUE = 254
    with pytest.raises(ValueError, match="MODEL.SEM_SEG_HEAD.IGNORE_VALUE is 254, but void is 255 in the label maps of 'tiny'"):
        check_datasets(cfg)
    cfg.MODEL.META_ARCHITECTURE = "GeneralizedRCNN"
    check_datasets(cfg)


def test_classes_are_counted_once(root, monkeypatch):
    register_panoptic_folder("tiny", str(root), "train")
    counted = []
    monkeypatch.setattr(build, "check_class_counts", lambda name, cfg: counted.append(name))
    build_test_loader(config(), "tiny")
    assert counted == ["tiny"]


def test_label_maps_of_a_former_json_are_found_with_any_loader(root):
    stuff = {"stuff_classes": ["things", "sky", "road"], "stuff_dataset_id_to_contiguous_id": STUFF}
    name = register_theirs(root, **stuff)
    edit_json(root / "annotations/panoptic_train.json", lambda content: content.update(info={}))
    with pytest.raises(ValueError, match="panoptic_stuff_train is out of date"):
        check_datasets(config(name, name))


def test_B9_training_and_evaluation_number_classes_alike(root, tmp_path):
    register_panoptic_folder("tiny", str(root), "train")
    renamed = [{**c, "name": {"cat": "dog", "dog": "cat"}.get(c["name"], c["name"])} for c in CATEGORIES]
    register_panoptic_folder("swapped", str(write_set(tmp_path / "swapped", mixed_layouts(), renamed)), "train")
    with pytest.raises(ValueError, match="'tiny' and 'swapped' differ in thing_classes"):
        check_datasets(config(test="swapped"))
    # also where nothing but the training set is looked at, which may go without the other
    with pytest.raises(ValueError, match="'tiny' and 'swapped' differ in thing_classes"):
        build_train_loader(config(test="swapped"), seed=0)
    build_train_loader(config(test="nowhere"), seed=0)


@pytest.mark.parametrize(
    "value, words",
    [("polygon", "photo1.png are RLE masks; set INPUT.MASK_FORMAT to 'bitmask'"), ("foo", "INPUT.MASK_FORMAT .*'foo'")],
)
def test_masks_of_another_format_are_found_before_training(tmp_path, value, words):
    register_panoptic_folder("tiny", str(write_set(tmp_path / "set", mixed_layouts())), "train")
    cfg = config()
    cfg.INPUT.MASK_FORMAT = value
    with pytest.raises(ValueError, match=words):
        build_train_loader(cfg, seed=0)


@pytest.mark.parametrize("build", [lambda cfg: build_train_loader(cfg, seed=0), lambda cfg: build_test_loader(cfg, "tiny")])
def test_precomputed_proposals_are_refused(tmp_path, build):
    register_panoptic_folder("tiny", str(write_set(tmp_path / "set", mixed_layouts())), "train")
    cfg = config()
    cfg.MODEL.LOAD_PROPOSALS = True
    with pytest.raises(ValueError, match="MODEL.LOAD_PROPOSALS must be False"):
        build(cfg)


def test_a_set_of_which_the_model_gives_nothing_is_found_before_training(tmp_path):
    stuff = [category for category in CATEGORIES if not category["isthing"]]
    register_panoptic_folder("tiny", str(write_set(tmp_path / "set", mixed_layouts()[1:], stuff)), "train")
    check_datasets(config())
    cfg = config()
    cfg.MODEL.META_ARCHITECTURE = "GeneralizedRCNN"
    with pytest.raises(ValueError, match="tiny: no evaluator .* with MODEL.META_ARCHITECTURE 'GeneralizedRCNN'"):
        check_datasets(cfg)


def test_A9_the_training_loader_counts_crowds(tmp_path):
    crowd = [(7, (0, 0, 20, 20), 1)]
    register_panoptic_folder("tiny", str(write_set(tmp_path / "set", [crowd])), "train")
    with pytest.raises(ValueError, match="0 instances kept, 1 crowd regions dropped"):
        build_train_loader(config(), seed=0)


@pytest.mark.parametrize("names", [("nowhere", "tiny"), ("tiny", "nowhere")])
def test_unknown_names_are_named(root, names):
    register_panoptic_folder("tiny", str(root), "train")
    with pytest.raises(KeyError, match="'nowhere' is not registered"):
        check_datasets(config(*names))
