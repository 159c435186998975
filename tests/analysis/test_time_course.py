"""Scores by step of processing."""

from pathlib import Path

import pytest
import torch
from detectron2.modeling import build_model

from rfpn.analysis.time_course import evaluate_time_course, step_outputs
from rfpn.engine.setup import load_cfg
from rfpn.evaluation.pathfinder import PathfinderEvaluator

CONFIGS = Path(__file__).parents[2] / "configs"
FEEDFORWARD = ["MODEL.PATHFINDER.LAYER", "feedforward", "MODEL.RECURRENT.LIPSCHITZ.WEIGHT", "0.0"]


def build(config, *overrides):
    torch.manual_seed(0)
    cfg = load_cfg(str(CONFIGS / config), ["MODEL.DEVICE", "cpu", "MODEL.WEIGHTS", "", *overrides])
    return build_model(cfg).eval()


def pathfinder_batch(count=3, size=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "image": torch.randint(0, 256, (1, size, size), dtype=torch.uint8, generator=generator),
            "sem_seg": torch.randint(0, 2, (size, size), dtype=torch.uint8, generator=generator),
        }
        for _ in range(count)
    ]


def panoptic_batch():
    generator = torch.Generator().manual_seed(0)
    shape = (3, 64, 96)
    return [{"image": torch.randint(0, 256, shape, generator=generator), "height": 32, "width": 48, "image_id": 0}]


def test_pathfinder_scores_equal_those_of_separate_evaluations():
    model, batches = build("quick_schedules/pathfinder_quick.yaml"), [pathfinder_batch(seed=i) for i in range(2)]
    model.readout.bias.data.zero_()  # so that both classes are predicted
    course = evaluate_time_course(model, batches, [1, 3, 6], lambda: PathfinderEvaluator("toy"))
    assert list(course) == [1, 3, 6]
    assert len({scores["IoU"] for scores in course.values()}) == 3
    for step, scores in course.items():
        model.layer.test_steps = step
        evaluator, residuals = PathfinderEvaluator("toy"), []
        for batch in batches:
            with torch.no_grad():
                evaluator.process(batch, model(batch))
            residuals.append(model.layer.diagnostics["residual"])
        expected = {**evaluator.evaluate()["pathfinder"], "residual": float(torch.stack(residuals).mean())}
        assert scores == pytest.approx(expected, rel=1e-5)


def test_panoptic_outputs_equal_those_of_separate_runs():
    model, inputs = build("Scenes/rfpn_demo.yaml"), panoptic_batch()
    model.combine_instances_score_thresh = 0.0
    model.roi_heads.mask_head.predictor.weight.data.normal_(std=1.0)  # masks that depend on the state
    with torch.no_grad():
        outputs = dict(step_outputs(model, inputs, [1, 2, 4]))
    seen = []
    for step in (1, 2, 4):
        model.roi_heads.mask_head.recurrent.test_steps = step
        with torch.no_grad():
            expected, expected_info = model(inputs)[0]["panoptic_seg"]
        found, info = outputs[step][0]["panoptic_seg"]
        assert found.shape == (32, 48) and len(info) > 1
        torch.testing.assert_close(found, expected)
        assert [s["category_id"] for s in info] == [s["category_id"] for s in expected_info]
        seen.append(found)
    assert not torch.equal(seen[0], seen[2])


def test_models_without_steps_are_refused():
    with pytest.raises(ValueError, match="Linear has no recurrent layer"):
        next(step_outputs(torch.nn.Linear(1, 1), [], [1]))
    control = build("quick_schedules/pathfinder_quick.yaml", *FEEDFORWARD)
    with pytest.raises(ValueError, match="no recurrent layer"):
        next(step_outputs(control, pathfinder_batch(), [1]))
    without_stuff = build("Scenes/rfpn_demo.yaml", "MODEL.META_ARCHITECTURE", "GeneralizedRCNN")
    with pytest.raises(ValueError, match="GeneralizedRCNN has no semantic branch"):
        next(step_outputs(without_stuff, panoptic_batch(), [1]))


def test_nothing_to_evaluate_has_no_scores():
    model = build("quick_schedules/pathfinder_quick.yaml")
    assert evaluate_time_course(model, [], [1, 2], lambda: PathfinderEvaluator("toy")) == {1: {}, 2: {}}
