import copy
import math

import numpy as np
import pytest
import torch
from detectron2.data import DatasetCatalog
from detectron2.evaluation import COCOPanopticEvaluator
from detectron2.modeling.meta_arch.panoptic_fpn import combine_semantic_and_instance_outputs
from detectron2.structures import Instances
from PIL import Image

from rfpn.data.images import read_label_map
from rfpn.data.panoptic import register_panoptic_folder
from rfpn.data.scenes.dataset import write_scenes
from rfpn.evaluation.panoptic import PanopticEvaluator, self_test, visible_segments
from tests.data.conftest import catalogs  # noqa: F401
from tests.data.tiny_panoptic import CATEGORIES, edit_json, mixed_layouts, write_set

pytestmark = pytest.mark.usefixtures("catalogs")


@pytest.fixture
def tiny(catalogs, tmp_path):  # noqa: F811
    register_panoptic_folder("tiny", str(write_set(tmp_path / "set", mixed_layouts())), "train")
    return "tiny"


def merged(overlap_threshold=0.5, stuff_area_limit=0):
    """Detectron2's merging of one instance that covers all of semantic label 1, and a lower one of the same mask."""
    masks = torch.zeros(2, 48, 64, dtype=torch.bool)
    masks[:, :20, :30] = True
    semantic = torch.full((48, 64), 2)
    semantic[:20, :30] = 1
    instances = Instances(
        (48, 64), pred_masks=masks, scores=torch.tensor([0.9, 0.8]), pred_classes=torch.tensor([0, 1])
    )
    return combine_semantic_and_instance_outputs(instances, semantic, overlap_threshold, stuff_area_limit, 0.5)


@pytest.mark.parametrize("stuff_area_limit", [0, 1, 4096])
@pytest.mark.parametrize("overlap_threshold", [0.0, 0.5, 1.0])
def test_B3_listed_segments_are_the_visible_ones(tiny, overlap_threshold, stuff_area_limit):
    panoptic_seg, segments = merged(overlap_threshold, stuff_area_limit)
    kept = visible_segments(panoptic_seg, segments, "a.png")
    assert {s["id"] for s in kept} == set(panoptic_seg.unique().tolist()) - {0}
    evaluator = PanopticEvaluator(tiny)
    evaluator.reset()
    for record in DatasetCatalog.get(tiny):
        evaluator.process([record], [{"panoptic_seg": (panoptic_seg, segments)}])
    assert 0 <= evaluator.evaluate()["panoptic_seg"]["PQ"] <= 100


def test_B3_the_case_is_one_that_detectron2_lists_wrongly():
    panoptic_seg, segments = merged(1.0, 0)
    assert {s["id"] for s in segments} > set(panoptic_seg.unique().tolist()) - {0}


@pytest.mark.parametrize("ids, listed", [([0, 1], [0, 1]), ([0, 1, 2], [1]), ([0, 2**24], [2**24])])
def test_B4_ids_below_one_unlisted_or_too_large_are_refused(ids, listed):
    panoptic_seg = torch.tensor([ids])
    with pytest.raises(ValueError, match="a.png"):
        visible_segments(panoptic_seg, [{"id": i, "category_id": 0, "isthing": True} for i in listed], "a.png")


def test_outputs_are_left_whole(tiny):
    record = DatasetCatalog.get(tiny)[0]
    output = {"panoptic_seg": merged()}
    before = copy.deepcopy(output["panoptic_seg"][1])
    evaluator = PanopticEvaluator(tiny)
    evaluator.reset()
    evaluator.process([record], [output])
    assert output["panoptic_seg"][1] == before


def test_pictures_without_annotation_are_not_scored(tiny):
    records = [*DatasetCatalog.get(tiny), {"image_id": 99, "file_name": "more.png"}]
    evaluator = PanopticEvaluator(tiny)
    scores = []
    for given in (records[:2], records):
        evaluator.reset()
        evaluator.process(given, [{"panoptic_seg": merged()} for _ in given])
        scores.append(evaluator.evaluate()["panoptic_seg"])
    assert scores[0] == scores[1] and scores[0]["PQ"] > 0


def refused(name, output, words):
    """Processing the first picture of a set ends with these words after its name."""
    evaluator = PanopticEvaluator(name)
    evaluator.reset()
    with pytest.raises(ValueError, match=f"photo1.png: {words}"):
        evaluator.process(DatasetCatalog.get(name)[:1], [output])


def test_a_model_that_gives_no_panoptic_map_is_told_so(tiny):
    words = "the model returned no 'panoptic_seg', only sem_seg; return it .* override Trainer.build_evaluator"
    refused(tiny, {"sem_seg": torch.zeros(3, 48, 64)}, words)
    refused(tiny, {}, "the model returned no 'panoptic_seg', only nothing")


@pytest.mark.parametrize("segments", [True, False])
def test_a_map_of_another_size_is_named(tiny, segments):
    panoptic_seg, listed = merged()
    words = r"the predicted panoptic_seg is of size \(24, 32\), its picture of \(48, 64\) .*sem_seg_postprocess"
    refused(tiny, {"panoptic_seg": (panoptic_seg[::2, ::2], listed if segments else None)}, words)


