"""Gradients of one GALA hGRU step between matrix products, in torch operations.

As in :mod:`rfpn.layers.fast.hgru_adjoint_stages`, a tangent is carried along for the gradient of column sums. Maps are
(R, H, W, C), channels last; where there is a tangent, it is stacked below its value, (2R, H, W, C), and so are
cotangents. ``gala_adjoint_triton`` has the same functions as kernels.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from rfpn.layers.fast.gala_stages import Weights, _gather, _spread


def gate_dual(channel: Tensor, spatial: Tensor, h: Tensor, w: Weights) -> Tensor:
    """h⊙g1 and its tangent from the first layers of both gate paths, without bias; all (2R, H, W, ·)."""
    (what, twhat), (where, twhere) = _paths(channel, spatial, w, True)[:2]
    state, direction = h.to(what.dtype).chunk(2)
    g = torch.sigmoid(what * where + w.bias1)
    return torch.cat([state * g, direction * g + state * g * (1 - g) * (twhat * where + what * twhere)]).to(h.dtype)


def inhibit_dual(z1: Tensor, x: Tensor, h: Tensor, w: Weights) -> Tensor:
    """s and its tangent; z1, h (2R, H, W, C), x (R, H, W, C)."""
    c, tc = _norm(z1, w.scale1, w.shift1, w, True)[:2]
    state, direction = h.to(c.dtype).chunk(2)
    t = w.alpha * state + w.mu
    q = x - c * t
    return torch.cat([F.softplus(q), -torch.sigmoid(q) * (tc * t + c * w.alpha * direction)]).to(h.dtype)


class UpdateGradients(NamedTuple):
    """Cotangents of z2 and of U∗s, stacked, and of h, (R, H, W, C), by the update; gradients of scale2, shift2, b2, (3, C)."""

    z2: Tensor
    mixed: Tensor
    h: Tensor
    sums: Tensor


def update_gradient(
    z2: Tensor, mixed: Tensor, h: Tensor, direction: Tensor | None, cotangent: Tensor, vector: Tensor | None, w: Weights
) -> UpdateGradients:
    """Gradient of ⟨cotangent, h'⟩ and, with tangents, of ⟨vector, J·direction⟩; z2, mixed stacked, others (R, H, W, C)."""
    tangent = direction is not None
    c, tc, norm = _norm(z2, w.scale2, w.shift2, w, tangent)
    mixed, tmixed = _split(mixed.to(c.dtype), tangent)
    g, slope = torch.sigmoid(mixed + w.bias2), torch.sigmoid(c)
    gate_slope, gap = g * (1 - g), F.softplus(c) - h
    dc, dm, dh = cotangent * g * slope, cotangent * gate_slope * gap, (1 - g) * cotangent
    dtc = dtm = None
    if tangent:
        dtc, dtm = vector * g * slope, vector * gate_slope * gap
        dc = dc + vector * slope * (g * (1 - slope) * tc + gate_slope * tmixed)
        dm = dm + vector * gate_slope * (slope * tc - direction + (1 - 2 * g) * tmixed * gap)
        dh = dh - vector * gate_slope * tmixed
    dz, scale, shift = _norm_gradient(dc, dtc, norm, w.scale2)
    return UpdateGradients(
        dz.to(z2.dtype), _stack(dm, dtm).to(z2.dtype), dh, torch.stack([scale, shift, dm.sum((0, 1, 2))])
    )


class InhibitGradients(NamedTuple):
    """Cotangents of z1, stacked, of x and of h, (R, H, W, C); gradients of scale1, shift1, α and μ, (4, C)."""

    z1: Tensor
    x: Tensor
    h: Tensor
    sums: Tensor


def inhibit_gradient(
    z1: Tensor, x: Tensor, h: Tensor, direction: Tensor | None, y2: Tensor, mixed: Tensor, dh: Tensor, w: Weights
) -> InhibitGradients:
    """y2, mixed: stacked, the two parts of the cotangent of s. dh: cotangent of h so far."""
    tangent = direction is not None
    c, tc, norm = _norm(z1, w.scale1, w.shift1, w, tangent)
    ds, dts = _split(y2.to(c.dtype) + mixed, tangent)
    t = w.alpha * h + w.mu
    slope = torch.sigmoid(x - c * t)
    dq, dtc, alpha = slope * ds, None, 0
    if tangent:
        tt = w.alpha * direction
        dtq = slope * dts
        dq = dq - (1 - slope) * (tc * t + c * tt) * dtq
        dtc = -dtq * t
        dc, dt = -dq * t - dtq * tt, -dq * c - dtq * tc
        alpha = -dtq * c * direction
    else:
        dc, dt = -dq * t, -dq * c
    dz, scale, shift = _norm_gradient(dc, dtc, norm, w.scale1)
    sums = torch.stack([scale, shift, (dt * h + alpha).sum((0, 1, 2)), dt.sum((0, 1, 2))])
    return InhibitGradients(dz.to(z1.dtype), dq.to(x.dtype), dh + dt * w.alpha, sums)


class GateGradients(NamedTuple):
    """Cotangents that leave the gate, stacked unless said otherwise.

    channel, spatial: of the first layers, (…, C/r) and (…, C/2). what, activity: of the channel path's output and its
    input ζ, whose outer product is that kernel's gradient. taps: cotangent of each tap of the spatial path's kernel,
    (…, 9). spatial_activity: its input. h: (R, H, W, C), without what comes through the first layers.
    bias1: (C,). channel_bias: (C/r,). spatial_bias: (C/2,).
    """

    channel: Tensor
    spatial: Tensor
    what: Tensor
    activity: Tensor
    taps: Tensor
    spatial_activity: Tensor
    h: Tensor
    bias1: Tensor
    channel_bias: Tensor
    spatial_bias: Tensor


