import importlib
import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.datasets.coco import load_sem_seg

from rfpn.data.annotations import read_instances_json, read_panoptic_json
from rfpn.data.images import read_label_map
from rfpn.data.panoptic import panoptic_metadata, register_panoptic, register_panoptic_folder
from rfpn.data.semantic import prepare_split, split_of_folder
from tests.data.tiny_panoptic import CATEGORIES, edit_json, mixed_layouts, write_set

pytestmark = pytest.mark.usefixtures("catalogs")
REPOSITORY = Path(__file__).parents[2]


def test_A1_metadata_comes_from_categories_in_any_order():
    metadata = panoptic_metadata(CATEGORIES, "a.json")
    assert metadata["thing_classes"] == ["cat", "dog", "cow"]
    assert metadata["thing_dataset_id_to_contiguous_id"] == {3: 0, 7: 1, 60: 2}
    assert metadata["stuff_classes"] == ["things", "sky", "road"]
    assert metadata["stuff_dataset_id_to_contiguous_id"] == {0: 0, 40: 1, 90: 2}
    assert len(metadata["thing_colors"]) == 3 and len(metadata["stuff_colors"]) == 3


@pytest.mark.parametrize("field", ["id", "name", "isthing"])
def test_A1_missing_field_stops_registration(tmp_path, field):
    root = write_set(tmp_path, mixed_layouts())
    edit_json(root / "annotations/panoptic_train.json", lambda c: c["categories"][1].pop(field))
    with pytest.raises(ValueError, match=field):
        register_panoptic_folder("tiny", str(root), "train")
    assert "tiny" not in DatasetCatalog


def test_A1_a_name_that_two_classes_bear_stops_registration(tmp_path):
    """Scores by class would overwrite each other."""
    root = write_set(tmp_path, [])
    edit_json(root / "annotations/panoptic_train.json", lambda c: c["categories"][1].update(name="cat"))
    with pytest.raises(ValueError, match="name of a category of things cat occurs twice"):
        register_panoptic_folder("tiny", str(root), "train")


def test_stuff_in_pieces_is_told_of(tmp_path, caplog):
    """Models give one segment for each kind of stuff."""
    sky = [(40, (0, 0, 64, 10), 0), (40, (0, 20, 64, 48), 0)]
    root = write_set(tmp_path / "set", [sky[:1], sky])
    register_panoptic_folder("tiny", str(root), "train", derived_dir=str(tmp_path / "derived"))
    DatasetCatalog.get("tiny")
    assert "1 images have several segments of one kind of stuff, one of them 2" in caplog.text


def test_a_read_only_set_is_read_from_where_it_was_prepared(tmp_path):
    root, derived = write_set(tmp_path / "set", mixed_layouts()), tmp_path / "derived"
    assert prepare_split(split_of_folder(str(root), "train", str(derived)))[0] == []
    register_panoptic_folder("tiny", str(root), "train", derive_missing=False, derived_dir=str(derived))
    records = DatasetCatalog.get("tiny")
    assert all(record["sem_seg_file_name"].startswith(str(derived / "panoptic_stuff_train")) for record in records)
    names = ["annotations", "panoptic_stuff_train", "panoptic_stuff_train.lock"]
    assert sorted(path.name for path in derived.iterdir()) == names


def test_A1_missing_categories_stop_registration(tmp_path):
    root = write_set(tmp_path, mixed_layouts())
    edit_json(root / "annotations/panoptic_train.json", lambda c: c.pop("categories"))
    with pytest.raises(ValueError, match="categories"):
        register_panoptic_folder("tiny", str(root), "train")


@pytest.mark.parametrize("extension", ["png", "jpg", "bmp"])
def test_A6_file_names_come_from_images(tmp_path, extension):
    root = write_set(tmp_path / "set", mixed_layouts(), extension=extension)
    register_panoptic_folder("tiny", str(root), "train")
    records = DatasetCatalog.get("tiny")
    assert [Path(r["file_name"]).name for r in records] == [f"photo1.{extension}", f"photo2.{extension}"]
    assert [len(r["annotations"]) for r in records] == [2, 0]
    assert [a["category_id"] for a in records[0]["annotations"]] == [1, 2]
    assert {s["category_id"] for s in records[1]["segments_info"]} == {1, 2}


