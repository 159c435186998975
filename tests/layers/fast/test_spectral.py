import pytest
import torch
from torch.nn import functional as F

from rfpn.layers.fast import spectral
from tests.layers.fast.fast_problems import DEVICES, assert_close, interprets

SHAPES = [(3, 5, 4, 11, 13, 7), (2, 3, 3, 9, 6, 3), (1, 2, 3, 8, 8, 15)]


def test_transform_size_is_smooth_and_large_enough():
    assert spectral.transform_size(150, 15) == 160
    assert spectral.transform_size(64, 15) == 72
    assert spectral.transform_size(1, 3) == 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("shape", SHAPES)
def test_convolution_its_adjoint_and_the_kernel_gradient(shape, dtype, tolerance, device):
    n, c_in, c_out, height, width, edge = shape
    torch.manual_seed(0)
    new = dict(dtype=dtype, device=device)
    x = torch.randn(n, c_in, height, width, **new)
    weight = torch.randn(c_out, c_in, edge, edge, **new)
    cotangent = torch.randn(n, c_out, height, width, **new)
    spectrum = spectral.kernel_spectrum(weight, spectral.canvas_shape(x, edge)[2:])
    transformed, out = spectral.correlate(_canvas(x, edge), spectrum)
    transformed_cotangent, adjoint = spectral.correlate(_canvas(cotangent, edge), spectrum, transposed=True)

    reference = [t.double().requires_grad_() for t in (x, weight)]
    expected = F.conv2d(*reference, padding=edge // 2)
    expected_x, expected_weight = torch.autograd.grad(expected, reference, cotangent.double())
    assert_close(spectral.unpack(out, cotangent), expected, tolerance, "convolution")
    assert_close(spectral.unpack(adjoint, x), expected_x, tolerance, "adjoint")
    lags = tuple(spectral.inverse_dft(size, edge, transformed) for size in transformed.shape[2:])
    gradient = spectral.weight_gradient(transformed, transformed_cotangent, lags)
    assert_close(gradient, expected_weight, tolerance, "kernel's gradient")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("entries, c_in, c_out, size", [(3, 5, 4, (3, 5)), (18, 20, 37, (2, 3)), (2, 70, 25, (2, 2))])
def test_products_in_bfloat16(entries, c_in, c_out, size, device):
    """More entries, rows and terms than one program holds, too."""
    torch.manual_seed(0)
    spectrum = torch.randn(c_out, c_in, *size, dtype=torch.complex64, device=device)
    half = spectral.half_spectrum(spectrum)
    exact = _rounded(spectrum)
    for transposed, channels, equation in ((False, c_in, "oiyx,miyx->moyx"), (True, c_out, "oiyx,moyx->miyx")):
        x = torch.randn(entries, channels, *size, dtype=torch.complex64, device=device)
        expected = torch.einsum(equation, exact.conj() if transposed else exact, _rounded(x))
        value = torch.view_as_real(spectral.multiply(x, half, transposed))
        # the interpreter leaves x as it is
        assert_close(value, torch.view_as_real(expected), 3e-3 if interprets() else 1e-5, equation)


def _rounded(x):
    return torch.view_as_complex(torch.view_as_real(x).bfloat16().double())


def _canvas(x, edge):
    return spectral.pack(x, x.new_zeros(spectral.canvas_shape(x, edge), dtype=spectral.complex_dtype(x.dtype)))


@pytest.mark.parametrize("n", [1, 4, 5])
def test_pack_and_unpack(n):
    x = torch.randn(n, 2, 3, 4)
    canvas = x.new_zeros(spectral.canvas_shape(x, 3), dtype=torch.complex64)
    assert torch.equal(spectral.unpack(spectral.pack(x, canvas), x), x)
