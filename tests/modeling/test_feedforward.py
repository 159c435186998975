"""The feedforward control."""

import pytest
import torch

from rfpn.modeling.feedforward import FeedforwardLayers


def test_keeps_the_shape_and_shares_no_weight():
    layers = FeedforwardLayers(4, kernel_size=3, layers=6)
    layers(torch.randn(2, 4, 8, 9)).square().sum().backward()
    assert layers(torch.randn(2, 4, 8, 9)).shape == (2, 4, 8, 9)
    assert len(list(layers.parameters())) == 6 * 4
    assert all(p.grad is not None for p in layers.parameters())


def test_six_layers_of_15_pixels_see_85_pixels_and_no_more():
    layers = FeedforwardLayers(2, kernel_size=15).eval()
    for norm in layers.norms:  # without the batch's statistics, which reach everywhere
        norm.forward = lambda x: x
    x = torch.zeros(1, 2, 1, 101, requires_grad=True)
    layers(x)[0, 0, 0, 50].backward()
    seen = x.grad.abs().sum(1).flatten().nonzero().flatten()
    assert (seen.min(), seen.max()) == (50 - 42, 50 + 42)


@pytest.mark.parametrize("options, message", [({"kernel_size": 4}, "odd, got 4"), ({"layers": 0}, "layers must be at least 1")])
def test_unusable_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        FeedforwardLayers(4, **options)