def test_A6_missing_second_image_is_reported_with_its_id(tmp_path):
    root = write_set(tmp_path / "set", mixed_layouts())
    (root / "train/photo2.png").unlink()
    register_panoptic_folder("tiny", str(root), "train")
    with pytest.raises(FileNotFoundError, match="image 2: .*photo2.png"):
        DatasetCatalog.get("tiny")


def test_A4_missing_label_folder_names_the_command(tmp_path):
    root = write_set(tmp_path / "set", mixed_layouts())
    register_panoptic_folder("tiny", str(root), "train", derive_missing=False)
    with pytest.raises(FileNotFoundError, match="panoptic_stuff_train.*prepare_coco_panoptic.py"):
        DatasetCatalog.get("tiny")


def test_A4_unreadable_panoptic_png_stops_derivation(tmp_path):
    root = write_set(tmp_path / "set", mixed_layouts())
    (root / "panoptic_train/label2.png").write_bytes(b"")
    register_panoptic_folder("tiny", str(root), "train")
    with pytest.raises(ValueError, match="label2.png"):
        DatasetCatalog.get("tiny")


@pytest.mark.parametrize(
    "change, words",
    [
        ({"file_name": "elsewhere/photo1.png"}, "image 2 is elsewhere/photo1.png of 64x48 pixels, not the photo2.png of"),
        ({"height": 47}, "image 2 is photo2.png of 64x47 pixels, not the photo2.png of 64x48"),
    ],
)
def test_instances_of_other_pictures_are_refused(tmp_path, change, words):
    """The ids of two splits may be the same."""
    root = write_set(tmp_path / "set", mixed_layouts())
    paths = split_of_folder(str(root), "train")
    prepare_split(paths)
    register_panoptic_folder("tiny", str(root), "train")
    path = root / "annotations/instances_train.json"
    edit_json(path, lambda c: (c.pop("info"), c["images"][0].update(file_name="elsewhere/photo1_ids.jpg")))
    assert prepare_split(paths) == ([], 0) and len(DatasetCatalog.get("tiny")) == 2
    edit_json(path, lambda content: content["images"][1].update(change))
    with pytest.raises(ValueError, match=f"instances_train.json: {words}"):
        DatasetCatalog.get("tiny")
    (problem,), _ = prepare_split(paths)
    assert problem.startswith(f"{path}: {words}") and "remove the former" in problem


@pytest.mark.parametrize("kept", [0, 1])
def test_stuff_only_and_things_only_sets(tmp_path, kept):
    categories = [c for c in CATEGORIES if c["isthing"] == kept]
    layout = [(c["id"], (0, 10 * i, 64, 10 * i + 10), 0) for i, c in enumerate(categories)]
    root = write_set(tmp_path / "set", [layout, layout], categories)
    register_panoptic_folder("tiny", str(root), "train")
    records = DatasetCatalog.get("tiny")
    metadata = MetadataCatalog.get("tiny")
    assert len(metadata.thing_classes) == 3 * kept and len(metadata.stuff_classes) == 1 + 2 * (1 - kept)
    assert len(records[0]["annotations"]) == 3 * kept
    assert set(np.unique(read_label_map(records[0]["sem_seg_file_name"]))) == ({0, 255} if kept else {1, 2, 255})


def test_A8_panoptic_and_instances_json_exchanged(tmp_path):
    root = write_set(tmp_path / "set", mixed_layouts())
    paths = split_of_folder(str(root), "train")
    prepare_split(paths)
    with pytest.raises(ValueError, match="panoptic_train.json: this is a panoptic JSON.*segments_info"):
        read_instances_json(paths.panoptic_json)
    with pytest.raises(ValueError, match="instances_train.json: this is an instances JSON"):
        read_panoptic_json(paths.instances_json)
    register_panoptic("tiny", **{**paths._asdict(), "instances_json": paths.panoptic_json})
    with pytest.raises(ValueError, match="segments_info"):
        DatasetCatalog.get("tiny")


