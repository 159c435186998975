"""The stamp beside label maps: which panoptic JSON they were made from, and what it held then."""

import errno
import hashlib
import os

from rfpn.data.files import read_json, write_json

_STAMP = "source.json"


def stamp_of(sem_seg_root: str, panoptic_json: str) -> dict:
    """What the stamp of label maps says that are made of the JSON as it is now. Raises OSError."""
    # relative, since a copy of the whole tree is a set of its own
    path = os.path.relpath(os.path.abspath(panoptic_json), os.path.abspath(sem_seg_root))
    return {"json": path, "sha256": _content_hash(panoptic_json)}


def stamped(sem_seg_root: str) -> bool:
    """Whether the label maps are this project's, of a version that leaves a stamp."""
    return os.path.isfile(os.path.join(sem_seg_root, _STAMP))


def made_from(sem_seg_root: str, panoptic_json: str) -> bool | None:
    """Whether the label maps were made of what the JSON holds now.

    None where no stamp tells, as beside other programs' maps, and for a JSON beside the one that they were made of and are
    up to date with, such as one of a few of its images.

    Raises:
        OSError, ValueError: the JSON or the stamp cannot be read; names it.
    """
    found = _read(sem_seg_root)
    if found is None or found.get("sha256") == _content_hash(panoptic_json):
        return None if found is None else True
    owner = _path(sem_seg_root, found)
    others = os.path.isfile(owner) and not os.path.samefile(owner, panoptic_json)
    return None if others and found.get("sha256") == _content_hash(owner) else False


def begin(sem_seg_root: str, stamp: dict) -> None:
    """To be called before label maps are made: those of another JSON count as out of date from then on.

    Raises:
        ValueError: they are those of another set, which would lose them.
    """
    found = _read(sem_seg_root)
    if found is None or found.get("sha256") == stamp["sha256"]:
        return
    owner, mine = _path(sem_seg_root, found), _path(sem_seg_root, stamp)
    if os.path.isfile(owner) and not os.path.samefile(owner, mine):
        raise ValueError(
            f"{sem_seg_root} holds the label maps of {owner}; give each set a --derived-dir of its own, or remove this folder"
        )
    write_json(os.path.join(sem_seg_root, _STAMP), {**stamp, "sha256": None})


def finish(sem_seg_root: str, stamp: dict) -> None:
    """To be called once all label maps are there. Raises OSError."""
    found = _read(sem_seg_root)
    if found is not None and found.get("sha256") == stamp["sha256"]:
        return
    try:
        write_json(os.path.join(sem_seg_root, _STAMP), stamp)
    except OSError as error:
        # whole sets may be checked where they cannot be written to
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise


def _path(sem_seg_root: str, stamp: dict) -> str:
    """The JSON that a stamp names."""
    return os.path.normpath(os.path.join(os.path.abspath(sem_seg_root), str(stamp.get("json"))))


def _read(sem_seg_root: str) -> dict | None:
    return read_json(os.path.join(sem_seg_root, _STAMP)) if stamped(sem_seg_root) else None


def _content_hash(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
