"""Fetching, adapting, building and installing Detectron2 v0.6, and what the result can do."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import install_detectron2 as tool
import numpy as np
import pytest
import torch
from detectron2_adaptations import ADAPTATIONS, Adaptation

ROOT = tool.SDIST_ROOT


def write_archive(path, members):
    """A gzipped tar file with ``members``: name to bytes, or to a `TarInfo` that is added as is."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


# --- the archive -------------------------------------------------------------------------------


def test_unpack_takes_package_projects_and_licence_only(tmp_path):
    archive = write_archive(
        tmp_path / "sdist.tar.gz",
        {
            f"{ROOT}/detectron2/__init__.py": b"x = 1\n",
            f"{ROOT}/projects/PointRend/point_rend/__init__.py": b"",
            f"{ROOT}/projects/PointRend/train_net.py": b"",
            f"{ROOT}/setup.py": b"",
            f"{ROOT}/LICENSE": b"licence",
        },
    )
    out = tmp_path / "out"
    tool.unpack(archive, out)
    assert {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()} == {
        "detectron2/__init__.py",
        "projects/PointRend/point_rend/__init__.py",
        "LICENSE",
    }


@pytest.mark.parametrize(
    "name", [f"{ROOT}/detectron2/../../../evil.py", "/detectron2/evil.py", "other/detectron2/a.py"]
)
def test_unpack_refuses_paths_outside_the_root(tmp_path, name):
    archive = write_archive(tmp_path / "sdist.tar.gz", {name: b"evil"})
    with pytest.raises(tool.InstallError, match="unsafe path"):
        tool.unpack(archive, tmp_path / "a" / "b")
    assert not list(tmp_path.rglob("evil.py"))


def test_unpack_never_follows_links(tmp_path):
    link = tarfile.TarInfo(f"{ROOT}/detectron2/data")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
    archive = write_archive(
        tmp_path / "sdist.tar.gz",
        {link.name: link, f"{ROOT}/detectron2/data/evil.py": b"evil"},
    )
    tool.unpack(archive, tmp_path / "out")
    assert not (tmp_path / "evil.py").exists()


def test_unpack_refuses_oversized_archives(tmp_path, monkeypatch):
    archive = write_archive(
        tmp_path / "sdist.tar.gz", {f"{ROOT}/detectron2/big.py": b"0" * 1001}
    )
    monkeypatch.setattr(tool, "MAX_BYTES", 1000)
    with pytest.raises(tool.InstallError, match="larger than expected"):
        tool.unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- the adaptations ---------------------------------------------------------------------------


def test_adapt_replaces_every_occurrence(tmp_path):
    (tmp_path / "a.py").write_text("np.int, np.int\n")
    tool.adapt(tmp_path, [Adaptation("a.py", "np.int", "int", "alias", count=2)])
    assert (tmp_path / "a.py").read_text() == "int, int\n"


@pytest.mark.parametrize("text, found", [("np.int\n", 1), ("int\n", 0), (None, 0)])
def test_adapt_error_names_file_and_reason(tmp_path, text, found):
    if text is not None:
        (tmp_path / "a.py").write_text(text)
    with pytest.raises(tool.InstallError, match=rf"a\.py: .* {found} times, expected 2.*no alias"):
        tool.adapt(tmp_path, [Adaptation("a.py", "np.int", "int", "no alias", count=2)])


def test_every_adaptation_states_a_reason_and_changes_something():
    for item in ADAPTATIONS:
        assert item.reason and item.old and item.old != item.new and item.count >= 1, item


# --- download and build ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel built from the real sources; skipped where pip reaches no index."""
    try:
        return tool.build_wheel(tmp_path_factory.mktemp("wheel"))
    except tool.InstallError as error:
        if "No matching distribution" in str(error):
            pytest.skip("the package index can't be reached")
        raise


def test_wheel_is_pure_python_and_named_detectron2(wheel):
    assert wheel.name == "detectron2-0.6-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read("detectron2-0.6.dist-info/METADATA").decode()
    assert "Name: detectron2\nVersion: 0.6\n" in metadata
    assert "black" not in metadata
    assert not [name for name in names if name.endswith((".so", ".pyd"))]
    for name in (
        "detectron2/modeling/meta_arch/panoptic_fpn.py",
        "detectron2/projects/point_rend/__init__.py",
        "detectron2/projects/deeplab/__init__.py",
        "detectron2/projects/panoptic_deeplab/__init__.py",
        "detectron2/model_zoo/configs/Base-RCNN-FPN.yaml",
        "detectron2/model_zoo/configs/COCO-PanopticSegmentation/panoptic_fpn_R_50_1x.yaml",
        "detectron2/model_zoo/configs/common/optim.py",
        "detectron2-0.6.dist-info/licenses/LICENSE",
    ):
        assert name in names


def test_wheel_sources_have_no_removed_names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        sources = {n: archive.read(n).decode() for n in archive.namelist() if n.endswith(".py")}
    for name, text in sources.items():
        compile(text, name, "exec")
        for gone in ("np.int)", "np.float)", "np.bool)", "np.str)", "Image.LINEAR", "pkg_resources"):
            assert gone not in text, name
        if "fast_eval_api" not in name:
            assert "\nfrom detectron2 import _C" not in text, name


def test_wheel_build_is_reproducible(wheel, tmp_path):
    again = tool.build_wheel(tmp_path)
    assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(wheel.read_bytes()).digest()


def test_wrong_hash_is_refused(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "SDIST_SHA256", "0" * 64)
    with pytest.raises(tool.InstallError, match="(?i)hash"):
        tool.download_sdist(tmp_path)