def test_A12_same_arguments_again_do_nothing_others_are_refused(tmp_path):
    root = write_set(tmp_path / "set", mixed_layouts())
    other = write_set(tmp_path / "other", mixed_layouts())
    register_panoptic_folder("tiny", str(root), "train")
    register_panoptic_folder("tiny", str(root), "train")
    assert len(DatasetCatalog.get("tiny")) == 2
    with pytest.raises(ValueError, match="'tiny'"):
        register_panoptic_folder("tiny", str(other), "train")


def test_A12_preparing_a_registered_set_makes_no_other_of_it(tmp_path):
    root = write_set(tmp_path / "set", mixed_layouts())
    register_panoptic_folder("tiny", str(root), "train")
    prepare_split(split_of_folder(str(root), "train"))
    register_panoptic_folder("tiny", str(root), "train")
    assert len(DatasetCatalog.get("tiny")) == 2


def register_twice(root) -> int:
    for _ in range(2):
        register_panoptic_folder("spawned", str(root), "train")
    return len(DatasetCatalog.get("spawned"))


def test_A12_spawned_workers_register_for_themselves(tmp_path):
    root = write_set(tmp_path / "set", mixed_layouts())
    with multiprocessing.get_context("spawn").Pool(2) as pool:  # both make the derived files
        assert pool.map(register_twice, [root] * 2, chunksize=1) == [2, 2]
    assert register_twice(root) == 2


def test_A12_name_of_a_foreign_set_is_refused(tmp_path):
    DatasetCatalog.register("theirs", lambda: [])
    root = write_set(tmp_path / "set", mixed_layouts())
    with pytest.raises(ValueError, match="'theirs'"):
        register_panoptic_folder("theirs", str(root), "train")


def test_A12_import_never_overrides_a_users_set(monkeypatch):
    import rfpn.data.builtin

    monkeypatch.setitem(DatasetCatalog.data, "scenes_panoptic_train", lambda: ["mine"])
    importlib.reload(rfpn.data.builtin)
    assert DatasetCatalog.get("scenes_panoptic_train") == ["mine"]
    assert "dsb2018_panoptic_val" in DatasetCatalog


def test_records_equal_detectron2s_separated_form(tmp_path):
    root = write_set(tmp_path / "set", mixed_layouts(), extension="jpg")
    for i in (1, 2):  # Detectron2 matches pictures and label maps by name
        (root / f"panoptic_train/label{i}.png").rename(root / f"panoptic_train/photo{i}.png")
    content = json.loads((root / "annotations/panoptic_train.json").read_text())
    for annotation in content["annotations"]:
        annotation["file_name"] = annotation["file_name"].replace("label", "photo")
    (root / "annotations/panoptic_train.json").write_text(json.dumps(content))
    paths = split_of_folder(str(root), "train")
    prepare_split(paths)
    register_panoptic_folder("tiny", str(root), "train")
    theirs = load_sem_seg(paths.sem_seg_root, paths.image_root)
    ours = DatasetCatalog.get("tiny")
    for key in ("file_name", "sem_seg_file_name"):
        assert [r[key] for r in ours] == [r[key] for r in theirs]


def test_label_maps_of_real_coco_are_detectron2s(tmp_path):
    root = REPOSITORY.parent / "shared" / "data" / "coco_panoptic_200" / "coco"
    if not root.is_dir():
        pytest.skip(f"no COCO pictures at {root}")
    derived = split_of_folder(str(root), "val2017", str(tmp_path))
    problems, written = prepare_split(derived, check_images=False)
    assert problems == [] and written == 100
    for path in sorted(Path(derived.sem_seg_root).iterdir())[:20]:
        expected = read_label_map(str(root / "panoptic_stuff_val2017" / path.name))
        np.testing.assert_array_equal(read_label_map(str(path)), expected)


