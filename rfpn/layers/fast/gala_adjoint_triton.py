"""The stages of :mod:`rfpn.layers.fast.gala_adjoint_stages` as Triton kernels: same names, same arguments."""

import torch
import triton
from torch import Tensor

from rfpn.layers.fast import gala_adjoint_kernels as kernels
from rfpn.layers.fast.gala_adjoint_stages import GateGradients, InhibitGradients, UpdateGradients
from rfpn.layers.fast.gala_stages import Weights
from rfpn.layers.fast.gala_triton import on_pixels, on_rois, spatial_gate

ROWS = 32
CHUNK = 64
WARPS = 8
NORM_CHUNK = 16  # channels of a kernel with a group norm and many live values


def gate_dual(channel: Tensor, spatial: Tensor, h: Tensor, w: Weights) -> Tensor:
    """h⊙g1 and its tangent, (2R, H, W, C). See :func:`rfpn.layers.fast.gala_adjoint_stages.gate_dual`."""
    rois, channels = len(h), h.shape[-1]
    like, chunk = h[: rois // 2], min(CHUNK, channels)
    y = torch.empty_like(h)
    wheres = spatial_gate(spatial, like, w, tangent=True, block=ROWS, warps=WARPS)
    on_pixels(
        kernels.gate_dual_kernel, like, channel, w.channel_bias, w.channel_out, wheres, w.bias1, h, y,
        warps=WARPS, C=channels, R=channel.shape[-1], CHUNK=chunk, chunks=channels // chunk,
    )
    return y


def inhibit_dual(z1: Tensor, x: Tensor, h: Tensor, w: Weights) -> Tensor:
    """s and its tangent, (2R, H, W, C). See :func:`rfpn.layers.fast.gala_adjoint_stages.inhibit_dual`."""
    s = torch.empty_like(h)
    on_rois(
        kernels.inhibit_dual_kernel, x, w, z1, x, h, s, w.scale1, w.shift1, w.alpha, w.mu, w.epsilon, len(x),
        chunk=NORM_CHUNK
    )
    return s


def update_gradient(
    z2: Tensor, mixed: Tensor, h: Tensor, direction: Tensor | None, cotangent: Tensor, vector: Tensor | None, w: Weights
) -> UpdateGradients:
    """Gradients by the update stage. See :func:`rfpn.layers.fast.gala_adjoint_stages.update_gradient`."""
    tangent = direction is not None
    dz2, dmixed, dh = torch.empty_like(z2), torch.empty_like(mixed), torch.empty_like(h)
    sums = h.new_empty((3, len(h), h.shape[-1]), dtype=torch.float32)
    directions = (direction, cotangent, vector) if tangent else (h, cotangent, h)
    on_rois(
        kernels.update_gradient_kernel, h, w, z2, mixed, h, *directions, w.scale2, w.shift2, w.bias2, dz2, dmixed, dh, sums,
        w.epsilon, len(h), chunk=NORM_CHUNK, TANGENT=tangent,
    )
    return UpdateGradients(dz2, dmixed, dh, sums.sum(1))


def inhibit_gradient(
    z1: Tensor, x: Tensor, h: Tensor, direction: Tensor | None, y2: Tensor, mixed: Tensor, dh: Tensor, w: Weights
) -> InhibitGradients:
    """Gradients by the inhibition stage. See :func:`rfpn.layers.fast.gala_adjoint_stages.inhibit_gradient`."""
    tangent = direction is not None
    dz1, dx, out = torch.empty_like(z1), torch.empty_like(x), torch.empty_like(dh)
    sums = h.new_empty((4, len(h), h.shape[-1]), dtype=torch.float32)
    on_rois(
        kernels.inhibit_gradient_kernel, h, w, z1, x, h, direction if tangent else h, y2, mixed, dh, w.scale1, w.shift1,
        w.alpha, w.mu, dz1, dx, out, sums, w.epsilon, len(h), chunk=NORM_CHUNK, TANGENT=tangent,
    )
    return InhibitGradients(dz1, dx, out, sums.sum(1))


def gate_gradient(
    channel: Tensor, spatial: Tensor, h: Tensor, direction: Tensor | None, dy: Tensor, dh: Tensor, w: Weights
) -> GateGradients:
    """Gradients by the gate stage. See :func:`rfpn.layers.fast.gala_adjoint_stages.gate_gradient`."""
    rois, height, width, channels = h.shape
    tangent = direction is not None
    dchannel, dspatial, dwhat, out = (torch.empty_like(t) for t in (channel, spatial, dy, dh))
    activity, spatial_activity = torch.empty_like(channel), torch.empty_like(spatial)
    where = dy.new_empty(dy.shape[:3], dtype=torch.float32)
    taps = dy.new_empty((*dy.shape[:3], 9))
    bias_sums = h.new_empty((triton.cdiv(rois * height * width, ROWS), channels), dtype=torch.float32)
    wheres = spatial_gate(spatial, h, w, tangent=tangent, activity=spatial_activity, block=ROWS, warps=WARPS)
    on_pixels(
        kernels.gate_gradient_kernel, h, channel, w.channel_bias, w.channel_out, wheres, w.bias1, h,
        direction if tangent else h, dy, dh, dchannel, dwhat, activity, where, out, bias_sums,
        block=ROWS, warps=WARPS, TANGENT=tangent, C=channels, R=channel.shape[-1], CHUNK=min(CHUNK, channels),
    )
    on_pixels(
        kernels.taps_gradient_kernel, h, where, w.spatial_out, spatial, w.spatial_bias, taps, dspatial,
        block=ROWS, warps=WARPS, TANGENT=tangent, C=spatial.shape[-1], H=height, W=width,
    )
    biases = (value[:rois].sum((0, 1, 2), dtype=torch.float32) for value in (dchannel, dspatial))
    return GateGradients(
        dchannel, dspatial, dwhat, activity, taps, spatial_activity, out, bias_sums.sum(0), *biases
    )
