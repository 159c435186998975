import math

import pytest
import torch
from detectron2.structures import Instances

from rfpn.evaluation.convergence import ConvergenceEvaluator


def evaluate(outputs, tolerance=0.0):
    evaluator = ConvergenceEvaluator(tolerance)
    evaluator.process([{}] * len(outputs), outputs)
    return evaluator.evaluate()


def of_rois(residuals):
    return {"instances": Instances((8, 8), mask_residual=torch.tensor(residuals))}


def test_E6_rois_of_all_images_count_alike():
    scores = evaluate([of_rois([0.001, 0.5]), of_rois([]), of_rois([0.02])])["convergence"]
    assert scores["residual"] == pytest.approx(0.521 / 3)
    assert scores["unconverged_share"] == pytest.approx(2 / 3)


def test_E6_the_tolerance_in_force_decides():
    outputs = [{"residual": torch.tensor(r)} for r in (0.05, 0.2)]
    assert evaluate(outputs, 0.1)["convergence"]["unconverged_share"] == 0.5
    assert evaluate(outputs)["convergence"]["unconverged_share"] == 1.0


def test_E1_a_state_that_is_not_finite_is_unconverged():
    scores = evaluate([{"residual": torch.tensor(float("nan"))}, {"residual": torch.tensor(0.0)}])["convergence"]
    assert scores["unconverged_share"] == 0.5 and math.isnan(scores["residual"])


def test_a_model_may_report_several_residuals_of_an_image():
    scores = evaluate([{"residual": torch.tensor([0.001, 0.5, 0.02])}, {"residual": torch.tensor(0.003)}])["convergence"]
    assert scores["residual"] == pytest.approx(0.524 / 4) and scores["unconverged_share"] == 0.5


def test_models_without_recurrence_have_no_scores():
    assert evaluate([{"sem_seg": torch.zeros(2, 2, 2)}, {"instances": Instances((8, 8))}]) == {}
    assert evaluate([]) == {}
