"""Gradients of one hGRU step between two large convolutions, in torch operations.

The Lipschitz penalty asks for the gradient of a function of Jᵀp. For fixed directions w and p, d⟨w, Jᵀp⟩ = d⟨p, J w⟩, and
J w comes from carrying the tangent w of h through the step; so one backward pass through step and tangent replaces
differentiating twice. A value a has a tangent ȧ; both have a cotangent, here ``da`` and ``dta``. For y = f(a):
dta = f'(a)·dty and da = f'(a)·dy + f''(a)·ȧ·dty. Without tangent (None), only ``da`` is there.

Maps are (N, C, H, W) or canvases (:mod:`rfpn.layers.fast.spectral`); ``hgru_adjoint_triton`` has the same functions as kernels.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from rfpn.layers.fast.hgru_stages import Moments, Weights, _column, _mix, _normalise
from rfpn.layers.fast.spectral import pack, unpack


class TangentMoments(NamedTuple):
    """Means of ż and of z⊙ż (z normalised) over a batch, (C,) each."""

    mean: Tensor
    slope: Tensor


class NormCoefficients(NamedTuple):
    """dz = value·(1, dc, dtc, z, ż) and dtz = tangent·(1, dtc, z), z normalised: (5, C) and (3, C)."""

    value: Tensor
    tangent: Tensor


def gate_tangent(h: Tensor, direction: Tensor, canvas: Tensor, w: Weights) -> None:
    """The tangent of h⊙g1 into ``canvas``."""
    g = torch.sigmoid(_mix(w.gate1, h) + _column(w.bias1))
    pack(direction * g + h * g * (1 - g) * _mix(w.gate1, direction), canvas)


def tangent_moments(z: Tensor, tz: Tensor, m: Moments, like: Tensor) -> TangentMoments:
    """Moments of the tangent ``tz`` of ``z``, both canvases; their samples have the shape of ``like`` (N, C, H, W)."""
    tangent = unpack(tz, like)
    return TangentMoments(tangent.mean((0, 2, 3)), (_normalise(unpack(z, like), m) * tangent).mean((0, 2, 3)))


def inhibit_tangent(
    z1: Tensor, tz1: Tensor, m1: Moments, t1: TangentMoments, x: Tensor, h: Tensor, direction: Tensor, canvas: Tensor,
    w: Weights,
) -> None:
    """The tangent of s into ``canvas``."""
    c, tc = _norm(unpack(z1, h), unpack(tz1, h), m1, t1, w.scale1, w.shift1)[2:]
    t, alpha = _column(w.alpha) * h + _column(w.mu), _column(w.alpha)
    r = c * t
    pack(-torch.sigmoid(x - F.softplus(r)) * torch.sigmoid(r) * (tc * t + c * alpha * direction), canvas)


def norm_coefficients(
    sums: Tensor, m: Moments, t: TangentMoments | None, scale: Tensor, count: int
) -> tuple[NormCoefficients, Tensor, Tensor]:
    """Adjoint of a batch norm and of its tangent as factors, and the gradients of its scale and shift, (C,).

    Args:
        sums: over samples and pixels of dc, dc⊙z and, with tangents, dtc, dtc⊙z, dtc⊙ż; (2, C) or (5, C).
    """
    means, zero = sums / count, torch.zeros_like(scale)
    if t is None:
        value = (-m.rstd * scale * means[0], m.rstd * scale, zero, -m.rstd * scale * means[1], zero)
        return NormCoefficients(torch.stack(value), torch.stack([zero] * 3)), sums[1], sums[0]
    c, cz, tc, tcz, tctz = means
    through = m.rstd * (tctz - t.mean * tc - t.slope * tcz)
    # the cotangent of the normalised z: scale·dc − first·dtc − second·ż
    first, second = m.rstd * t.slope * scale, m.rstd * scale * tcz
    mean = scale * c - first * tc - second * t.mean
    slope = scale * cz - first * tcz - second * t.slope
    value = (-mean, scale, -first, -slope - scale * through, -second)
    tangent = (-scale * tc, scale, -scale * tcz)
    return (
        NormCoefficients(m.rstd * torch.stack(value), m.rstd * torch.stack(tangent)), sums[1] + count * through, sums[0]
    )


def norm_gradient(
    dc: Tensor, dtc: Tensor | None, z: Tensor, tz: Tensor | None, m: Moments, k: NormCoefficients, canvas: Tensor
) -> None:
    """dz and, with tangents, dtz into the first and second half of ``canvas``."""
    a, b = (factor[:, :, None, None] for factor in k)
    n = _normalise(unpack(z, dc), m)
    entries = (len(dc) + 1) // 2
    value = a[0] + a[1] * dc + a[3] * n
    if dtc is not None:
        value = value + a[2] * dtc + a[4] * unpack(tz, dc)
        pack(b[0] + b[1] * dtc + b[2] * n, canvas[entries:])
    pack(value, canvas[:entries])


class UpdateGradients(NamedTuple):
    """Cotangents that leave the update stage, (N, C, H, W): of c2, of s without the convolution's share, of U2∗s + b2
    and of h; t…: of their tangents, None without. sums: as :func:`norm_coefficients` wants them. scales: gradients of
    κ, γ, ω and b2, (4, C).
    """

    c: Tensor
    tc: Tensor | None
    s: Tensor
    ts: Tensor | None
    gate: Tensor
    tgate: Tensor | None
    h: Tensor
    sums: Tensor
    scales: Tensor


def update_gradient(
    z2: Tensor, tz2: Tensor | None, m2: Moments, t2: TangentMoments | None, s: Tensor, ts: Tensor | None, h: Tensor,
    direction: Tensor | None, cotangent: Tensor, vector: Tensor | None, w: Weights,
) -> UpdateGradients:
    """Gradient of ⟨cotangent, h'⟩ and, with tangents, of ⟨vector, J·direction⟩ through the update stage.

    z2, tz2, s, ts: canvases. direction: tangent of h.
    """
    s, kappa, gamma, omega = unpack(s, h), _column(w.kappa), _column(w.gamma), _column(w.omega)
    tangent = direction is not None
    n, tz, c, tc = _norm(unpack(z2, h), unpack(tz2, h) if tangent else None, m2, t2, w.scale2, w.shift2)
    g = torch.sigmoid(_mix(w.gate2, s) + _column(w.bias2))
    e = kappa * s + gamma * c + omega * s * c
    k, slope = F.softplus(e), torch.sigmoid(e)
    outer = torch.sigmoid((1 - g) * h + g * k) if w.outer else torch.ones_like(h)
    gate_slope = g * (1 - g)
    dm = outer * cotangent
    if tangent:
        ts = unpack(ts, h)
        tg_in = _mix(w.gate2, ts)
        te = kappa * ts + gamma * tc + omega * (ts * c + s * tc)
        tk, tg = slope * te, gate_slope * tg_in
        tm = (1 - g) * direction + g * tk + tg * (k - h)
        dtm = outer * vector
        if w.outer:
            dm = dm + outer * (1 - outer) * tm * vector
        dte = slope * g * dtm
        de = slope * (g * dm + tg * dtm) + slope * (1 - slope) * te * g * dtm
        dtg_in = gate_slope * (k - h) * dtm
        dg_in = gate_slope * ((k - h) * dm + (tk - direction) * dtm + (1 - 2 * g) * tg_in * (k - h) * dtm)
        dh = (1 - g) * dm - tg * dtm
    else:
        dte = dtg_in = None
        de, dg_in, dh = slope * g * dm, gate_slope * (k - h) * dm, (1 - g) * dm
    dc, ds = de * (gamma + omega * s), de * (kappa + omega * c) + _mix(w.gate2.T, dg_in)
    scales = [de * s, de * c, de * s * c, dg_in]
    dtc = dts = None
    if tangent:
        dtc, dts = dte * (gamma + omega * s), dte * (kappa + omega * c) + _mix(w.gate2.T, dtg_in)
        dc, ds = dc + dte * omega * ts, ds + dte * omega * tc
        for total, share in zip(scales, (dte * ts, dte * tc, dte * (ts * c + s * tc))):
            total += share
    return UpdateGradients(dc, dtc, ds, dts, dg_in, dtg_in, dh, _norm_sums(dc, dtc, n, tz), _sums(*scales))


class InhibitGradients(NamedTuple):
    """Cotangents that leave the inhibition stage, (N, C, H, W): of c1, of its tangent (None without), of x and of h.
    sums: as :func:`norm_coefficients` wants them. scales: gradients of α and μ, (2, C).
    """

    c: Tensor
    tc: Tensor | None
    x: Tensor
    h: Tensor
    sums: Tensor
    scales: Tensor


def inhibit_gradient(
    z1: Tensor, tz1: Tensor | None, m1: Moments, t1: TangentMoments | None, x: Tensor, h: Tensor, direction: Tensor | None,
    y2: Tensor, ty2: Tensor | None, update: UpdateGradients, w: Weights,
) -> InhibitGradients:
    """y2, ty2: canvases of the excitation's transposed convolutions, the rest of the cotangents of s and its tangent."""
    tangent = direction is not None
    n, tz, c, tc = _norm(unpack(z1, h), unpack(tz1, h) if tangent else None, m1, t1, w.scale1, w.shift1)
    alpha = _column(w.alpha)
    t = alpha * h + _column(w.mu)
    r = c * t
    inner = torch.sigmoid(r)
    q = torch.sigmoid(x - F.softplus(r))  # slope of the outer softplus
    ds = update.s + unpack(y2, h)
    dq = q * ds
    if tangent:
        dts = update.ts + unpack(ty2, h)
        tr = tc * t + c * alpha * direction
        dtq = q * dts
        dq = dq - q * (1 - q) * inner * tr * dts
        dtr = -inner * dtq
        dr = -inner * dq - inner * (1 - inner) * tr * dtq
        dtc, dtt = dtr * t, dtr * c
        dc, dt = dr * t + dtr * alpha * direction, dr * c + dtr * tc
        scales = _sums(dt * h + dtt * direction, dt)
    else:
        dtc, dr = None, -inner * dq
        dc, dt = dr * t, dr * c
        scales = _sums(dt * h, dt)
    return InhibitGradients(dc, dtc, dq, update.h + dt * alpha, _norm_sums(dc, dtc, n, tz), scales)


