"""Finding pictures and videos, reading and writing videos."""

from pathlib import Path

import numpy as np
import pytest

from rfpn.analysis.media import Video, find_media, free_path, is_video, output_paths, write_video


def frames(count=5, height=32, width=48):
    """Frames in one colour each, brighter one by one."""
    return [np.full((height, width, 3), 40 * index, np.uint8) for index in range(count)]


@pytest.fixture
def folder(tmp_path):
    for name in ("b.jpg", "a.PNG", "film.mp4", "notes.txt", "[1].png"):
        (tmp_path / name).touch()
    (tmp_path / "within").mkdir()
    (tmp_path / "within" / "c.png").touch()
    return tmp_path


def names(paths):
    return [Path(path).name for path in paths]


def test_files_folders_and_globs_each_once(folder):
    words = [str(folder / "b.jpg"), str(folder), str(folder / "**" / "*.png"), str(folder / "[1].png")]
    files, problems = find_media(words)
    assert names(files) == ["b.jpg", "[1].png", "a.PNG", "film.mp4", "c.png"] and not problems


def test_hidden_files_are_taken_by_name_alone(folder):
    (folder / "._a.png").touch()
    assert names(find_media([str(folder), str(folder / "*.png")])[0]) == ["[1].png", "a.PNG", "b.jpg", "film.mp4"]
    assert names(find_media([str(folder / "._a.png")])[0]) == ["._a.png"]


def test_a_quoted_home_folder_is_found(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    for words in (["~/b.jpg"], ["~/*.jpg"], ["~"]):
        files, problems = find_media(words)
        assert str(folder / "b.jpg") in files and not problems


def test_words_that_stand_for_nothing_are_named(folder):
    (folder / "empty").mkdir()
    files, problems = find_media([str(folder / "none.jpg"), str(folder / "empty"), str(folder / "b.jpg"), "no*.png"])
    assert names(files) == ["b.jpg"]
    named = [problem.split(":")[0] for problem in problems]
    assert named == [str(folder / "none.jpg"), str(folder / "empty"), "no*.png"]


def test_outputs_never_meet_inputs_or_each_other(tmp_path):
    files = [str(tmp_path / name) for name in ("x.png", "x.jpg", "x.mp4", "other/x.jpg", "y.jpg")]
    targets = output_paths(files, str(tmp_path))
    assert names(targets.values()) == ["x_2.png", "x_3.png", "x_2.mp4", "x_4.png", "y.png"]
    assert list(targets) == files


def test_a_video_comes_back(tmp_path):
    path = str(tmp_path / "film.mp4")
    write_video(path, frames(height=31, width=47), 12.5)
    video = Video(path)
    read = list(video)
    assert is_video(path) and video.fps == 12.5 and video.length == len(read) == 5
    assert all(frame.shape == (32, 48, 3) and frame.dtype == np.uint8 for frame in read)
    assert [frame[:30, :46].mean() for frame in read] == pytest.approx([0, 40, 80, 120, 160], abs=6)


def test_a_free_path_is_that_of_no_other_file(tmp_path):
    path = str(tmp_path / "steps.png")
    assert free_path(path, set()) == path
    taken = {path, str(tmp_path / "steps_2.png")}
    assert free_path(path, taken) == str(tmp_path / "steps_3.png")


def test_a_video_keeps_its_colours(tmp_path):
    path = str(tmp_path / "red.mp4")
    red = np.zeros((32, 32, 3), np.uint8)
    red[..., 0] = 200
    write_video(path, [red] * 3, 25)
    assert next(iter(Video(path))).mean((0, 1)) == pytest.approx([200, 0, 0], abs=12)


def test_a_video_whose_sound_outlasts_its_picture_is_whole(tmp_path):
    """The container's duration makes OpenCV announce a few frames too many."""
    path = str(tmp_path / "film.mp4")
    write_video(path, [np.zeros((32, 32, 3), np.uint8)] * 50, 25)
    video = Video(path)
    video.length = 53
    assert len(list(video)) == 50
    cut = Video(path)
    cut.length = 70
    with pytest.raises(ValueError, match="film.mp4: damaged video, ends after 50 of 70 frames"):
        list(cut)


def test_G3_a_damaged_video_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.mp4: no such video"):
        Video(str(tmp_path / "none.mp4"))
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(ValueError, match="text.mp4: unreadable video"):
        Video(str(tmp_path / "text.mp4"))
    path = tmp_path / "cut.avi"
    write_video(str(path), [np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8) for _ in range(20)], 25)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match="cut.avi: (damaged|unreadable) video"):
        list(Video(str(path)))


def test_a_video_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(OSError, match="film.mp4: could not be written"):
        write_video(str(tmp_path / "none" / "film.mp4"), frames(), 25)


def test_a_video_that_was_not_written_whole_is_an_error(tmp_path, monkeypatch):
    """As on a full disk, of which OpenCV says nothing."""

    class Full:
        def __init__(self, path, *_):
            open(path, "w").close()

        def isOpened(self):
            return True

        def write(self, picture):
            pass

        def release(self):
            pass

    monkeypatch.setattr("rfpn.analysis.media.cv2.VideoWriter", Full)
    with pytest.raises(OSError, match="film.mp4: not all of 3 frames could be written; is the disk full"):
        write_video(str(tmp_path / "film.mp4"), frames()[:3], 10)
