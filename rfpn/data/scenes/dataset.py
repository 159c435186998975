"""Writes a split of scenes in COCO's panoptic layout (``rfpn.data.semantic.split_of_folder``)."""

import os
import shutil
from contextlib import contextmanager
from functools import partial

import cv2
import numpy as np

from rfpn.data.annotations import Categories
from rfpn.data.files import differences, locked, read_json, write_json
from rfpn.data.images import write_image
from rfpn.data.panoptic_png import encode_ids
from rfpn.data.scenes.geometry import STUFF_CLASSES, THING_CLASSES
from rfpn.data.scenes.render import SceneOptions, render_scene
from rfpn.data.semantic import numbered_instances, semantic_map, split_of_folder, thing_annotations
from rfpn.data.workers import worker_pool

# Goes up with every change of the pictures, so that an older set is not taken for a present one.
_VERSION = 1
# Part of each picture's seed, so that splits share no picture.
_SPLITS = {"train": 0, "val": 1}
IMAGE_FORMATS = ("png", "jpg")

CATEGORIES = [
    {"id": i, "name": name, "isthing": int(name in THING_CLASSES), "color": color}
    for i, (name, color) in enumerate(
        zip(
            THING_CLASSES + STUFF_CLASSES,
            ([230, 60, 60], [245, 165, 35], [250, 230, 80], [200, 90, 220], [255, 140, 180])
            + ([135, 190, 250], [90, 170, 70], [40, 90, 170], [150, 90, 70]),
        ),
        start=1,
    )
]


def write_scenes(
    root: str,
    split: str,
    count: int,
    *,
    seed: int = 0,
    options: SceneOptions = SceneOptions(),
    image_format: str = "png",
    workers: int = 1,
    progress=iter,
) -> bool:
    """Makes ``count`` scenes of ``split`` under ``root``; the bytes depend on neither ``workers`` nor ``count``.

    Everything is made in a hidden folder and moved into place at the end, the panoptic JSON last.

    Args:
        split: "train" or "val".
        image_format: "png" or "jpg".
        progress: wraps the iterator over the finished scenes.

    Returns:
        False where the same set was there already, and nothing was done.

    Raises:
        ValueError: an option is out of range.
        FileExistsError: other files of that split are there.
    """
    options.check()
    if split not in _SPLITS or count < 1 or image_format not in IMAGE_FORMATS or seed < 0 or workers < 1:
        raise ValueError(
            f"needs split in {tuple(_SPLITS)}, count >= 1, image_format in {IMAGE_FORMATS}, seed >= 0 and workers >= 1, "
            f"got {split}, {count}, {image_format}, {seed}, {workers}"
        )
    final = split_of_folder(root, split)
    info = {"generator": "rfpn scenes", "version": _VERSION, "seed": seed, "image_format": image_format, "count": count}
    info["options"] = {k: list(v) if isinstance(v, tuple) else v for k, v in options._asdict().items()}
    if _is_there(final, info):
        return False
    partial_root = os.path.join(root, f".{split}.partial")
    os.makedirs(root, exist_ok=True)
    # another program may be at it
    with locked(partial_root):
        if _is_there(final, info):
            return False
        shutil.rmtree(partial_root, ignore_errors=True)
        paths = split_of_folder(partial_root, split)
        for folder in (paths.image_root, paths.panoptic_root, paths.sem_seg_root):
            os.makedirs(folder)
        job = partial(_write_scene, paths=paths, split=split, seed=seed, options=options, image_format=image_format)
        if workers > 1:
            with _one_thread(), worker_pool(min(workers, count)) as pool:
                results = list(progress(pool.map(job, range(count), chunksize=16)))
        else:
            results = list(progress(map(job, range(count))))
        _write_jsons(paths, info, results)
        os.makedirs(os.path.join(root, "annotations"), exist_ok=True)
        for source, target in zip(_completion_order(paths), _completion_order(final)):
            os.rename(source, target)
        shutil.rmtree(partial_root)
    return True


@contextmanager
def _one_thread():
    """OpenCV in one thread, also in processes forked meanwhile: they fill the CPUs.

    Asking for it in a forked process would wait for threads that were not forked with it.
    """
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)


def _completion_order(paths) -> tuple:
    return paths.image_root, paths.panoptic_root, paths.sem_seg_root, paths.instances_json, paths.panoptic_json


def _is_there(final, info: dict) -> bool:
    present = [path for path in _completion_order(final) if os.path.exists(path)]
    whole = present == list(_completion_order(final)) and all(os.listdir(path) for path in present if os.path.isdir(path))
    if not present:
        return False
    found = read_json(final.panoptic_json).get("info") if whole else None
    if found == info:
        return True
    reason = f"made with other options: {differences(found, info)}" if isinstance(found, dict) else "not finished"
    raise FileExistsError(f"{', '.join(present)}: there already, {reason}. Choose another output folder, or delete these")


def _write_scene(index: int, paths, split: str, seed: int, options: SceneOptions, image_format: str) -> tuple:
    """Writes scene ``index`` (from 0); returns its COCO image record, panoptic annotation and instances."""
    scene = render_scene(options, np.random.default_rng([seed, _SPLITS[split], index]))
    categories = Categories(CATEGORIES[: len(THING_CLASSES)], CATEGORIES[len(THING_CLASSES) :])
    ids = {c["name"]: c["id"] for c in CATEGORIES}
    segments = []
    for number, segment in enumerate(scene.segments, start=1):
        x, y, w, h = cv2.boundingRect((scene.index == number).astype(np.uint8))
        area = int((scene.index == number).sum())
        record = {"category_id": ids[segment["name"]], "area": area, "bbox": [x, y, w, h], "iscrowd": 0}
        segments.append({"id": segment["id"], **record})
    panoptic = np.array([0] + [s["id"] for s in segments])[scene.index]

    stem = f"{index + 1:08d}"
    quality = [cv2.IMWRITE_PNG_COMPRESSION, 1] if image_format == "png" else [cv2.IMWRITE_JPEG_QUALITY, 95]
    write_image(os.path.join(paths.image_root, f"{stem}.{image_format}"), scene.image, quality)
    write_image(os.path.join(paths.panoptic_root, f"{stem}.png"), encode_ids(panoptic))
    labels = semantic_map(scene.index, segments, categories)
    write_image(os.path.join(paths.sem_seg_root, f"{stem}.png"), labels)
    image = {
        "id": index + 1,
        "file_name": f"{stem}.{image_format}",
        "height": options.height,
        "width": options.width,
        "texture_conflict": scene.texture_conflict,
    }
    annotation = {"image_id": index + 1, "file_name": f"{stem}.png", "segments_info": segments}
    return image, annotation, thing_annotations(scene.index, segments, categories)


def _write_jsons(paths, info: dict, results: list) -> None:
    images = [image for image, _, _ in results]
    instances = numbered_instances((image["id"], things) for image, _, things in results)
    common = {"info": info, "licenses": [], "images": images}
    things = [c for c in CATEGORIES if c["isthing"]]
    write_json(paths.instances_json, {**common, "annotations": instances, "categories": things})
    annotations = [annotation for _, annotation, _ in results]
    write_json(paths.panoptic_json, {**common, "annotations": annotations, "categories": CATEGORIES})