def gate_gradient(
    h: Tensor, direction: Tensor | None, y1: Tensor, ty1: Tensor | None, dh: Tensor, w: Weights
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Cotangents of U1∗h + b1, of its tangent and of h (added to ``dh``), and the gradient of b1, (C,).

    y1, ty1: canvases of the inhibition's transposed convolutions, the cotangents of h⊙g1 and its tangent.
    """
    g, dy = torch.sigmoid(_mix(w.gate1, h) + _column(w.bias1)), unpack(y1, h)
    slope = g * (1 - g)
    da, dta, dh = h * slope * dy, None, dh + g * dy
    if direction is not None:
        ta, dty = _mix(w.gate1, direction), unpack(ty1, h)
        dta = h * slope * dty
        da = da + (direction * slope + h * slope * (1 - 2 * g) * ta) * dty
        dh = dh + slope * ta * dty
    return da, dta, dh + _mix(w.gate1.T, da), _sums(da)[0]


def outer(a: Tensor, b: Tensor, ta: Tensor | None, tb: Tensor | None) -> Tensor:
    """Gradient of a 1×1 kernel (C, C): Σ a⊗b + ta⊗tb over samples and pixels."""
    total = torch.einsum("nchw,ndhw->cd", a, b)
    return total if ta is None else total + torch.einsum("nchw,ndhw->cd", ta, tb)


def _norm(z, tz, m: Moments, t: TangentMoments | None, scale: Tensor, shift: Tensor):
    """z normalised, ż, c, ċ; ż and ċ None without tangent."""
    n = _normalise(z, m)
    c = n * _column(scale) + _column(shift)
    if tz is None:
        return n, None, c, None
    return n, tz, c, _column(scale * m.rstd) * (tz - _column(t.mean) - n * _column(t.slope))


def _sums(*maps: Tensor) -> Tensor:
    return torch.stack([value.sum((0, 2, 3)) for value in maps])


def _norm_sums(dc, dtc, n, tz) -> Tensor:
    return _sums(dc, dc * n) if dtc is None else _sums(dc, dc * n, dtc, dtc * n, dtc * tz)
