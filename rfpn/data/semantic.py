"""Label maps and instance records made from COCO panoptic annotation, one picture at a time and for a whole split.

Numbering is that of Detectron2's "separated" form: semantic id 0 things, 1..n_stuff stuff in ascending category id,
255 void. A file is written under a temporary name and renamed, so that an interrupted run leaves no half file.
"""

import os
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Iterable, Iterator, NamedTuple

import numpy as np
import pycocotools.mask as mask_util
from PIL import Image

from rfpn.data import stamps
from rfpn.data.annotations import (
    IGNORE_LABEL,
    Categories,
    misfit,
    read_instances_json,
    read_panoptic_json,
    split_categories,
)
from rfpn.data.files import FULL_DISK, locked, whole_file, write_json
from rfpn.data.images import read_image, read_label_map
from rfpn.data.panoptic_png import index_segments, read_panoptic_png
from rfpn.data.workers import worker_pool

# marks an instances JSON that is this module's to renew
_INFO = {"description": "instances of a panoptic annotation, made by rfpn.data.semantic"}


class Split(NamedTuple):
    """Where one split of a COCO panoptic set lies; the last two are made from the others."""

    image_root: str
    panoptic_root: str
    panoptic_json: str
    sem_seg_root: str
    instances_json: str


def split_of_folder(root: str, split: str, derived_dir: str | None = None) -> Split:
    """The layout of COCO: ``<split>/``, ``panoptic_<split>/``, ``annotations/panoptic_<split>.json`` under ``root``.

    ``panoptic_stuff_<split>/`` and ``annotations/instances_<split>.json`` lie there too, or under ``derived_dir``.
    """
    derived = derived_dir or root
    return Split(
        image_root=os.path.join(root, split),
        panoptic_root=os.path.join(root, f"panoptic_{split}"),
        panoptic_json=os.path.join(root, "annotations", f"panoptic_{split}.json"),
        sem_seg_root=os.path.join(derived, f"panoptic_stuff_{split}"),
        instances_json=os.path.join(derived, "annotations", f"instances_{split}.json"),
    )


def semantic_map(index: np.ndarray, segments_info: list, categories: Categories) -> np.ndarray:
    """Semantic ids (H, W) uint8 of one picture.

    Args:
        index: (H, W), 0 for void, s + 1 for ``segments_info[s]``, by :func:`index_segments`.
    """
    stuff_ids = categories.stuff_ids()
    ids = [stuff_ids.get(segment["category_id"], 0) for segment in segments_info]
    return np.array([IGNORE_LABEL] + ids, dtype=np.uint8)[index]


def thing_annotations(index: np.ndarray, segments_info: list, categories: Categories) -> list:
    """COCO instance records (RLE mask, exact area and box, ``iscrowd`` as given) of one picture's things."""
    thing_ids = categories.thing_ids()
    records = []
    for number, segment in enumerate(segments_info, start=1):
        if segment["category_id"] in thing_ids:
            rle = mask_util.encode(np.asfortranarray(index == number, dtype=np.uint8))
            records.append(
                {
                    "category_id": segment["category_id"],
                    "iscrowd": segment["iscrowd"],
                    "area": int(mask_util.area(rle)),
                    "bbox": [int(v) for v in mask_util.toBbox(rle)],
                    "segmentation": {"size": rle["size"], "counts": rle["counts"].decode("ascii")},
                }
            )
    return records


def numbered_instances(found: Iterable[tuple[int | str, list]]) -> list:
    """The instance records of a whole set, from each image's id and records: with that id, and numbers from 1 as their own."""
    records = ((image_id, record) for image_id, of_image in found for record in of_image)
    return [{"id": number, "image_id": image_id, **record} for number, (image_id, record) in enumerate(records, start=1)]


class PictureResult(NamedTuple):
    """What :func:`prepare_picture` found: ``problems`` as one line each, COCO ``instances``, label map ``written``."""

    problems: list
    instances: list
    written: bool


def prepare_picture(pair: tuple, split: Split, categories: Categories, stamp: dict, check_images: bool) -> PictureResult:
    """Checks one picture's files and makes its label map where it is missing or wrong.

    Args:
        pair: the COCO image record and the panoptic annotation of one picture.
        stamp: of the panoptic JSON (:mod:`rfpn.data.stamps`). check_images: also decode the photograph.

    Raises:
        OSError: no label map can be written: to a read-only folder, or a full disk.
    """
    image, annotation = pair
    segments = annotation["segments_info"]
    problems, instances, written = [], [], False
    if check_images:
        try:
            _check_photograph(os.path.join(split.image_root, image["file_name"]), image["height"], image["width"])
        except (OSError, ValueError) as error:
            problems.append(f"image {image['id']}: {error}")
    try:
        index = _read_index(split, image, annotation)
        instances = thing_annotations(index, segments, categories)
    except (OSError, ValueError) as error:
        problems.append(f"image {image['id']}: {error}")
    else:
        target = os.path.join(split.sem_seg_root, os.path.splitext(annotation["file_name"])[0] + ".png")
        try:
            written = _write_label_map(target, semantic_map(index, segments, categories), split.sem_seg_root, stamp)
        except OSError as error:
            # the whole folder or disk is at fault, not this picture
            if error.errno in (*stamps.READ_ONLY, *FULL_DISK):
                raise
            problems.append(f"image {image['id']}: {error}")
    return PictureResult(problems, instances, written)


