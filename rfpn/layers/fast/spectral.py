"""Convolutions with large kernels in the frequency domain, two real samples in one complex transform.

A *canvas* is (M, C, S1, S2) complex, M = ⌈N/2⌉: sample 2m is the real and sample 2m + 1 the imaginary part of entry m,
at rows < H and columns < W; the rest is zero before a transform. Real kernels act on both parts alike, so a complex
transform of M entries does the work of 2M real ones, and the kernel's transform serves all steps of a forward pass.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from rfpn.layers.fast import available


def transform_size(size: int, kernel_size: int) -> int:
    """Smallest 2^a·3^b·5^c that holds ``size`` pixels without wrap-around under a centred odd kernel."""
    least = size + kernel_size // 2
    while True:
        rest = least
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return least
        least += 1


def canvas_shape(x: Tensor, kernel_size: int) -> tuple[int, int, int, int]:
    """(M, C, S1, S2) of the canvas of x (N, C, H, W)."""
    n, c, h, w = x.shape
    return (n + 1) // 2, c, transform_size(h, kernel_size), transform_size(w, kernel_size)


def complex_dtype(dtype: torch.dtype) -> torch.dtype:
    """Type of the transforms of maps of ``dtype``: complex128 for float64, otherwise complex64."""
    return torch.complex128 if dtype == torch.float64 else torch.complex64


def pack(x: Tensor, canvas: Tensor) -> Tensor:
    """Write x (N, C, H, W) into ``canvas``, whose other places stay as they are, and return it."""
    n, _, h, w = x.shape
    real = torch.view_as_real(canvas)[:, :, :h, :w]
    real[..., 0].copy_(x[0::2])
    real[: n // 2, ..., 1].copy_(x[1::2])
    return canvas


def unpack(canvas: Tensor, like: Tensor) -> Tensor:
    """The samples in ``canvas``, a new tensor of the shape of ``like`` (N, C, H, W)."""
    n, _, h, w = like.shape
    pairs = torch.view_as_real(canvas)[:, :, :h, :w]
    return torch.stack(pairs.unbind(-1), dim=1).flatten(0, 1)[:n]


def kernel_spectrum(weight: Tensor, size: tuple[int, int]) -> Tensor:
    """Transform of a kernel (Co, Ci, E, E) for canvases of S1×S2, scaled so that inverse transforms need no factor."""
    edge = weight.shape[-1]
    # a turned real kernel has the conjugate transform
    turned = weight.flip(-2, -1) / (size[0] * size[1])
    padded = F.pad(turned, (0, size[1] - edge, 0, size[0] - edge)).roll((-(edge // 2), -(edge // 2)), (-2, -1))
    return torch.fft.fft2(padded)


def half_spectrum(spectrum: Tensor) -> Tensor:
    """A kernel's spectrum (Co, Ci, S1, S2) for products in bfloat16: (S1, S2, Ci, Co, 2), real and imaginary parts.

    The matrix of one frequency lies in one piece, for tensor cores.
    """
    return torch.view_as_real(spectrum).bfloat16().permute(2, 3, 1, 0, 4).contiguous()


def correlate(canvas: Tensor, spectrum: Tensor, transposed: bool = False) -> tuple[Tensor, Tensor]:
    """Convolve a canvas (M, Ci, S1, S2) with the kernel of ``spectrum``; ``transposed`` gives the adjoint, Co to Ci.

    Returns the canvas's transform and the result; places of the result outside the image hold rubbish.
    """
    transformed = torch.fft.fft2(canvas)
    return transformed, inverse(multiply(transformed, spectrum, transposed))


def inverse(transformed: Tensor) -> Tensor:
    """Inverse transform without its 1/(S1·S2), which :func:`kernel_spectrum` holds."""
    return torch.fft.ifft2(transformed, norm="forward")


def multiply(transformed: Tensor, spectrum: Tensor, transposed: bool = False) -> Tensor:
    """Σ over input channels of spectrum (Co, Ci, S1, S2) times transformed (M, Ci, S1, S2), at every frequency.

    A spectrum of :func:`half_spectrum` has ``transformed`` rounded to bfloat16 too; sums are in float32.
    """
    if available(transformed):
        from rfpn.layers.fast.spectral_triton import multiply as kernel

        return kernel(transformed, spectrum, transposed)
    if not spectrum.is_complex():
        spectrum = torch.view_as_complex(spectrum.float()).permute(3, 2, 0, 1)
        transformed = torch.view_as_complex(torch.view_as_real(transformed).bfloat16().float())
    # one multiply-add for each input channel: batched products of such small matrices are several times slower on a CPU
    if transposed:
        return multiply(transformed.conj_physical(), spectrum.transpose(0, 1)).conj_physical_()
    product = spectrum[:, 0] * transformed[:, :1]
    for i in range(1, spectrum.shape[1]):
        product.addcmul_(spectrum[:, i], transformed[:, i : i + 1])
    return product


def weight_gradient(transformed: Tensor, cotangent: Tensor, lags: tuple[Tensor, Tensor]) -> Tensor:
    """Gradient of the kernel (Co, Ci, E, E) from transforms of input (M, Ci, S1, S2) and of cotangent (M, Co, S1, S2).

    Args:
        lags: of :func:`inverse_dft`, for rows and for columns.
    """
    if available(transformed):
        from rfpn.layers.fast.spectral_triton import cross_spectrum

        spectrum = cross_spectrum(cotangent, transformed)
    else:
        spectrum = sum(c.conj_physical().unsqueeze(1) * t for c, t in zip(cotangent, transformed))
    # only E×E of the S1×S2 lags are wanted: two small products instead of an inverse transform
    rows, columns = lags
    return (rows @ (spectrum @ columns.mT)).real


def inverse_dft(size: int, kernel_size: int, like: Tensor) -> Tensor:
    """Rows of the inverse DFT matrix of S = ``size`` places for lags −E//2 … E//2, (E, S), complex as ``like`` is."""
    lags = torch.arange(kernel_size, device=like.device) - kernel_size // 2
    turns = torch.outer(lags, torch.arange(size, device=like.device)).double() / size
    return torch.polar(torch.full_like(turns, 1 / size), 2 * torch.pi * turns).to(like.dtype)
