"""Panoptic quality by panopticapi, with the ground truth checked and groups without categories allowed."""

import contextlib
import io
import math
import os
from functools import partial
from urllib.parse import quote

import numpy as np
from panopticapi.evaluation import PQStat, pq_compute_single_core

from rfpn.data.panoptic_png import index_segments, read_panoptic_png, write_panoptic_png
from rfpn.data.workers import worker_pool

# Below this many pictures a process costs more than it saves.
_IMAGES_A_WORKER = 25
# At most: Ctrl-C waits for the tasks that are being done.
_IMAGES_A_TASK = 8

# Result group -> whether its categories are things; None is both.
GROUPS = {"All": None, "Things": True, "Stuff": False}
# Name of a count of segments -> panopticapi's.
_SEGMENTS = {"matched": "tp", "false": "fp", "missed": "fn"}


def score_panoptic(
    gt: dict, gt_folder: str, predictions: list, pred_folder: str, *, workers: int | None = None
) -> dict:
    """PQ, SQ, RQ of ``predictions`` against ``gt`` (Kirillov et al., "Panoptic Segmentation", Eq. 1).

    Areas of the ground truth are counted from its PNGs, never taken from the JSON. Pixels of crowd regions count
    neither for nor against a prediction of their category.

    Args:
        gt: COCO panoptic JSON.
        gt_folder, pred_folder: folders of the panoptic PNGs.
        predictions: one COCO panoptic annotation for each of ``gt``'s.
        workers: processes, at most one a CPU and one an image; 0 or 1: none besides this; default: one for every
            25 images.

    Returns:
        group ("All", "Things", "Stuff") -> ``pq``, ``sq``, ``rq`` in [0, 1] and ``n``, the number of categories that
        occur. A group in which no category occurs has NaN and n = 0.
        ``segments``: group -> number of segments ``matched``, ``false`` (predicted, without a match; those mostly on
        void or on a crowd of their category left out) and ``missed``.
        ``area_mismatches``: number of ground-truth segments whose JSON area was wrong.

    Raises:
        ValueError: an image lacks a prediction, or a file of the ground truth is wrong; names it.
    """
    predicted = {p["image_id"]: p for p in predictions}
    missing = [a["image_id"] for a in gt["annotations"] if a["image_id"] not in predicted]
    if missing:
        raise ValueError(f"{len(missing)} images have no prediction, the first is image {missing[0]}")
    pairs = [(a, predicted[a["image_id"]]) for a in gt["annotations"]]
    categories = {c["id"]: c for c in gt["categories"]}
    workers = worker_count(len(pairs), workers)
    job = partial(_score_pairs, gt_folder=gt_folder, pred_folder=pred_folder, categories=categories)
    size = min(_IMAGES_A_TASK, len(pairs) // workers or 1)
    tasks = [pairs[i : i + size] for i in range(0, len(pairs), size)]
    if workers == 1:
        parts = list(map(job, tasks))
    else:
        with worker_pool(workers) as pool:  # leaving the block ends the processes
            parts = list(pool.map(job, tasks))
    total, mismatches = PQStat(), 0
    for stat, wrong_areas in parts:
        total += stat
        mismatches += wrong_areas
    results = {group: _average(total, categories, isthing) for group, isthing in GROUPS.items()}
    results["segments"] = {group: _count(total, categories, isthing) for group, isthing in GROUPS.items()}
    results["area_mismatches"] = mismatches
    return results


def worker_count(images: int, workers: int | None = None) -> int:
    """Processes to use: ``workers`` or one for every 25 images, at most one a CPU and one an image."""
    wanted = math.ceil(images / _IMAGES_A_WORKER) if workers is None else workers
    return max(1, min(wanted, os.cpu_count() or 1, images))


def _score_pairs(pairs: list, gt_folder: str, pred_folder: str, categories: dict) -> tuple:
    """panopticapi's counts over some images, and the number of wrong areas."""
    total, mismatches = PQStat(), 0
    for gt, prediction in pairs:
        gt, wrong_areas, merged = _checked(gt, gt_folder)
        mismatches += wrong_areas
        folder = gt_folder
        if merged is not None:
            folder = pred_folder
            # an id may be a path
            gt["file_name"] = f"merged_crowds_{quote(str(gt['image_id']), safe='')}.png"
            write_panoptic_png(os.path.join(folder, gt["file_name"]), merged)
        # panopticapi writes areas into the records it is given.
        prediction = {**prediction, "segments_info": [dict(s) for s in prediction["segments_info"]]}
        with contextlib.redirect_stdout(io.StringIO()):
            total += pq_compute_single_core(0, [(gt, prediction)], folder, pred_folder, categories)
    return total, mismatches


def _checked(gt: dict, gt_folder: str) -> tuple:
    """The annotation with counted areas, how many were wrong, and new ids (H, W) where crowds had to be merged.

    panopticapi knows one crowd region a category; a second one would count against predictions on the first.
    """
    path = os.path.join(gt_folder, gt["file_name"])
    ids = read_panoptic_png(path)
    for segment in gt["segments_info"]:
        for key in ("id", "category_id", "area", "iscrowd"):
            if key not in segment:
                raise ValueError(f"{path}: image {gt['image_id']}'s record of segment {segment} has no '{key}'")
    try:
        _, areas = index_segments(ids, gt["segments_info"])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    wrong = sum(int(s["area"] != area) for s, area in zip(gt["segments_info"], areas))
    segments, crowds, merged = [], {}, None
    for segment, area in zip(gt["segments_info"], areas.tolist()):
        first = crowds.get(segment["category_id"]) if segment["iscrowd"] else None
        if first is not None:
            merged = ids.copy() if merged is None else merged
            merged[merged == segment["id"]] = first
            continue
        segments.append({**segment, "area": area})
        if segment["iscrowd"]:
            crowds[segment["category_id"]] = segment["id"]
    return {**gt, "segments_info": segments}, wrong, merged


def _class_quality(stat) -> dict:
    """Quality of one category; NaN where it neither occurs nor is predicted."""
    weight = stat.tp + 0.5 * stat.fp + 0.5 * stat.fn
    if weight == 0:
        return {"pq": math.nan, "sq": math.nan, "rq": math.nan}
    return {"pq": stat.iou / weight, "sq": stat.iou / stat.tp if stat.tp else 0.0, "rq": stat.tp / weight}


def _average(total, categories: dict, isthing: bool | None) -> dict:
    group = _members(categories, isthing)
    qualities = [q for q in (_class_quality(total[i]) for i in group) if not math.isnan(q["pq"])]
    if not qualities:
        return {"pq": math.nan, "sq": math.nan, "rq": math.nan, "n": 0}
    means = {key: float(np.mean([q[key] for q in qualities])) for key in ("pq", "sq", "rq")}
    if not all(0 <= value <= 1 + 1e-9 for value in means.values()):
        raise ValueError(f"panoptic quality {means} is outside [0, 1]: the ground truth is inconsistent")
    return {**means, "n": len(qualities)}


def _count(total, categories: dict, isthing: bool | None) -> dict:
    stats = [total[i] for i in _members(categories, isthing)]
    return {name: int(sum(getattr(s, key) for s in stats)) for name, key in _SEGMENTS.items()}


def _members(categories: dict, isthing: bool | None) -> list:
    return [i for i, c in categories.items() if isthing is None or bool(c["isthing"]) == isthing]
