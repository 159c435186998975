"""Finding, reading and writing the pictures and videos that people give to a program."""

import glob
import os
from typing import Iterable, Iterator

import cv2
import numpy as np

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm")
# frames a second where a video does not say
_FPS = 25.0


def is_video(path: str) -> bool:
    """Whether a name ends as videos' do."""
    return path.lower().endswith(VIDEO_SUFFIXES)


def find_media(words: list[str]) -> tuple[list[str], list[str]]:
    """Files, each once, from names of files, folders (what lies in them, not hidden or in folders within) and globs.

    Args:
        words: with ``~`` for a home folder, which no shell expands where it stands in quotes.

    Returns:
        Paths in the order of ``words``, sorted within each; and a line for each word that stands for no file.
    """
    files, problems = {}, []
    for word in map(os.path.expanduser, words):
        if os.path.isdir(word):
            # hidden ones are no pictures, as macOS leaves them on other systems' disks
            names = [name for name in sorted(os.listdir(word)) if not name.startswith(".")]
            found = [os.path.join(word, name) for name in names if name.lower().endswith(IMAGE_SUFFIXES + VIDEO_SUFFIXES)]
        elif os.path.exists(word):
            found = [word]
        else:
            found = sorted(path for path in glob.glob(word, recursive=True) if os.path.isfile(path))
        if not found:
            problems.append(f"{word}: no picture or video there")
        files |= dict.fromkeys(found)
    return list(files), problems


def output_paths(files: list[str], folder: str) -> dict[str, str]:
    """A path in ``folder`` for each file: its name with .png or .mp4, numbered where that is taken by another file.

    No path is that of one of the files themselves.
    """
    taken, targets = {os.path.realpath(path) for path in files}, {}
    for path in files:
        stem, suffix = os.path.splitext(os.path.basename(path))[0], ".mp4" if is_video(path) else ".png"
        targets[path] = free_path(os.path.join(folder, stem + suffix), taken)
        taken.add(os.path.realpath(targets[path]))
    return targets


def free_path(path: str, taken: set[str]) -> str:
    """``path``, its stem numbered where it is one of the real paths ``taken``."""
    (stem, suffix), number = os.path.splitext(path), 1
    while os.path.realpath(path) in taken:
        number += 1
        path = f"{stem}_{number}{suffix}"
    return path


class Video:
    """The frames of a video file, (H, W, 3) RGB uint8, one at a time.

    ``fps``: frames a second. ``length``: number of frames that the file announces, 0 if it does not; some containers
    announce their duration, which sound may prolong.
    """

    def __init__(self, path: str):
        """Open it. Raises FileNotFoundError or ValueError naming a file that is missing or no video."""
        if not os.path.isfile(path):
            raise FileNotFoundError(f"{path}: no such video")
        self.path = path
        self._capture = cv2.VideoCapture(path)
        if not self._capture.isOpened():
            raise ValueError(f"{path}: unreadable video")
        fps = self._capture.get(cv2.CAP_PROP_FPS)
        self.fps = fps if 0 < fps <= 1000 else _FPS
        self.length = max(0, int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)))

    def __iter__(self) -> Iterator[np.ndarray]:
        """All frames, once. Raises ValueError where the file has none, or ends well before its last one."""
        count = 0
        try:
            while (read := self._capture.read())[0]:
                count += 1
                yield read[1][..., ::-1]
        finally:
            self._capture.release()
        if count == 0 or count < 0.9 * self.length - 0.2 * self.fps:
            raise ValueError(f"{self.path}: damaged video, ends after {count} of {self.length} frames")


def write_video(path: str, pictures: Iterable[np.ndarray], fps: float) -> None:
    """Write RGB pictures of one size as an MPEG-4 video, even in width and height (by white at the edges).

    What was written stays where ``pictures`` raises.

    Raises:
        OSError: the path cannot be written, or what is there afterwards is not the whole video.
    """
    writer, count = None, 0
    try:
        for picture in pictures:
            rows, columns = picture.shape[0] % 2, picture.shape[1] % 2
            picture = np.pad(picture, ((0, rows), (0, columns), (0, 0)), constant_values=255)
            if writer is None:
                writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*"mp4v"), fps, picture.shape[1::-1])
                if not writer.isOpened():
                    raise OSError(f"{path}: could not be written")
            writer.write(np.ascontiguousarray(picture[..., ::-1]))
            count += 1
    finally:
        if writer is not None:
            writer.release()
    # OpenCV tells nobody of a full disk
    if count and cv2.VideoCapture(path).get(cv2.CAP_PROP_FRAME_COUNT) < count:
        raise OSError(f"{path}: not all of {count} frames could be written; is the disk full?")
