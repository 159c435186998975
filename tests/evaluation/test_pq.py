import json
import math
import multiprocessing
import os

import numpy as np
import pytest
import torch
from detectron2.data import DatasetCatalog
from PIL import Image

from rfpn.data.panoptic import register_panoptic_folder
from rfpn.data.panoptic_png import encode_ids
from rfpn.data.workers import worker_pool
from rfpn.evaluation import pq
from rfpn.evaluation.panoptic import PanopticEvaluator
from rfpn.evaluation.pq import score_panoptic, worker_count
from tests.data.tiny_panoptic import mixed_layouts, write_set

THINGS = [{"id": 5, "name": "thing", "isthing": 1}]
STUFF = [{"id": 9, "name": "stuff", "isthing": 0}]


def picture(*boxes):
    """(id, category, box, iscrowd) painted in order into 20x20 pixels; area as painted."""
    ids = np.zeros((20, 20), dtype=np.int64)
    for segment_id, _, (x0, y0, x1, y1), _ in boxes:
        ids[y0:y1, x0:x1] = segment_id
    segments = [
        {"id": i, "category_id": c, "iscrowd": crowd, "area": int((ids == i).sum())} for i, c, _, crowd in boxes
    ]
    return ids, segments


def write(folder, pictures):
    folder.mkdir(exist_ok=True)
    annotations = []
    for number, (ids, segments) in enumerate(pictures, start=1):
        Image.fromarray(encode_ids(ids)).save(folder / f"{number}.png")
        annotations.append({"image_id": number, "file_name": f"{number}.png", "segments_info": segments})
    return annotations


def score(tmp_path, gt, predicted, categories=THINGS + STUFF, change=None, number=1, **options):
    truth = {"annotations": write(tmp_path / "gt", gt), "categories": categories}
    if change:
        change(truth)
    predictions = write(tmp_path / "pred", predicted)
    predictions[0]["image_id"] = number
    return score_panoptic(truth, str(tmp_path / "gt"), predictions, str(tmp_path / "pred"), **options)


HALF = (300, 9, (0, 0, 20, 10), 0)
BOX = (70000, 5, (2, 12, 12, 18), 0)


def test_B4_truth_as_prediction_is_perfect(tmp_path):
    result = score(tmp_path, [picture(HALF, BOX)], [picture(HALF, BOX)])
    for group, n in (("All", 2), ("Things", 1), ("Stuff", 1)):
        assert result[group] == {"pq": 1.0, "sq": 1.0, "rq": 1.0, "n": n}
        assert result["segments"][group] == {"matched": n, "false": 0, "missed": 0}


def test_equals_panopticapi_on_random_pictures(tmp_path):
    """Against panopticapi's own entry point, with errors of every kind; both groups occur."""
    evaluation = pytest.importorskip("panopticapi.evaluation")
    rng = np.random.default_rng(0)

    def boxes(jitter):
        result = [(1, 9, (0, 0, 20, 12), 0)]
        for i in range(2, 6):
            x, y = (4 * (i - 2) + int(rng.integers(0, jitter + 1)), 12)
            result.append((i, 5, (x, y, x + 4, y + 4), int(i == 5)))
        return picture(*result)

    gt, predicted = [boxes(0) for _ in range(6)], [boxes(2) for _ in range(6)]
    predicted = [(ids, [s for s in segments if (ids == s["id"]).any()]) for ids, segments in predicted]
    ours = score(tmp_path, gt, predicted)
    truth = {"annotations": write(tmp_path / "gt", gt), "categories": THINGS + STUFF}
    answer = {"annotations": write(tmp_path / "pred", predicted)}
    (tmp_path / "gt.json").write_text(json.dumps(truth))
    (tmp_path / "pred.json").write_text(json.dumps(answer))
    theirs = evaluation.pq_compute(*(str(tmp_path / f) for f in ("gt.json", "pred.json", "gt", "pred")))
    for group in ("All", "Things", "Stuff"):
        assert ours[group] == pytest.approx(theirs[group])
    assert 0 < ours["Things"]["pq"] < 1


@pytest.mark.parametrize("box, categories, empty, full", [(BOX, THINGS, "Stuff", "Things"), (HALF, STUFF, "Things", "Stuff")])
def test_B1_empty_group_is_nan_and_all_is_the_other(tmp_path, box, categories, empty, full):
    result = score(tmp_path, [picture(box)], [picture(box)], categories)
    assert result[empty]["n"] == 0 and all(math.isnan(result[empty][k]) for k in ("pq", "sq", "rq"))
    assert result["All"] == result[full] == {"pq": 1.0, "sq": 1.0, "rq": 1.0, "n": 1}


def test_B1_void_only_pictures(tmp_path):
    result = score(tmp_path, [picture()], [picture()])
    assert result["All"]["n"] == 0 and math.isnan(result["All"]["pq"])