@pytest.mark.parametrize(
    "segment, known",
    [
        ({"category_id": 99, "isthing": True}, "0, 1, 2"),
        ({"category_id": 3, "isthing": False}, "1, 2"),
        # what stands for "things" in label maps
        ({"category_id": 0, "isthing": False}, "1, 2"),
        # the JSON's own ids
        ({"category_id": 1}, "3, 7, 40, 60, 90"),
        ({"isthing": True}, "0, 1, 2"),
    ],
)
def test_a_category_that_the_set_lacks_is_named(tiny, segment, known):
    output = {"panoptic_seg": (torch.ones(48, 64, dtype=torch.int32), [{"id": 1, **segment}])}
    words = f"has category_id {segment.get('category_id')}; it must be one of {known}$"
    refused(tiny, output, f"a predicted segment with isthing {segment.get('isthing')} {words}")


def test_segments_may_bear_the_ids_of_the_json(tiny):
    scores = []
    numbers = {"id": torch.tensor(1), "category_id": torch.tensor(1), "isthing": np.bool_(False), "bbox": np.zeros(4)}
    for segment in ({"category_id": 1, "isthing": False}, {"category_id": 40}, numbers):
        evaluator = PanopticEvaluator(tiny)
        evaluator.reset()
        for record in DatasetCatalog.get(tiny):
            output = {"panoptic_seg": (torch.ones(48, 64, dtype=torch.int32), [{"id": 1, **segment}])}
            evaluator.process([record], [output])
        scores.append(evaluator.evaluate()["panoptic_seg"]["SQ_st"])
    assert scores[0] == scores[1] == scores[2]


@pytest.mark.parametrize("yes", [1, np.True_, torch.tensor(True)])
def test_a_thing_may_be_one_in_other_types_than_bool(tiny, yes):
    """Detectron2 would take it for stuff."""
    evaluator, record = PanopticEvaluator(tiny), DatasetCatalog.get(tiny)[0]
    evaluator.reset()
    segments = [{"id": 1, "category_id": 1, "isthing": yes}]
    evaluator.process([record], [{"panoptic_seg": (torch.ones(48, 64, dtype=torch.int32), segments)}])
    assert [s["category_id"] for s in evaluator._predictions[0]["segments_info"]] == [7]


def test_B4_B9_self_test_reaches_100(tiny):
    results = self_test(tiny)["panoptic_seg"]
    assert set(results) == {f"{q}{g}" for q in ("PQ", "SQ", "RQ") for g in ("", "_th", "_st")}
    assert all(value == pytest.approx(100) for value in results.values())


def test_B9_shifted_label_map_fails_the_self_test(tiny):
    for record in DatasetCatalog.get(tiny):
        labels = read_label_map(record["sem_seg_file_name"])
        labels[labels < 3] -= labels[labels < 3] > 0
        Image.fromarray(labels).save(record["sem_seg_file_name"])
    with pytest.raises(ValueError, match="'tiny'.*PQ"):
        self_test(tiny)


def test_self_test_names_a_set_that_is_not_registered():
    with pytest.raises(KeyError, match="'mine_trian' is not registered"):
        self_test("mine_trian")


def test_B9_self_test_of_scenes(tmp_path):
    write_scenes(str(tmp_path / "scenes"), "val", 8)
    register_panoptic_folder("scenes", str(tmp_path / "scenes"), "val")
    assert self_test("scenes")["panoptic_seg"]["PQ"] == pytest.approx(100)


@pytest.mark.parametrize("isthing, empty", [(1, "PQ_st"), (0, "PQ_th")])
def test_B1_set_of_one_group(tmp_path, isthing, empty):
    categories = [c for c in CATEGORIES if c["isthing"] == isthing]
    layout = [(c["id"], (0, 10 * i, 64, 10 * i + 10), 0) for i, c in enumerate(categories)]
    register_panoptic_folder("tiny", str(write_set(tmp_path / "set", [layout], categories)), "train")
    results = self_test("tiny")["panoptic_seg"]
    assert math.isnan(results[empty]) and results["PQ"] == pytest.approx(100)


def test_B1_instances_found_on_a_set_without_things_are_void(tmp_path):
    categories = [c for c in CATEGORIES if not c["isthing"]]
    layout = [(40, (0, 0, 64, 20), 0), (90, (0, 20, 64, 48), 0)]
    register_panoptic_folder("tiny", str(write_set(tmp_path / "set", [layout], categories)), "train")
    evaluator = PanopticEvaluator("tiny")
    evaluator.reset()
    (record,) = DatasetCatalog.get("tiny")
    panoptic_seg = torch.full((48, 64), 1)
    panoptic_seg[20:], panoptic_seg[20:24] = 2, 3
    segments = [
        {"id": 1, "isthing": False, "category_id": 1},
        {"id": 2, "isthing": False, "category_id": 2},
        {"id": 3, "isthing": True, "category_id": 0},
    ]
    evaluator.process([record], [{"panoptic_seg": (panoptic_seg, segments)}])
    results = evaluator.evaluate()["panoptic_seg"]
    assert math.isnan(results["PQ_th"]) and results["PQ"] == pytest.approx(100 * (1 + 24 / 28) / 2)
    assert (panoptic_seg == 3).any(), "the model's own output stays"


