import pytest


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
