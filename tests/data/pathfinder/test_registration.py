"""Registration of Pathfinder folders."""

import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog

from rfpn.data import catalog as catalog_module
from rfpn.data.pathfinder.dataset import UNFINISHED, write_split
from rfpn.data.pathfinder.mapper import PathfinderMapper
from rfpn.data.pathfinder.registration import builtin_folder, load_pathfinder, register_builtin_pathfinder, register_pathfinder
from rfpn.data.pathfinder.settings import PathfinderSettings


@pytest.fixture(autouse=True)
def catalog():
    """Put the catalogues back as they were, without the built-in sets meanwhile."""
    datasets, metadata, registered = dict(DatasetCatalog), dict(MetadataCatalog), dict(catalog_module._registered)
    for name in [name for name in DatasetCatalog if name.startswith("pathfinder_")]:
        remove(name)
    yield
    for data, saved in ((DatasetCatalog, datasets), (MetadataCatalog, metadata), (catalog_module._registered, registered)):
        data.clear()
        data.update(saved)


def remove(name):
    DatasetCatalog.remove(name)
    MetadataCatalog.pop(name, None)
    catalog_module._registered.pop(name, None)


def make_folder(root, batches=2, count=12, kinds=("imgs", "seg")):
    """Empty files in the published layout; samples are numbered through all batches."""
    for kind in kinds:
        for batch in range(batches):
            (root / kind / str(batch)).mkdir(parents=True)
            for i in range(count):
                (root / kind / str(batch) / f"sample_{batch * count + i}.png").touch()
    return root


def test_hidden_files_are_no_samples(tmp_path):
    """macOS and notebooks leave them; they would shift [start, stop)."""
    folder = make_folder(tmp_path)
    (folder / "imgs/0/._sample_0.png").touch()
    (folder / "imgs/.ipynb_checkpoints").mkdir()
    (folder / "imgs/.ipynb_checkpoints/sample_0.png").touch()
    assert len(load_pathfinder(str(folder))) == 24


def test_records_pair_images_and_targets_in_natural_order(tmp_path):
    folder = make_folder(tmp_path, batches=11, count=3)
    records = load_pathfinder(str(folder))
    assert len(records) == 33
    assert [r["image_id"] for r in records[:5]] == [f"{i // 3}/sample_{i}" for i in range(5)]
    assert records[-1]["image_id"] == "10/sample_32"
    assert records[4]["file_name"] == str(folder / "imgs/1/sample_4.png")
    assert records[4]["sem_seg_file_name"] == str(folder / "seg/1/sample_4.png")


def test_one_folder_can_be_split(tmp_path):
    folder = str(make_folder(tmp_path))
    register_pathfinder("mine_train", folder, stop=20)
    register_pathfinder("mine_test", folder, start=20)
    train, test = DatasetCatalog.get("mine_train"), DatasetCatalog.get("mine_test")
    assert (len(train), len(test)) == (20, 4)
    assert not {r["image_id"] for r in train} & {r["image_id"] for r in test}
    assert MetadataCatalog.get("mine_test").evaluator_type == "pathfinder"


def test_built_in_sets_lie_under_the_root(tmp_path):
    register_builtin_pathfinder(str(tmp_path))
    names = [f"pathfinder_{length}_{split}" for length in (6, 9, 14, 20, 25) for split in ("train", "test")]
    assert all(name in DatasetCatalog for name in names)
    make_folder((tmp_path / builtin_folder(str(tmp_path), 14, "test")))
    assert len(DatasetCatalog.get("pathfinder_14_test")) == 24
    make_folder(tmp_path / "pathfinder_easy/train/curv_contour_length_3", count=2)
    assert len(DatasetCatalog.get("pathfinder_easy_train")) == 4


def test_missing_folder_names_itself_and_the_command(tmp_path):
    register_builtin_pathfinder(str(tmp_path))
    with pytest.raises(FileNotFoundError) as error:
        DatasetCatalog.get("pathfinder_20_train")
    assert builtin_folder(str(tmp_path), 20, "train") in str(error.value)
    command = f"datasets/prepare_pathfinder.py --length 20 --split train --num 190000 --output {tmp_path}/pathfinder"
    assert command in str(error.value)


def test_what_the_generator_writes_is_what_the_built_in_name_reads(tmp_path):
    settings = PathfinderSettings(6, window=128, padding=14, distractors=2, distractor_length=2)
    write_split(tmp_path / "pathfinder", settings, "test", 3, progress=False)
    register_builtin_pathfinder(str(tmp_path))
    records = DatasetCatalog.get("pathfinder_6_test")
    assert [r["image_id"] for r in records] == ["0/sample_0", "0/sample_1", "0/sample_2"]
    sample = PathfinderMapper(size=64)(records[0])
    assert (sample["image"][0][sample["sem_seg"] == 1] > 40).float().mean() > 0.9


def test_unfinished_folder_is_refused(tmp_path):
    (make_folder(tmp_path) / UNFINISHED).touch()
    with pytest.raises(ValueError, match="not finished"):
        load_pathfinder(str(tmp_path))


def test_unpaired_samples_are_named(tmp_path):
    folder = make_folder(tmp_path)
    (folder / "seg/1/sample_15.png").unlink()
    with pytest.raises(FileNotFoundError, match="1 samples lie in only one of imgs and seg, e.g. 1/sample_15.png"):
        load_pathfinder(str(folder))
    with pytest.raises(FileNotFoundError, match="no sample in"):
        load_pathfinder(str(make_folder(tmp_path / "other")), start=24)


def test_a_folder_that_was_copied_in_part_is_refused(tmp_path):
    settings = PathfinderSettings(6, window=128, padding=10, distractors=3)
    write_split(tmp_path, settings, "test", 3, progress=False)
    folder = tmp_path / "test/curv_contour_length_6"
    assert len(load_pathfinder(str(folder))) == 3
    for kind in ("imgs", "seg"):
        (folder / kind / "0/sample_1.png").unlink()
    with pytest.raises(ValueError, match="holds 2 samples, its manifest.json says 3; make it with: again"):
        load_pathfinder(str(folder), command="again")


def test_A12_registering_twice(tmp_path):
    register_pathfinder("mine", str(tmp_path))
    register_pathfinder("mine", str(tmp_path))
    with pytest.raises(ValueError, match="'mine' is already registered"):
        register_pathfinder("mine", str(tmp_path), stop=3)
    DatasetCatalog.register("pathfinder_14_train", list)
    register_builtin_pathfinder(str(tmp_path))
    assert DatasetCatalog.get("pathfinder_14_train") == []


def test_a_name_that_was_removed_is_free_again(tmp_path):
    first, second = (make_folder(tmp_path / name) for name in ("first", "second"))
    register_pathfinder("pathfinder_again", str(first))
    DatasetCatalog.remove("pathfinder_again")
    register_pathfinder("pathfinder_again", str(second))
    assert MetadataCatalog.get("pathfinder_again").image_root == str(second / "imgs")
    assert DatasetCatalog.get("pathfinder_again")[0]["file_name"].startswith(str(second))
