#!/usr/bin/env python3
"""Install Detectron2 v0.6 where there is neither git nor a compiler.

Upstream Detectron2 is installed from its repository and compiles an extension; the package index
has no distribution of that name. ``pb1-detectron2`` holds the Python sources of upstream's tag
v0.6. This program fetches them through pip with a hash check, applies the adaptations listed in
``detectron2_adaptations.py``, and builds a pure-Python wheel named ``detectron2``. ROIAlign and
NMS come from torchvision; operators of the extension (rotated boxes, deformable convolution on a
GPU) raise an error that says so.

A Detectron2 that imports and works is left as it is, whatever its version.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

from detectron2_adaptations import ADAPTATIONS

SDIST = "pb1-detectron2==0.6"
SDIST_SHA256 = "5d2e9e51e523ec72f6a31cca04b0a515492e9514b773a3d134cedc0677170b29"
SDIST_ROOT = "pb1-detectron2-0.6"
WHEEL = "detectron2-0.6-py3-none-any.whl"
# Bounds for the archive, several times its true size.
MAX_FILES = 2000
MAX_BYTES = 32 * 2**20

# One of several distributions of the module cv2: installed only where none is.
OPENCV = "opencv-python-headless"

# The same algorithm and module name as the COCO panopticapi, which is not on the index. It asks
# for numpy < 2, which its code does not need: hence --no-deps.
PANOPTICAPI = "panopticapi-lite==0.2.0"
PANOPTICAPI_SHA256 = "58d3ffa842a72240162e7fa744c602a0a5320baabbdb3295d770374f4639b486"

# Upstream's setup.py ships these projects inside the package.
PROJECTS = {
    "projects/PointRend/point_rend": "detectron2/projects/point_rend",
    "projects/DeepLab/deeplab": "detectron2/projects/deeplab",
    "projects/Panoptic-DeepLab/panoptic_deeplab": "detectron2/projects/panoptic_deeplab",
}

# Before pip keeps a source distribution it asks the build backend for its metadata. This stand-in
# for setuptools answers with name and version, so that nothing of the archive is run.
BACKEND = """
from pathlib import Path

class __legacy__:
    def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
        folder = Path(metadata_directory, "pb1_detectron2-0.6.dist-info")
        folder.mkdir()
        text = "Metadata-Version: 2.1\\nName: pb1-detectron2\\nVersion: 0.6\\n"
        (folder / "METADATA").write_text(text)
        return folder.name
"""

# The requirements are upstream's, less those of exporters (future, pydot) and of a code printer
# (black), none of which is imported unless called.
PYPROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "detectron2"
version = "0.6"
description = "Detectron2 v0.6, Python sources only, adapted to current libraries"
license = "Apache-2.0"
license-files = ["LICENSE"]
requires-python = ">=3.10"
dependencies = [
    "Pillow>=7.1", "matplotlib", "pycocotools>=2.0.2", "termcolor>=1.1", "yacs>=0.1.8",
    "tabulate", "cloudpickle", "tqdm>4.29.0", "tensorboard", "fvcore>=0.1.5,<0.1.6",
    "iopath>=0.1.7,<0.1.10", "omegaconf>=2.1", "hydra-core>=1.1",
]

[tool.setuptools.packages.find]
include = ["detectron2", "detectron2.*"]
namespaces = false

[tool.setuptools.package-data]
"detectron2.model_zoo" = ["configs/**/*.yaml", "configs/**/*.py"]
"""

WORKS = """
import detectron2, detectron2.data, detectron2.engine, detectron2.evaluation, detectron2.modeling
print(detectron2.__version__, "in", detectron2.__path__[0])
"""


class InstallError(Exception):
    """What went wrong and what to do about it, in one line."""


def run_python(args, env=None):
    """Run the current interpreter outside the checkout, so that no local folder is imported.

    Returns the ``CompletedProcess`` with its output as text.
    """
    with tempfile.TemporaryDirectory() as neutral:
        return subprocess.run(
            [sys.executable, *args],
            cwd=neutral,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
        )


def pip(*args, env=None):
    """Run pip; raises `InstallError` with the errors that pip printed."""
    done = run_python(["-m", "pip", "--disable-pip-version-check", *args], env)
    if done.returncode:
        said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in said if "error: " in line.lower()]
        raise InstallError(f"pip {args[0]} failed: {' | '.join(errors or said[-1:])}")


def last_line(done):
    """The last line a failed process wrote: for Python, the exception."""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def pinned(folder, requirement, sha256):
    """Write a requirements file with one hash-checked requirement; returns its path."""
    path = Path(folder) / "requirements.txt"
    path.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    return str(path)


