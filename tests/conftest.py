from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def reference() -> Path:
    """Folder of reference material beside the checkout; tests that need it are skipped where it is missing."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "reference"
    if not folder.is_dir():
        pytest.skip(f"no reference material at {folder}")
    return folder


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Three scenes of 64x64 pixels, registered as tiny_scenes while the module's tests run: the first picture's path."""
    from tests.analysis.tiny_runs import scene_set

    yield from scene_set("tiny_scenes", tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="module")
def contours(tmp_path_factory):
    """Six Pathfinder images, registered as tiny_contours while the module's tests run: the first picture's path."""
    from tests.analysis.tiny_runs import contour_set

    yield from contour_set("tiny_contours", tmp_path_factory.mktemp("contours"))
