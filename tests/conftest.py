from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def reference() -> Path:
    """Folder of reference material beside the checkout; tests that need it are skipped where it is missing."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "reference"
    if not folder.is_dir():
        pytest.skip(f"no reference material at {folder}")
    return folder
