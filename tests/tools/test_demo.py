"""The program that draws predictions over people's pictures and videos."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import demo
import numpy as np
import pytest
from PIL import Image

from rfpn.analysis.media import Video, write_video
from rfpn.data.images import read_image
from tests.analysis.tiny_runs import CONTOURS, EVERYTHING, SCENES, write_run

ROOT = Path(__file__).parents[2]
FPN = ["MODEL.ROI_MASK_HEAD.NAME", "MaskRCNNConvUpsampleHead", "MODEL.ROI_MASK_HEAD.NORM", ""]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "rfpn", SCENES, *EVERYTHING)
    write_run(root / "fpn", SCENES, *EVERYTHING, *FPN)
    write_run(root / "contours", CONTOURS)
    return root


@pytest.fixture
def photos(tmp_path):
    """Two pictures of different sizes and a short video."""
    folder, random = tmp_path / "photos", np.random.default_rng(0)
    folder.mkdir()
    for name, size in (("a.png", (48, 64)), ("b.jpg", (40, 40))):
        Image.fromarray(random.integers(0, 255, (*size, 3), np.uint8)).save(folder / name)
    write_video(str(folder / "film.mp4"), random.integers(0, 255, (6, 32, 48, 3), np.uint8), 10)
    return folder


def run(runs, name, photos, output, *words):
    model = ["--config-file", str(runs / name / "config.yaml"), "--weights", str(runs / name / "model_final.pth")]
    return demo.main(demo.parse_args([*model, "--input", *map(str, photos), "--output", str(output), *words]))


def shape(path):
    return cv2.imread(str(path)).shape


def test_a_folder_of_pictures_and_videos(runs, photos, tmp_path):
    assert run(runs, "rfpn", [photos], tmp_path / "out") == 0
    assert sorted(os.listdir(tmp_path / "out")) == ["a.png", "b.png", "film.mp4"]
    assert shape(tmp_path / "out" / "a.png") == (320, 427, 3) and shape(tmp_path / "out" / "b.png") == (320, 320, 3)
    video = Video(str(tmp_path / "out" / "film.mp4"))
    assert (video.fps, len(list(video))) == (10, 6)
    drawn, photo = read_image(str(tmp_path / "out" / "a.png")), read_image(str(photos / "a.png"))
    assert np.abs(cv2.resize(photo, (427, 320)).astype(int) - drawn).mean() > 10


def test_two_models_side_by_side(runs, photos, tmp_path):
    second = ["--compare", str(runs / "fpn" / "config.yaml"), str(runs / "fpn" / "model_final.pth")]
    assert run(runs, "rfpn", [photos / "b.jpg"], tmp_path / "both", *second) == 0
    for name in ("rfpn", "fpn"):
        assert run(runs, name, [photos / "b.jpg"], tmp_path / name) == 0
    both = read_image(str(tmp_path / "both" / "b.png"))
    bar, gap = both.shape[0] - 320, (both.shape[1] - 3 * 320) // 2
    for index, name in ((1, "rfpn"), (2, "fpn")):
        left = index * (320 + gap)
        alone = read_image(str(tmp_path / name / "b.png"))
        np.testing.assert_array_equal(both[bar:, left : left + 320], alone)
        assert (both[:bar, left : left + 320] < 100).any()  # a title


def test_models_of_one_kind_get_different_titles(runs):
    paths = [str(runs / "rfpn" / name) for name in ("config.yaml", "model_final.pth")]
    words = ["--config-file", paths[0], "--weights", paths[1], "--input", "x", "--compare", *paths]
    first, second = demo.load_overlays(demo.parse_args(words))
    assert first.title == second.title and first.title.endswith("model_final.pth)")


@pytest.mark.parametrize("name, steps", [("rfpn", "1,2"), ("contours", "1-3,9")])
def test_steps_make_a_row_for_each_picture_and_a_sheet(runs, photos, tmp_path, name, steps):
    assert run(runs, name, [photos], tmp_path / "out", "--steps", steps) == 0
    rows = [read_image(str(tmp_path / "out" / f"{stem}.png")) for stem in "ab"]
    columns = len(steps.replace("1-3", "1,2,3").split(",")) + 1
    assert rows[1].shape[1] == pytest.approx(columns * 326 - 6)
    sheet = read_image(str(tmp_path / "out" / "steps.png"))
    assert sheet.shape[1] == rows[0].shape[1] and sheet.shape[0] >= rows[0].shape[0] + rows[1].shape[0]
    np.testing.assert_array_equal(sheet[: rows[0].shape[0]], rows[0])
    panels = rows[1][-320:]
    assert not np.array_equal(panels[:, 326 : 326 + 320], panels[:, -320:])
    assert len(list(Video(str(tmp_path / "out" / "film.mp4")))) == 6


def test_G2_every_mode_of_pictures(runs, tmp_path):
    folder, grey = tmp_path / "modes", np.random.default_rng(0).integers(0, 255, (32, 32), np.uint8)
    folder.mkdir()
    base = Image.fromarray(grey)
    for mode in ("L", "LA", "P", "RGB", "RGBA"):
        base.convert(mode).save(folder / f"{mode}.png")
    base.convert("CMYK").save(folder / "CMYK.jpg", quality=100)
    Image.fromarray((grey.astype(np.uint16) * 257)).save(folder / "I16.png")
    # Pathfinder models' norms couple the pictures of a batch, so there the results differ a little
    for name, tolerance in (("rfpn", 0), ("contours", 1)):
        assert run(runs, name, [folder], tmp_path / name) == 0
        drawn = {path.stem: read_image(str(path)).astype(int) for path in (tmp_path / name).iterdir()}
        assert set(drawn) == {"L", "LA", "P", "RGB", "RGBA", "CMYK", "I16"}
        for stem in drawn.keys() - {"CMYK"}:  # whose file is lossy
            assert np.abs(drawn["L"] - drawn[stem]).mean() <= tolerance, stem


def test_G3_bad_files_are_named_and_the_rest_goes_on(runs, photos, tmp_path, capsys):
    data = (photos / "b.jpg").read_bytes()
    (photos / "half.jpg").write_bytes(data[: len(data) // 2])
    (photos / "text.mp4").write_text("no video")
    Image.fromarray(np.zeros((1, 3000, 3), np.uint8)).save(photos / "athin.png")
    assert run(runs, "rfpn", [photos, tmp_path / "none*.png"], tmp_path / "out") == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("left out: ")]
    assert len(lines) == 4
    named = ("half.jpg", "text.mp4", "none*.png", "athin.png: 3000x1 pixels")
    assert all(any(name in line for line in lines) for name in named)
    assert sorted(os.listdir(tmp_path / "out")) == ["a.png", "b.png", "film.mp4"]


def test_long_videos_are_cut(runs, photos, tmp_path):
    assert run(runs, "contours", [photos / "film.mp4"], tmp_path, "--max-frames", "5") == 0
    assert len(list(Video(str(tmp_path / "film.mp4")))) == 5


@pytest.mark.parametrize(
    "name, words, message",
    [
        ("fpn", ["--steps", "1,2"], "--steps needs a recurrent model"),
        ("rfpn", ["--compare", "none.yaml", "none.pth"], "none.yaml does not exist"),
        ("rfpn", ["MODEL.STEPZ", "3"], "MODEL.STEPZ"),
    ],
)
def test_wrong_arguments_give_one_line(runs, photos, tmp_path, capsys, name, words, message):
    with pytest.raises(SystemExit) as end:
        run(runs, name, [photos], tmp_path / "out", *words)
    assert end.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert message in line and not (tmp_path / "out").exists()


def test_nothing_to_draw_ends_before_a_model_is_loaded(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "load_overlays", lambda args: pytest.fail("a model is loaded"))
    with pytest.raises(SystemExit) as end:
        run(runs, "rfpn", [tmp_path / "none*.png"], tmp_path / "out")
    assert end.value.code == 2 and "none*.png: no picture or video there" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_picture_that_cannot_be_written_is_named(runs, photos, tmp_path, capsys):
    (tmp_path / "a.png").mkdir()
    with pytest.raises(SystemExit) as end:
        run(runs, "rfpn", [photos / "a.png"], tmp_path)
    assert end.value.code == 2
    assert f"error: {tmp_path / 'a.png'}: could not be written (Is a directory)" in capsys.readouterr().err.splitlines()


def test_pictures_that_would_fill_the_memory_are_refused(capsys):
    with pytest.raises(SystemExit):
        demo.parse_args(["--config-file", "c", "--input", "a.png", "--side", "100000"])
    assert "--side in [1, 4096]" in capsys.readouterr().err


def test_a_folder_named_like_a_key_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "TEST.PNG").touch()
    args = demo.parse_args(["--config-file", "c", "--input", "TEST", "SEED", "TEST.PNG", "MODEL.DEVICE", "cpu"])
    assert args.input == ["TEST", "SEED", "TEST.PNG"] and args.opts == ["MODEL.DEVICE", "cpu"]


def test_modules_that_cannot_be_imported_are_named(monkeypatch, capsys):
    monkeypatch.setenv("RFPN_IMPORT", "no_such_module")
    monkeypatch.delitem(sys.modules, "rfpn.data.builtin")
    with pytest.raises(SystemExit) as end:
        demo.parse_args(["--config-file", "c", "--input", "a.png"])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("error: RFPN_IMPORT names no_such_module: ")


def test_overrides_may_follow_the_inputs():
    args = demo.parse_args(["--config-file", "c", "--input", "a.png", "B.PNG", "MODEL.DEVICE", "cpu"])
    assert args.input == ["a.png", "B.PNG"] and args.opts == ["MODEL.DEVICE", "cpu"]
    args = demo.parse_args(["--config-file", "c", "--input", "a.png", "--output", "o", "MODEL.DEVICE", "cpu"])
    assert args.input == ["a.png"] and args.opts == ["MODEL.DEVICE", "cpu"]


def test_G4_without_a_gpu_it_says_so_and_runs_on_the_cpu(runs, photos, tmp_path):
    command = [sys.executable, str(ROOT / "tools" / "demo.py"), "--config-file", str(runs / "contours" / "config.yaml")]
    command += ["--weights", str(runs / "contours" / "model_final.pth"), "--output", str(tmp_path / "out")]
    shutil.copy(photos / "a.png", tmp_path / "a.png")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command += ["--input", str(tmp_path / "a.png"), str(tmp_path / "none.png"), "MODEL.DEVICE", "cuda"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    output = done.stdout + done.stderr
    assert output.count("no GPU found: running on the CPU") == 1 and "Traceback" not in output
    assert f"left out: {tmp_path / 'none.png'}" in done.stderr and (tmp_path / "out" / "a.png").is_file()


def test_the_sheet_of_steps_takes_no_pictures_place(runs, photos, tmp_path):
    (photos / "b.jpg").rename(photos / "steps.jpg")
    assert run(runs, "contours", [photos], tmp_path / "out", "--steps", "1,2") == 0
    shapes = [shape(tmp_path / "out" / f"{stem}.png")[0] for stem in ("a", "steps", "steps_2")]
    assert shapes[2] >= shapes[0] + shapes[1]