def test_B2_wrong_areas_are_counted_anew(tmp_path):
    def shrink(truth):
        truth["annotations"][0]["segments_info"][0]["area"] = 10

    result = score(tmp_path, [picture(HALF, BOX)], [picture(HALF, BOX)], change=shrink)
    assert result["All"]["pq"] == 1.0 and result["area_mismatches"] == 1


@pytest.mark.parametrize("field", ["area", "iscrowd"])
def test_B2_missing_field_is_named(tmp_path, field):
    with pytest.raises(ValueError, match=f"1.png.*no '{field}'"):
        score(
            tmp_path,
            [picture(HALF)],
            [picture(HALF)],
            change=lambda truth: truth["annotations"][0]["segments_info"][0].pop(field),
        )


def test_B8_grey_ground_truth_is_named(tmp_path):
    def grey(truth):
        Image.new("L", (20, 20)).save(tmp_path / "gt/1.png")

    with pytest.raises(ValueError, match="gt/1.png.*mode L"):
        score(tmp_path, [picture(HALF)], [picture(HALF)], change=grey)


def test_A9_crowds_count_neither_way(tmp_path):
    boxes = [(0, 0, 8, 8), (10, 10, 18, 18), (10, 0, 18, 8)]
    crowds, found = ([(number, 5, box, crowd) for number, box in enumerate(boxes, 1)] for crowd in (1, 0))
    unfound = score(tmp_path, [picture(*crowds, HALF[:2] + ((0, 18, 20, 20), 0))], [picture((4, 9, (0, 18, 20, 20), 0))])
    assert unfound["Things"]["n"] == 0 and unfound["All"]["pq"] == 1.0
    # ids may be names as well, with folders in them
    for number in (1, "city/0001"):

        def rename(truth):
            truth["annotations"][0]["image_id"] = number

        result = score(tmp_path, [picture(*crowds)], [picture(*found)], change=rename, number=number)
        assert result["Things"]["n"] == 0, "detections on any of three crowd regions are no false positives"


def test_missing_prediction_is_named(tmp_path):
    with pytest.raises(ValueError, match="1 images have no prediction, the first is image 2"):
        score(tmp_path, [picture(HALF), picture(BOX)], [picture(HALF)])


def test_B7_worker_count_is_bounded():
    assert worker_count(1000, 1) == 1 and worker_count(3, 0) == 1
    assert worker_count(3, 64) <= min(3, os.cpu_count())
    assert worker_count(10) == 1
    assert worker_count(100_000) == os.cpu_count()


def test_B7_workers_agree_and_none_is_left(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(pq, "worker_pool", lambda count: started.append(count) or worker_pool(count))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    pictures = [picture(HALF, BOX)] * 6
    wrong = [picture(HALF)] * 3 + [picture(HALF, BOX)] * 3
    one = score(tmp_path, pictures, wrong, workers=1)
    before = multiprocessing.active_children()
    for _ in range(3):
        assert score(tmp_path, pictures, wrong, workers=2) == one
    assert started == [2] * 3
    # an earlier test's may end meanwhile
    assert set(multiprocessing.active_children()) <= set(before)
    assert one["Things"]["rq"] == pytest.approx(3 / 4.5)


def test_a_set_without_images_has_no_score(tmp_path):
    empty = {"categories": [{"id": 1, "isthing": 1}], "annotations": []}
    assert math.isnan(pq.score_panoptic(empty, str(tmp_path), [], str(tmp_path))["All"]["pq"])


def test_a_task_has_few_images(tmp_path, monkeypatch):
    """Ctrl-C waits for those of the tasks that were begun."""

    def counted(pairs, **options):
        sizes.append(len(pairs))
        return of_pairs(pairs, **options)

    of_pairs, sizes = pq._score_pairs, []
    monkeypatch.setattr(pq, "_score_pairs", counted)
    pictures = [picture(HALF, BOX)] * 20
    assert score(tmp_path, pictures, pictures, workers=1)["All"]["pq"] == 1.0
    assert sizes == [8, 8, 4]


@pytest.mark.parametrize("number", [torch.tensor, np.float32])
def test_scores_of_segments_may_be_tensors_and_maps_of_8_bits(tmp_path, monkeypatch, number):
    monkeypatch.setenv("RFPN_DERIVED_DIR", str(tmp_path / "derived"))
    name = f"tensors_{tmp_path.name}"
    register_panoptic_folder(name, str(write_set(tmp_path / "set", mixed_layouts())), "train")
    evaluator = PanopticEvaluator(name, str(tmp_path))
    evaluator.reset()
    for record in DatasetCatalog.get(name):
        segments = [{"id": 1, "category_id": 1, "isthing": False, "score": number(0.5)}]
        evaluator.process([record], [{"panoptic_seg": (torch.ones(48, 64, dtype=torch.uint8), segments)}])
    assert evaluator.evaluate()["panoptic_seg"]["PQ"] >= 0