def gate_gradient(
    channel: Tensor, spatial: Tensor, h: Tensor, direction: Tensor | None, dy: Tensor, dh: Tensor, w: Weights
) -> GateGradients:
    """channel, spatial: first layers without bias, stacked. dy: cotangent of h⊙g1, stacked. dh: cotangent of h so far."""
    tangent = direction is not None
    half = dy.dtype
    (what, twhat), (where, twhere), (activity, slope), (spatial_activity, spatial_slope) = _paths(channel, spatial, w, tangent)
    dy, dty = _split(dy.to(what.dtype), tangent)
    g = torch.sigmoid(what * where + w.bias1)
    gate_slope = g * (1 - g)
    da, dh = dy * h * gate_slope, dh + dy * g
    dta = None
    if tangent:
        ta = twhat * where + what * twhere
        dta = dty * h * gate_slope
        da = da + dty * gate_slope * (direction + h * (1 - 2 * g) * ta)
        dh = dh + dty * gate_slope * ta
        dwhat = _stack(da * where + dta * twhere, dta * where)
        dwhere = _stack((da * what + dta * twhat).sum(-1, keepdim=True), (dta * what).sum(-1, keepdim=True))
    else:
        dwhat, dwhere = da * where, (da * what).sum(-1, keepdim=True)
    taps = _gather(dwhere)
    dchannel = _through_softplus(dwhat @ w.channel_out.to(dwhat.dtype), channel, slope, tangent)
    dspatial = _through_softplus(taps @ w.spatial_out.mT.to(taps.dtype), spatial, spatial_slope, tangent)
    rois = len(h)
    return GateGradients(
        dchannel.to(half), dspatial.to(half), dwhat.to(half), activity.to(half), taps.to(half), spatial_activity.to(half), dh,
        *(value[:rois].sum((0, 1, 2)) for value in (da, dchannel, dspatial)),
    )


def _split(stacked: Tensor, tangent: bool) -> tuple[Tensor, Tensor | None]:
    return stacked.chunk(2) if tangent else (stacked, None)


def _stack(value: Tensor, tangent: Tensor | None) -> Tensor:
    return value if tangent is None else torch.cat([value, tangent])


def _paths(channel: Tensor, spatial: Tensor, w: Weights, tangent: bool):
    """(what, its tangent), (where, its tangent), and for both paths (ζ stacked with its tangent, σ of the value)."""
    wide = torch.promote_types(channel.dtype, torch.float32)
    channels, channel_slope = _softplus(channel.to(wide), w.channel_bias, tangent)
    spatials, spatial_slope = _softplus(spatial.to(wide), w.spatial_bias, tangent)
    what = _split(channels @ w.channel_out.mT.to(wide), tangent)
    where = _split(_spread(spatials @ w.spatial_out.to(wide)), tangent)
    return what, where, (channels, channel_slope), (spatials, spatial_slope)


def _softplus(stacked: Tensor, bias: Tensor, tangent: bool) -> tuple[Tensor, Tensor]:
    value, direction = _split(stacked, tangent)
    value = value + bias
    slope = torch.sigmoid(value)
    return _stack(F.softplus(value), slope * direction if tangent else None), slope


def _through_softplus(cotangent: Tensor, stacked: Tensor, slope: Tensor, tangent: bool) -> Tensor:
    if not tangent:
        return cotangent * slope
    first, second = cotangent.chunk(2)
    direction = stacked.chunk(2)[1]
    return torch.cat([slope * first + slope * (1 - slope) * direction * second, slope * second])


def _norm(z: Tensor, scale: Tensor, shift: Tensor, w: Weights, tangent: bool):
    """Group norm of z and of its tangent: c, ċ, and (n, ż, 1/√(variance + ε), means of ż and n⊙ż), grouped."""
    z, tz = _split(z.to(torch.promote_types(z.dtype, torch.float32)).unflatten(-1, (w.groups, -1)), tangent)
    variance, mean = torch.var_mean(z, (1, 2, 4), correction=0, keepdim=True)
    rstd = (variance + w.epsilon).rsqrt()
    n = (z - mean) * rstd
    c = n.flatten(-2) * scale + shift
    if not tangent:
        return c, None, (n, None, rstd, None, None)
    tmean, tslope = _mean(tz), _mean(n * tz)
    return c, (rstd * (tz - tmean - n * tslope)).flatten(-2) * scale, (n, tz, rstd, tmean, tslope)


def _mean(grouped: Tensor) -> Tensor:
    return grouped.mean((1, 2, 4), keepdim=True)


def _norm_gradient(dc: Tensor, dtc: Tensor | None, norm, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cotangent of z, stacked with that of ż, and the gradients of scale and shift, from those of c and ċ."""
    n, tz, rstd, tmean, tslope = norm
    dn = (dc * scale).unflatten(-1, n.shape[-2:])
    scaled = dc * n.flatten(-2)
    if dtc is None:
        dz = rstd * (dn - _mean(dn) - n * _mean(n * dn))
        return dz.flatten(-2), scaled.sum((0, 1, 2)), dc.sum((0, 1, 2))
    dtn = (dtc * scale).unflatten(-1, n.shape[-2:])
    tn = rstd * (tz - tmean - n * tslope)
    along = _mean(n * dtn)
    dtz = rstd * (dtn - _mean(dtn) - n * along)
    dn = dn - rstd * (tslope * dtn + along * tz)
    dz = rstd * (dn - _mean(dn) - n * (_mean(n * dn) + _mean(dtn * tn)))
    scaled = scaled + dtc * tn.flatten(-2)
    return torch.cat([dz, dtz]).flatten(-2), scaled.sum((0, 1, 2)), dc.sum((0, 1, 2))