def download_sdist(folder):
    """Fetch the source distribution from the index pip is configured with; returns its path."""
    backend = folder / "backend"
    (backend / "setuptools").mkdir(parents=True)
    (backend / "setuptools" / "__init__.py").touch()
    (backend / "setuptools" / "build_meta.py").write_text(BACKEND)
    target = folder / "download"
    pip(
        *("download", "--no-deps", "--no-binary", ":all:", "--use-pep517", "--no-build-isolation"),
        *("--dest", str(target), "--requirement", pinned(folder, SDIST, SDIST_SHA256)),
        env={"PYTHONPATH": os.pathsep.join([str(backend), os.environ.get("PYTHONPATH", "")])},
    )
    (archive,) = target.iterdir()
    return archive


def unpack(archive, target):
    """Write the archive's Detectron2 sources, configs, projects and licence under ``target``.

    Raises `InstallError` for an archive that is too large or has a path outside its root.
    """
    wanted = ("detectron2/", "LICENSE", *(f"{name}/" for name in PROJECTS))
    with tarfile.open(archive) as tar:
        members = [member for member in tar if member.isfile()]
        if len(members) > MAX_FILES or sum(m.size for m in members) > MAX_BYTES:
            raise InstallError(f"{archive.name} is larger than expected: not unpacked")
        for member in members:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts or path.parts[0] != SDIST_ROOT:
                raise InstallError(f"{archive.name} has the unsafe path {member.name}")
            name = path.relative_to(SDIST_ROOT).as_posix()
            if name.startswith(wanted):
                out = target / name
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_bytes(tar.extractfile(member).read())


def adapt(root, adaptations=ADAPTATIONS):
    """Apply every adaptation under ``root``.

    Raises `InstallError` naming the file and the reason where the text to replace does not occur
    exactly as often as expected.
    """
    for item in adaptations:
        path = root / item.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        found = text.count(item.old)
        if found != item.count:
            raise InstallError(
                f"{item.file}: found {item.old.strip()!r} {found} times, expected {item.count} "
                f"(adaptation: {item.reason})"
            )
        path.write_text(text.replace(item.old, item.new), encoding="utf-8")


def build_wheel(wheel_dir):
    """Build `WHEEL` in ``wheel_dir``; returns its path.

    The same sources give the same bytes: all times in the archive are fixed.
    """
    wheel_dir = Path(wheel_dir).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "source"
        unpack(download_sdist(folder), source)
        adapt(source)
        for project, package in PROJECTS.items():
            (source / project).rename(source / package)
        (source / "pyproject.toml").write_text(PYPROJECT)
        pip(
            *("wheel", "--no-deps", "--wheel-dir", str(wheel_dir), str(source)),
            env={"SOURCE_DATE_EPOCH": "315532800"},  # 1980, the first year a zip file can hold
        )
    return wheel_dir / WHEEL


def install_detectron2():
    """Install Detectron2 unless one already works; returns a line that says what was done."""
    there = run_python(["-c", WORKS])
    if there.returncode == 0:
        return f"Detectron2 {there.stdout.strip()} already works: left as it is"
    if run_python(["-c", "import torch, torchvision"]).returncode:
        raise InstallError(f"torch and torchvision can't be imported by {sys.executable}: "
                           "install them first")
    with tempfile.TemporaryDirectory() as name:
        wheel = str(build_wheel(name))
        pip("install", wheel)
        # A broken installation of the same version would otherwise be kept.
        pip("install", "--no-deps", "--force-reinstall", wheel)
    check = run_python(["-c", WORKS])
    if check.returncode:
        raise InstallError(f"Detectron2 was installed but does not work: {last_line(check)}")
    return f"installed Detectron2 {check.stdout.strip()}"


def install_companions():
    """Install OpenCV and panopticapi where they are missing; yields a line for each.

    Detectron2's visualizer and its PQ evaluator import them, but it requires neither.
    """
    if run_python(["-c", "import cv2"]).returncode:
        pip("install", OPENCV)
        yield f"installed {OPENCV}"
    else:
        yield "OpenCV already works: left as it is"
    if run_python(["-c", "from panopticapi.evaluation import pq_compute"]).returncode:
        with tempfile.TemporaryDirectory() as name:
            pip("install", "--no-deps", "-r", pinned(name, PANOPTICAPI, PANOPTICAPI_SHA256))
        yield f"installed {PANOPTICAPI}"
    else:
        yield "panopticapi already works: left as it is"


def main(argv=None):
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--wheel-dir", metavar="DIR", help="only build the wheel there; install nothing"
    )
    args = parser.parse_args(argv)
    try:
        if args.wheel_dir:
            print(f"built {build_wheel(args.wheel_dir)}")
        else:
            print(install_detectron2())
            for line in install_companions():
                print(line)
    except InstallError as error:
        print(f"install_detectron2: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
