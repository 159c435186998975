"""The stamp beside label maps: which panoptic JSON they were made from, and what it held then."""

import errno
import hashlib
import os

from rfpn.data.annotations import read_panoptic_json, split_categories
from rfpn.data.files import read_json, write_json

# errors of a write where nothing can be written
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
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

    None where there is no stamp, as beside other programs' maps; and where the maps were made of another JSON, are up to date
    with that, and are also what this JSON asks for, such as one of fewer of its images.

    Raises:
        OSError, ValueError: the JSON or the stamp cannot be read; names it.
    """
    found = _read(sem_seg_root)
    if found is None or found.get("sha256") == _content_hash(panoptic_json):
        return None if found is None else True
    owner = _path(sem_seg_root, found)
    others = os.path.isfile(owner) and not os.path.samefile(owner, panoptic_json)
    if not others or found.get("sha256") != _content_hash(owner):
        return False
    return None if _asks_for_the_same(panoptic_json, owner) else False


def begin(sem_seg_root: str, stamp: dict) -> None:
    """To be called before label maps are made: those of another content count as out of date from then on.

    Maps without a stamp are other programs' until one of them is changed (:func:`before_change`).

    Raises:
        ValueError: they are those of another set, which would lose them. OSError: the stamp cannot be written.
    """
    found = _read(sem_seg_root)
    if found is None or found.get("sha256") == stamp["sha256"]:
        return
    owner, mine = _path(sem_seg_root, found), _path(sem_seg_root, stamp)
    if os.path.isfile(owner) and not os.path.samefile(owner, mine):
        remedy = "give each set a --derived-dir of its own, or remove this folder"
        raise ValueError(f"{sem_seg_root} holds the label maps of {owner}; {remedy}")
    _write(sem_seg_root, {**stamp, "sha256": None})


def before_change(sem_seg_root: str, stamp: dict) -> None:
    """To be called before a label map or the instances change: all count as out of date until they are finished.

    Annotation may have changed without the JSON. Raises OSError.
    """
    found = _read(sem_seg_root)
    if found is None or found.get("sha256") is not None:
        _write(sem_seg_root, {**(found or stamp), "sha256": None})


def finish(sem_seg_root: str, stamp: dict) -> None:
    """To be called once all label maps are there. Raises OSError."""
    found = _read(sem_seg_root)
    if found is None or found.get("sha256") != stamp["sha256"]:
        _write(sem_seg_root, stamp)


def _write(sem_seg_root: str, stamp: dict) -> None:
    try:
        write_json(os.path.join(sem_seg_root, _STAMP), stamp)
    except OSError as error:
        # a set may be checked where nothing can be written; but a stamp that is there would stay, and be wrong
        if error.errno not in READ_ONLY or stamped(sem_seg_root):
            raise


def _asks_for_the_same(panoptic_json: str, owner: str) -> bool:
    """Whether the label maps made of ``owner``, as it is, are those that the other JSON asks for, of all its pictures."""
    # the owner is only read: it was checked when the maps were made
    few, whole = read_panoptic_json(panoptic_json), read_json(owner)
    numbers, made_with = (split_categories(content["categories"], owner).stuff_ids() for content in (few, whole))
    made = {annotation["file_name"]: annotation["segments_info"] for annotation in whole["annotations"]}
    return all(
        annotation["file_name"] in made
        and _numbered(annotation["segments_info"], numbers) == _numbered(made[annotation["file_name"]], made_with)
        for annotation in few["annotations"]
    )


def _numbered(segments: list, stuff_ids: dict) -> set:
    """What a label map is made of: each segment's id, category, and number in the map."""
    return {(segment["id"], segment["category_id"], stuff_ids.get(segment["category_id"], 0)) for segment in segments}


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
