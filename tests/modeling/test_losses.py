"""Per-pixel losses."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rfpn.modeling.losses import focal_loss

GOLDEN = Path(__file__).parents[2].parent / "shared" / "reference" / "golden" / "focal_and_scores.npz"


def example():
    torch.manual_seed(0)
    return torch.randn(2, 2, 5, 6, requires_grad=True), torch.randint(0, 2, (2, 5, 6), dtype=torch.uint8)


def test_focal_loss_is_the_weighted_log_likelihood():
    logits, target = example()
    p = logits.softmax(1).gather(1, target.long()[:, None]).squeeze(1)
    torch.testing.assert_close(focal_loss(logits, target), (-((1 - p) ** 2) * p.log()).mean())


def test_gamma_zero_is_cross_entropy():
    logits, target = example()
    torch.testing.assert_close(focal_loss(logits, target, 0), F.cross_entropy(logits, target.long()))


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0])
def test_certain_pixels_give_finite_gradients(gamma):
    logits = torch.tensor([200.0, -200.0]).view(1, 2, 1, 1).repeat(2, 1, 1, 1).requires_grad_()
    loss = focal_loss(logits, torch.tensor([0, 1]).view(2, 1, 1), gamma)
    loss.backward()
    assert loss.item() == pytest.approx(200)
    assert logits.grad.isfinite().all()


def test_no_image_gives_zero_with_a_gradient():
    logits = torch.zeros(0, 2, 4, 4, requires_grad=True)
    focal_loss(logits, torch.zeros(0, 4, 4)).backward()
    assert logits.grad is not None


def test_half_precision_logits_are_widened():
    logits, target = example()
    assert focal_loss(logits.bfloat16(), target).dtype == torch.float32


def test_unusable_gamma_is_named():
    with pytest.raises(ValueError, match="0 or at least 1, got 0.5"):
        focal_loss(*example(), gamma=0.5)


@pytest.mark.skipif(not GOLDEN.is_file(), reason="no golden arrays beside the checkout")
def test_matches_the_released_code():
    golden = np.load(GOLDEN)
    loss = focal_loss(torch.tensor(golden["logits"]), torch.tensor(golden["target"]), 2.0)
    assert loss.item() == pytest.approx(float(golden["focal_gamma2"]), rel=1e-6)
