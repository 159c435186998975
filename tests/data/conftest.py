import pytest

from tests.data.tiny_panoptic import mixed_layouts, write_set


@pytest.fixture
def catalogs(monkeypatch, tmp_path):
    """Undoes all registrations of a test, and keeps derived files in the test's folder."""
    from detectron2.data import DatasetCatalog, MetadataCatalog

    import rfpn.data.builtin  # noqa: F401  its sets stay
    from rfpn.data import catalog

    monkeypatch.setenv("RFPN_DERIVED_DIR", str(tmp_path / "derived"))
    monkeypatch.setattr(catalog, "_registered", dict(catalog._registered))
    datasets, metadata = set(DatasetCatalog.keys()), set(MetadataCatalog.keys())
    yield
    for name in set(DatasetCatalog.keys()) - datasets:
        DatasetCatalog.remove(name)
    for name in set(MetadataCatalog.keys()) - metadata:
        MetadataCatalog.remove(name)


@pytest.fixture
def sets(catalogs, tmp_path):
    """A prepared set of three things and two kinds of stuff: as panoptic set, as instances alone, as label maps alone."""
    from detectron2.data import DatasetCatalog, MetadataCatalog
    from detectron2.data.datasets import register_coco_instances

    from rfpn.data.panoptic import register_panoptic_folder
    from rfpn.data.semantic import prepare_split, split_of_folder

    root = write_set(tmp_path / "set", mixed_layouts())
    paths = split_of_folder(str(root), "train")
    prepare_split(paths)
    register_panoptic_folder("tiny", str(root), "train")
    register_coco_instances("boxes", {}, paths.instances_json, paths.image_root)
    keys = ("file_name", "sem_seg_file_name", "image_id", "height", "width")
    records = [{key: record[key] for key in keys} for record in DatasetCatalog.get("tiny")]
    DatasetCatalog.register("maps", lambda: records)
    MetadataCatalog.get("maps").set(evaluator_type="sem_seg", stuff_classes=["things", "sky", "road"], ignore_label=255)
    return paths


@pytest.fixture
def tree(tmp_path):
    """Folder and paths of a panoptic set of three pictures, not prepared."""
    from rfpn.data.semantic import split_of_folder

    root = write_set(tmp_path / "set", mixed_layouts() + mixed_layouts()[:1])
    return root, split_of_folder(str(root), "train")
