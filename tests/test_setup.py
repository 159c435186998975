"""`make setup`: when the environment is built, left alone, brought up to date or rebuilt."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    "requirements.txt",
    "setup.py",
    "tools/install_detectron2.py",
    "tools/detectron2_adaptations.py",
)
# Stands for python3: notes how it is called, makes environments that hold a copy of itself, fails
# where a file named `fail` says at which argument, and runs the Makefile's own checks for real.
PYTHON = """#!{shell}
echo "$@" >> {log}
case "$*" in
  *"-m venv"*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-c"*) exec {python} -c "{patch}
exec(__import__('sys').argv[1])" "$2" ;;
esac
[ -e {fail} ] && case "$*" in *"$(cat {fail})"*) exit 1 ;; esac
exit 0
"""

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")


class Checkout:
    """A folder with the Makefile, the files it watches, and the stand-in for python3."""

    def __init__(self, folder):
        self.folder, self.log, self.fail = folder, folder / "calls.log", folder / "fail"
        self.venv = folder / ".venv"
        shutil.copy(ROOT / "Makefile", folder)
        for name in SOURCES:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).touch()
        self.python("")

    def python(self, patch):
        path = self.folder / "python3"
        path.write_text(
            PYTHON.format(
                shell=shutil.which("sh"), log=self.log, python=sys.executable, patch=patch,
                fail=self.fail,
            )
        )
        path.chmod(0o755)

    def make(self, *args):
        """Run make; returns the finished process and the calls of the stand-in, checks left out."""
        self.log.write_text("")
        done = subprocess.run(
            ["make", f"PYTHON={self.folder / 'python3'}", *args],
            cwd=self.folder, capture_output=True, text=True,
            env={"PATH": os.environ["PATH"]},
        )
        calls = [c for c in self.log.read_text().splitlines() if c.startswith(("-m", "tools"))]
        return done, [c for c in calls if "--version" not in c]


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_setup_builds_once(checkout):
    done, calls = checkout.make("setup")
    assert done.returncode == 0, done.stderr
    assert calls[0] == "-m venv .venv"
    assert "install -r requirements.txt" in calls[1]
    assert calls[2] == "tools/install_detectron2.py"
    assert calls[3].endswith("-e .")
    done, calls = checkout.make("setup")
    assert done.returncode == 0 and calls == []


@pytest.mark.parametrize("name", SOURCES)
def test_setup_updates_in_place_when_a_source_changed(checkout, name):
    checkout.make("setup")
    (checkout.venv / "kept").touch()
    later = time.time() + 5
    os.utime(checkout.folder / name, (later, later))
    done, calls = checkout.make("setup")
    assert done.returncode == 0 and (checkout.venv / "kept").exists()
    assert len(calls) == 3 and "install -r requirements.txt" in calls[0]


@pytest.mark.parametrize("step", ["-r requirements.txt", "install_detectron2", "-e ."])
def test_unfinished_environment_is_rebuilt(checkout, step):
    checkout.fail.write_text(step)
    done, _ = checkout.make("setup")
    assert done.returncode != 0
    (checkout.venv / "left_over").touch()
    checkout.fail.unlink()
    done, calls = checkout.make("setup")
    assert done.returncode == 0 and calls[0] == "-m venv .venv"
    assert not (checkout.venv / "left_over").exists()


def test_environment_whose_interpreter_is_gone_is_rebuilt(checkout):
    checkout.make("setup")
    (checkout.venv / "bin" / "python").unlink()
    done, calls = checkout.make("setup")
    assert done.returncode == 0 and calls[0] == "-m venv .venv"


def test_old_python_is_refused_in_one_line(checkout):
    checkout.python("import sys; sys.version_info = (3, 9, 18)")
    done, calls = checkout.make("setup")
    assert done.returncode != 0 and calls == [] and not checkout.venv.exists()
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(said) == 1 and said[0].startswith("rfpn needs Python 3.10 or newer")
    assert "is 3.9" in said[0]


@pytest.mark.parametrize(
    "target, program",
    [
        ("demo", "tools/run_demo.py"),
        ("test", "-m pytest"),
    ],
)
def test_other_targets_set_up_first(checkout, target, program):
    done, calls = checkout.make(target)
    assert done.returncode == 0 and calls[0] == "-m venv .venv"
    assert calls[-1].strip() == program


def test_clean_keeps_results(checkout):
    checkout.make("setup")
    for name in ("output/demo/metrics.json", "rfpn/__pycache__/a.pyc", "build/lib/a.py"):
        (checkout.folder / name).parent.mkdir(parents=True)
        (checkout.folder / name).touch()
    done, _ = checkout.make("clean")
    assert done.returncode == 0
    assert (checkout.folder / "output/demo/metrics.json").exists()
    for name in (".venv", "rfpn/__pycache__", "build"):
        assert not (checkout.folder / name).exists()


def test_torch_is_pinned_in_one_file():
    requirements = (ROOT / "requirements.txt").read_text().splitlines()
    assert "torch==2.14.1" in requirements and "torchvision==0.29.1" in requirements
    assert "torch==" not in (ROOT / "setup.py").read_text()