# --- when to install ---------------------------------------------------------------------------


def finished(code, out="", err=""):
    return SimpleNamespace(returncode=code, stdout=out, stderr=err)


@pytest.fixture
def no_pip(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError(f"pip was called: {args}")

    monkeypatch.setattr(tool, "pip", refuse)


def test_working_detectron2_is_left_as_it_is(no_pip, capsys):
    pytest.importorskip("detectron2")
    assert tool.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Detectron2 ") and lines[0].endswith("left as it is")
    assert lines[1:] == [
        "OpenCV already works: left as it is",
        "panopticapi already works: left as it is",
    ]


def test_missing_torch_is_said_before_anything_is_fetched(no_pip, monkeypatch, capsys):
    monkeypatch.setattr(tool, "run_python", lambda args, env=None: finished(1))
    assert tool.main([]) == 1
    error = capsys.readouterr().err
    assert error.startswith("install_detectron2: torch and torchvision") and error.count("\n") == 1


@pytest.mark.parametrize("works_afterwards", [True, False])
def test_broken_detectron2_is_replaced_and_checked(monkeypatch, works_afterwards):
    results = [
        finished(1, err="Traceback\nImportError: old"),
        finished(0),
        finished(0, "0.6 in here\n") if works_afterwards else finished(1, err="ImportError: new"),
    ]
    calls = []
    monkeypatch.setattr(tool, "run_python", lambda args, env=None: results.pop(0))
    monkeypatch.setattr(tool, "build_wheel", lambda folder: Path(folder) / "detectron2.whl")
    monkeypatch.setattr(tool, "pip", lambda *args, env=None: calls.append(args))
    if works_afterwards:
        assert tool.install_detectron2() == "installed Detectron2 0.6 in here"
    else:
        with pytest.raises(tool.InstallError, match="does not work: ImportError: new"):
            tool.install_detectron2()
    assert [call[0] for call in calls] == ["install", "install"]
    assert "--force-reinstall" in calls[1] and "--no-deps" in calls[1]


def test_missing_companions_are_installed(monkeypatch):
    calls = []
    monkeypatch.setattr(tool, "run_python", lambda args, env=None: finished(1))
    monkeypatch.setattr(tool, "pip", lambda *args, env=None: calls.append(args))
    lines = list(tool.install_companions())
    assert lines == ["installed opencv-python-headless", "installed panopticapi-lite==0.2.0"]
    assert calls[0] == ("install", "opencv-python-headless")
    assert calls[1][:2] == ("install", "--no-deps")  # its numpy < 2 is stale


def test_pip_failure_is_one_line(capsys):
    with pytest.raises(tool.InstallError) as caught:
        tool.pip("install", "--no-index", "rfpn-no-such-distribution")
    assert "No matching distribution" in str(caught.value) and "\n" not in str(caught.value)


# --- what the adapted Detectron2 can do --------------------------------------------------------


@pytest.fixture(scope="module")
def adapted_detectron2():
    env = pytest.importorskip("detectron2.utils.env")
    if not hasattr(env, "missing_extension"):
        pytest.skip("another Detectron2 than the one that tools/install_detectron2.py builds is installed")


def test_missing_operator_says_so_when_called(adapted_detectron2):
    from detectron2.layers import ROIAlignRotated

    with pytest.raises(ImportError, match="roi_align_rotated_forward is a compiled operator"):
        ROIAlignRotated((2, 2), 1.0, 0)(torch.rand(1, 1, 8, 8), torch.rand(1, 6))


def test_coco_evaluator_falls_back_to_pycocotools(adapted_detectron2, tmp_path):
    from detectron2.data import MetadataCatalog
    from detectron2.evaluation import COCOEvaluator

    (tmp_path / "gt.json").write_text('{"images": [], "annotations": [], "categories": []}')
    MetadataCatalog.get("install_test").json_file = str(tmp_path / "gt.json")
    evaluator = COCOEvaluator("install_test", output_dir=str(tmp_path))
    assert not evaluator._use_fast_impl


def test_numpy_and_pillow_names_work(adapted_detectron2):
    from detectron2.data.transforms import ExtentTransform
    from detectron2.layers.mask_ops import paste_mask_in_image_old
    from detectron2.structures.masks import PolygonMasks, polygons_to_bitmask

    square = np.array([1.0, 1, 5, 1, 5, 5, 1, 5])
    assert polygons_to_bitmask([square], 8, 8).sum() == 16
    assert polygons_to_bitmask([], 8, 8).dtype == bool
    assert PolygonMasks([[square], []]).nonempty().tolist() == [True, False]
    pasted = paste_mask_in_image_old(torch.ones(4, 4), torch.tensor([2.0, 3, 5, 6]), 10, 10, 0.5)
    assert pasted.sum() == 16 and pasted[3:7, 2:6].all()
    image = np.arange(64, dtype=np.uint8).reshape(8, 8)
    cut = ExtentTransform((2, 2, 6, 6), (4, 4)).apply_image(image)
    np.testing.assert_array_equal(cut, image[2:6, 2:6])


def test_model_zoo_finds_its_configs(adapted_detectron2):
    from detectron2 import model_zoo

    cfg = model_zoo.get_config("COCO-PanopticSegmentation/panoptic_fpn_R_50_1x.yaml")
    assert cfg.MODEL.META_ARCHITECTURE == "PanopticFPN"
    with pytest.raises(RuntimeError, match="not available"):
        model_zoo.get_config_file("no/such.yaml")
