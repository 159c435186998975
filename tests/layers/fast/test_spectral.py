import pytest
import torch
from torch.nn import functional as F

from rfpn.layers.fast import spectral
from tests.layers.fast.fast_problems import DEVICES, assert_close

SHAPES = [(3, 5, 4, 11, 13, 7), (2, 3, 3, 9, 6, 5), (1, 2, 3, 8, 8, 15)]


def test_transform_size_is_smooth_and_large_enough():
    assert spectral.transform_size(150, 15) == 160
    assert spectral.transform_size(64, 15) == 72
    assert spectral.transform_size(1, 3) == 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("shape", SHAPES)
def test_convolution_and_two_derivatives(shape, dtype, tolerance, device):
    n, c_in, c_out, height, width, edge = shape
    torch.manual_seed(0)
    new = dict(dtype=dtype, device=device)
    x = torch.randn(n, c_in, height, width, **new, requires_grad=True)
    weight = torch.randn(c_out, c_in, edge, edge, **new, requires_grad=True)
    cotangent = torch.randn(n, c_out, height, width, **new)
    directions = torch.randn_like(x), torch.randn_like(weight)
    results = []
    for out in (spectral.conv2d(x, weight), F.conv2d(x.double(), weight.double(), padding=edge // 2)):
        first = torch.autograd.grad(out, (x, weight), cotangent.to(out.dtype), create_graph=True)
        second = torch.autograd.grad(sum((g * d).sum() for g, d in zip(first, directions)), (x, weight))
        results.append((out, *first, *second))
    for value, reference in zip(*results):
        assert_close(value, reference, tolerance)


@pytest.mark.parametrize("n", [1, 4, 5])
def test_pack_and_unpack(n):
    x = torch.randn(n, 2, 3, 4)
    canvas = x.new_zeros(spectral.canvas_shape(x, 3), dtype=torch.complex64)
    assert torch.equal(spectral.unpack(spectral.pack(x, canvas), x), x)