def test_sets_of_one_name_share_no_derived_files(tmp_path):
    """Two projects that train at once on sets of one name would write over each other's label maps."""
    folders = set()
    for project in ("one", "two"):
        register_panoptic_folder("tiny", str(write_set(tmp_path / project, mixed_layouts())), "train")
        folders.add(MetadataCatalog.get("tiny").sem_seg_root)
        DatasetCatalog.remove("tiny")
    assert len(folders) == 2


def test_sets_of_one_derived_dir_share_no_files(tmp_path):
    """One would be scored on the label maps of the other."""
    plain, mixed = mixed_layouts()[1], mixed_layouts()[0]
    for name, layout in (("tiny_train", plain), ("tiny_val", mixed)):
        paths = split_of_folder(str(write_set(tmp_path / name, [layout])), "train")
        given = {**paths._asdict(), "sem_seg_root": None, "instances_json": None}
        register_panoptic(name, derived_dir=str(tmp_path / "both"), **given)
    (train,), (val,) = DatasetCatalog.get("tiny_train"), DatasetCatalog.get("tiny_val")
    assert np.unique(read_label_map(train["sem_seg_file_name"])).tolist() == [1, 2, 255]
    assert np.unique(read_label_map(val["sem_seg_file_name"])).tolist() == [0, 1, 2, 255]
    assert all((tmp_path / "both").samefile(Path(r["sem_seg_file_name"]).parents[2]) for r in (train, val))


def test_A8_instances_that_lack_annotated_images_are_told_of(tmp_path, caplog):
    root = write_set(tmp_path / "set", mixed_layouts())
    prepare_split(split_of_folder(str(root), "train"))
    edit_json(root / "annotations/instances_train.json", lambda content: content["images"].pop())
    register_panoptic_folder("tiny", str(root), "train")
    DatasetCatalog.get("tiny")
    assert "1 annotated images" in caplog.text and "one of them 2" in caplog.text


def test_a_cache_that_cannot_be_made_names_the_variable(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RFPN_DERIVED_DIR", str(tmp_path / "file"))
    register_panoptic_folder("tiny", str(write_set(tmp_path / "set", mixed_layouts())), "train")
    with pytest.raises(OSError, match="set RFPN_DERIVED_DIR to a folder that can be written to"):
        DatasetCatalog.get("tiny")


@pytest.mark.parametrize("prepared", [False, True])
def test_images_without_annotation_are_left_out_with_a_warning(tmp_path, caplog, prepared):
    root = write_set(tmp_path / "set", mixed_layouts())
    if prepared:
        prepare_split(split_of_folder(str(root), "train"))
        (root / "panoptic_stuff_train/source.json").unlink()
    edit_json(root / "annotations/panoptic_train.json", lambda content: content["annotations"].pop(0))
    register_panoptic_folder("tiny", str(root), "train")
    assert [record["image_id"] for record in DatasetCatalog.get("tiny")] == [2]
    assert "1 images have no annotation and are left out, one of them 1" in caplog.text
    # who prepares a whole tree is told
    problems, _ = prepare_split(split_of_folder(str(root), "train"))
    assert len(problems) == 1 and "has no annotation of it" in problems[0]


@pytest.mark.parametrize("prepared", [False, True])
def test_sets_without_annotated_images_are_refused(tmp_path, prepared):
    root = write_set(tmp_path / "set", mixed_layouts())
    if prepared:
        prepare_split(split_of_folder(str(root), "train"))
    edit_json(root / "annotations/panoptic_train.json", lambda content: content["annotations"].clear())
    register_panoptic_folder("tiny", str(root), "train")
    with pytest.raises(ValueError, match="panoptic_train.json: no annotated images"):
        DatasetCatalog.get("tiny")
    assert "no annotated images" in prepare_split(split_of_folder(str(root), "train"))[0][0]