def test_images_of_one_base_name_in_two_folders(tiny, tmp_path):
    root = tmp_path / "two"
    write_set(root, mixed_layouts())
    for number, folder in ((1, "a"), (2, "b")):
        for kind, stem in (("train", "photo"), ("panoptic_train", "label")):
            (root / kind / folder).mkdir()
            (root / kind / f"{stem}{number}.png").rename(root / kind / folder / "same.png")
    path = root / "annotations/panoptic_train.json"
    text = path.read_text()
    for number, folder in ((1, "a"), (2, "b")):
        text = text.replace(f"photo{number}.png", f"{folder}/same.png").replace(
            f"label{number}.png", f"{folder}/same.png"
        )
    path.write_text(text)
    register_panoptic_folder("two", str(root), "train")
    assert self_test("two")["panoptic_seg"]["PQ"] == pytest.approx(100)


def test_agrees_with_detectron2s_evaluator(tiny):
    panoptic_seg, segments = merged(0.5, 4096)
    results = []
    for evaluator in (PanopticEvaluator(tiny, workers=1), COCOPanopticEvaluator(tiny)):
        evaluator.reset()
        for record in DatasetCatalog.get(tiny):
            output = {"panoptic_seg": (panoptic_seg, copy.deepcopy(segments))}
            evaluator.process([record], [output])
        results.append(evaluator.evaluate()["panoptic_seg"])
    assert results[0] == pytest.approx(results[1])


def test_predictions_are_kept_where_asked(tiny, tmp_path):
    evaluator = PanopticEvaluator(tiny, str(tmp_path / "out"))
    evaluator.reset()
    for record in DatasetCatalog.get(tiny):
        evaluator.process([record], [{"panoptic_seg": merged()}])
    evaluator.evaluate()
    assert (tmp_path / "out/predictions.json").is_file()


def things_at(*boxes):
    """A prediction of things (contiguous class, x0, y0, x1, y1) in order, void elsewhere."""
    panoptic_seg, segments = torch.zeros(48, 64, dtype=torch.int32), []
    for number, (category, x0, y0, x1, y1) in enumerate(boxes, start=1):
        panoptic_seg[y0:y1, x0:x1] = number
        segments.append({"id": number, "isthing": True, "category_id": category, "score": 1.0})
    return panoptic_seg, segments


def test_flagged_images_are_scored_apart_from_the_others(tmp_path):
    both, stuff = mixed_layouts()
    root = write_set(tmp_path / "set", [both, stuff, both])

    def flag(content):
        content["images"][0]["texture_conflict"] = True
        content["images"][1]["texture_conflict"] = False

    edit_json(root / "annotations" / "panoptic_train.json", flag)
    register_panoptic_folder("flagged", str(root), "train")
    # the dog is found, the cow taken for a dog, and a cat seen in the sky
    found = [things_at((1, 4, 10, 24, 30), (1, 30, 14, 50, 40), (0, 52, 0, 64, 10)), things_at(), things_at()]
    for flags, tasks in ((), 1), (("texture_conflict",), 3), (("night",), 1):
        evaluator = PanopticEvaluator("flagged", flags=flags)
        evaluator.reset()
        for record, prediction in zip(DatasetCatalog.get("flagged"), found):
            evaluator.process([record], [{"panoptic_seg": prediction}])
        results = evaluator.evaluate()
        assert len(results) == tasks
        if tasks == 1:
            continue
        conflict, rest = results["texture_conflict"], results["no_texture_conflict"]
        assert (conflict["images"], conflict["false_things"], conflict["missed_things"]) == (1, 2, 1)
        assert (rest["images"], rest["false_things"], rest["missed_things"]) == (2, 0, 1)
        assert conflict["PQ_th"] == pytest.approx(100 * (1 / 1.5) / 3) and conflict["PQ_st"] == 0
        assert rest["PQ"] == 0 and rest.keys() == conflict.keys()


def test_no_room_for_temporary_files_names_their_variable(tiny, monkeypatch):
    evaluator = PanopticEvaluator(tiny)
    evaluator.reset()
    evaluator._predictions = [{"image_id": 1, "file_name": "a.png", "png_string": b"", "segments_info": []}]

    def full(path, mode="r", *rest):
        if "w" in mode:
            raise OSError(28, "No space left on device")
        return open(path, mode, *rest)

    monkeypatch.setattr("rfpn.evaluation.panoptic.open", full, raising=False)
    with pytest.raises(OSError, match="No space left on device; TMPDIR names another folder"):
        evaluator.evaluate()
