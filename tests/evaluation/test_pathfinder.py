"""Scores of contour segmentation."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rfpn.evaluation.pathfinder import PathfinderEvaluator, confusion_counts

GOLDEN = Path(__file__).parents[2].parent / "shared" / "reference" / "golden" / "focal_and_scores.npz"


def as_logits(predicted):
    predicted = torch.as_tensor(predicted).float()
    return torch.stack([1 - predicted, predicted], dim=1)


def evaluate(batches):
    evaluator = PathfinderEvaluator("toy")
    for predicted, target in batches:
        evaluator.process(
            [{"sem_seg": torch.as_tensor(t)} for t in target], [{"sem_seg": x} for x in as_logits(predicted)]
        )
    return evaluator.evaluate()["pathfinder"]


def random_batches(shapes=((3, 8, 8), (2, 8, 8)), seed=0):
    random = np.random.default_rng(seed)
    return [(random.random(shape) < 0.3, (random.random(shape) < 0.2).astype(np.uint8)) for shape in shapes]


def test_scores_by_their_definitions():
    batches = random_batches()
    predicted = np.concatenate([p for p, _ in batches])
    target = np.concatenate([t for _, t in batches]) == 1
    result = evaluate(batches)
    hits = (predicted & target).sum()
    assert result["IoU"] == pytest.approx(hits / (predicted | target).sum())
    assert result["precision"] == pytest.approx(hits / predicted.sum())
    assert result["recall"] == pytest.approx(hits / target.sum())
    assert result["F"] == pytest.approx(2 * hits / (predicted.sum() + target.sum()))
    specificity = (~predicted & ~target).sum() / (~target).sum()
    assert result["balanced_accuracy"] == pytest.approx((hits / target.sum() + specificity) / 2)
    images = [(p & t).sum() / (p | t).sum() for p, t in zip(predicted, target)]
    assert result["IoU_image"] == pytest.approx(np.mean(images))
    batch_f = np.mean([2 * (p & (t == 1)).sum() / (p.sum() + (t == 1).sum()) for p, t in batches])
    assert result["IoU_published"] == pytest.approx(batch_f / (2 - batch_f))
    assert result["target_share"] == pytest.approx(target.mean())


def test_truth_scores_one():
    target = random_batches()[0][1]
    result = evaluate([(target, target)])
    del result["target_share"]
    assert set(result.values()) == {1.0}


@pytest.mark.parametrize("predicted, target", [(0, 0), (0, 1), (1, 0)])
def test_no_nan_without_targets_or_predictions(predicted, target):
    result = evaluate([(np.full((2, 4, 4), predicted), np.full((2, 4, 4), target, np.uint8))])
    assert all(np.isfinite(value) and 0 <= value <= 1 for value in result.values())
    assert result["IoU"] == 0
    assert result["IoU_image"] == (1 if predicted == target == 0 else 0)


def test_nothing_to_score_gives_no_scores():
    evaluator = PathfinderEvaluator("toy")
    evaluator.process([], [])
    assert evaluator.evaluate() == {}


def test_reset_forgets():
    evaluator = PathfinderEvaluator("toy")
    evaluator.add(as_logits(np.ones((1, 4, 4))), torch.zeros(1, 4, 4))
    evaluator.reset()
    evaluator.add(as_logits(np.ones((1, 4, 4))), torch.ones(1, 4, 4))
    assert evaluator.evaluate()["pathfinder"]["IoU"] == 1


@pytest.mark.skipif(not GOLDEN.is_file(), reason="no golden arrays beside the checkout")
def test_matches_the_released_scores():
    golden = np.load(GOLDEN)
    evaluator = PathfinderEvaluator("golden")
    evaluator.add(torch.tensor(golden["logits"]), torch.tensor(golden["target"]))
    result = evaluator.evaluate()["pathfinder"]
    for ours, theirs, scale in (
        ("precision", "precision", 1), ("recall", "recall", 1), ("F", "f1", 1),
        ("balanced_accuracy", "balanced_accuracy_percent", 100),
    ):
        assert result[ours] * scale == pytest.approx(float(golden[theirs]), rel=1e-6)


def _evaluate_on_rank(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    evaluator = PathfinderEvaluator("toy")
    predicted, target = random_batches()[rank]
    evaluator.add(as_logits(predicted), torch.as_tensor(target))
    result = evaluator.evaluate()
    torch.save(result, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_score_like_one(tmp_path):
    mp.start_processes(_evaluate_on_rank, (str(tmp_path),), nprocs=2, start_method="fork")
    assert torch.load(tmp_path / "0.pt")["pathfinder"] == pytest.approx(evaluate(random_batches()))
    assert torch.load(tmp_path / "1.pt") is None


def test_counts_add_up_to_all_pixels():
    predicted, target = random_batches()[0]
    counts = confusion_counts(as_logits(predicted), torch.as_tensor(target))
    assert counts.shape == (3, 4)
    assert counts.sum(1).tolist() == [64] * 3


def test_logits_that_are_not_finite_are_told_of(caplog):
    evaluator = PathfinderEvaluator("toy")
    logits = torch.zeros(3, 2, 4, 4)
    logits[1, 0, 2, 2] = torch.nan
    evaluator.add(logits, torch.ones(3, 4, 4))
    evaluator.evaluate()
    assert "toy: logits of 1 images are not finite" in caplog.text