def _check_photograph(path: str, height: int, width: int) -> None:
    found = read_image(path).shape[:2]  # as training reads it
    if found != (height, width):
        raise ValueError(f"{path}: is {found[1]}x{found[0]} pixels, but 'images' says {width}x{height}")


def _read_index(split: Split, image: dict, annotation: dict) -> np.ndarray:
    """The index (H, W) of a picture's panoptic PNG, as :func:`index_segments` gives it, with areas checked."""
    segments = annotation["segments_info"]
    path = os.path.join(split.panoptic_root, annotation["file_name"])
    ids = read_panoptic_png(path, (image["width"], image["height"]))
    try:
        index, areas = index_segments(ids, segments)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    wrong = [s["id"] for s, area in zip(segments, areas) if s["area"] != area]
    if wrong:
        raise ValueError(f"{path}: segment {wrong[0]}'s area in {split.panoptic_json} is not its number of pixels")
    return index


def prepare_split(split: Split, *, workers: int = 1, check_images: bool = True, progress=iter) -> tuple:
    """Makes the label maps of ``split`` and its instances JSON, and checks every file.

    May be interrupted and run again: correct files are kept, wrong ones made anew; an instances JSON that came from
    elsewhere stays, and must have the panoptic JSON's things for categories, and its pictures. The instances JSON and the
    stamp (:mod:`rfpn.data.stamps`) are written last, and only when no problem was found. Where another program prepares the
    same split, it waits for it.

    Args:
        workers: processes. check_images: also check the pictures, and that each has an annotation.
        progress: wraps the iterator over the P pictures' results, for example a tqdm bar.

    Returns:
        problems: one line for each missing, unreadable or inconsistent file; written: number of label maps made.

    Raises:
        OSError, ValueError: the panoptic JSON is missing or wrong, the label maps are another set's or cannot be written.
    """
    with _locked(split):
        return _prepare(split, workers, check_images, progress)


@contextmanager
def _locked(split: Split) -> Iterator[None]:
    """Alone with the label maps; without a lock where none can be written, since whole sets may be checked there."""
    # no folders for a set that is not there
    os.stat(split.panoptic_json)
    maps = os.path.abspath(split.sem_seg_root)
    with ExitStack() as stack:
        try:
            os.makedirs(os.path.dirname(maps), exist_ok=True)
            stack.enter_context(locked(maps))
        except OSError as error:
            if error.errno not in stamps.READ_ONLY:
                raise
        yield


def _prepare(split: Split, workers: int, check_images: bool, progress) -> tuple:
    # hashed before it is read, because it may be changed meanwhile
    stamp = stamps.stamp_of(split.sem_seg_root, split.panoptic_json)
    content = read_panoptic_json(split.panoptic_json)
    categories = split_categories(content["categories"], split.panoptic_json)
    if not content["annotations"]:
        return [f"{split.panoptic_json}: no annotated images"], 0
    stamps.begin(split.sem_seg_root, stamp)
    images = {image["id"]: image for image in content["images"]}
    pairs = [(images[a["image_id"]], a) for a in content["annotations"]]
    job = partial(prepare_picture, split=split, categories=categories, stamp=stamp, check_images=check_images)
    if workers > 1 and len(pairs) > 1:
        with worker_pool(min(workers, len(pairs))) as pool:
            results = list(progress(pool.map(job, pairs, chunksize=8)))
    else:
        results = list(progress(map(job, pairs)))
    problems = [line for result in results for line in result.problems]
    if check_images:
        problems += [f"image {i}: {split.panoptic_json} has no annotation of it" for i in unannotated(content)]
    try:
        found = read_instances_json(split.instances_json) if os.path.isfile(split.instances_json) else None
    except (OSError, ValueError) as error:
        problems.append(str(error))
    else:
        if found is not None and found.get("info") != _INFO:
            # another program's, which is never written anew
            if wrong := misfit(found, content, categories.things, split.panoptic_json):
                remedy = "mend one of them, or remove the former and run again, which makes it anew"
                problems.append(f"{split.instances_json}: {wrong}; {remedy}")
        elif not problems:
            _write_instances_json(split, stamp, found, content, categories, results)
    if not problems:
        stamps.finish(split.sem_seg_root, stamp)
    return problems, sum(result.written for result in results)


def unannotated(content: dict) -> list:
    """Ids of images of a panoptic JSON that has no annotation of them, in order."""
    return sorted({image["id"] for image in content["images"]} - {a["image_id"] for a in content["annotations"]}, key=str)


def _write_label_map(path: str, labels: np.ndarray, sem_seg_root: str, stamp: dict) -> bool:
    """Writes ``labels`` unless the same map is there already; returns whether it wrote."""
    if os.path.exists(path):
        try:
            if np.array_equal(read_label_map(path), labels):
                return False
        except ValueError:
            pass  # damaged: made anew
    stamps.before_change(sem_seg_root, stamp)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with whole_file(path) as temporary:
        Image.fromarray(labels).save(temporary, format="PNG", compress_level=1)
    return True


def _write_instances_json(
    split: Split, stamp: dict, found: dict | None, content: dict, categories: Categories, results: list
) -> None:
    """Writes the instances unless they are what was ``found`` there."""
    annotations = numbered_instances((a["image_id"], result.instances) for a, result in zip(content["annotations"], results))
    made = {"info": _INFO, "images": content["images"], "annotations": annotations, "categories": categories.things}
    if made != found:
        stamps.before_change(split.sem_seg_root, stamp)
        write_json(split.instances_json, made)
