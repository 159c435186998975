"""What a GALA hGRU step and its transpose do between matrix products, in torch operations.

All maps are (R, H, W, C), channels last; ``half`` is the type that convolutions work in. One step of
:class:`rfpn.layers.GALAHGRUCell` is ``gate`` → conv → ``inhibit`` → conv and 1×1 → ``update``; a transposed product is
``through_update`` → convᵀ and 1×1ᵀ → ``through_inhibit`` → convᵀ → ``through_gate`` → convᵀ → ``collect``. With
``record`` a stage also returns what the transposed product needs. ``gala_triton`` holds the same functions as kernels.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from rfpn.fixed_point.neumann import add_term as add_term


class Weights(NamedTuple):
    """The cell's parameters without the large kernels, float32 (or float64) unless named.

    channel_out: (C, C/r) and channel_in: (C/r, C), in ``half``; spatial_out: (C/2, 9), in ``half``, tap 3·row + column.
    channel_bias (C/r,), spatial_bias (C/2,), all others (C,). groups: of both norms.
    """

    channel_in: Tensor
    channel_bias: Tensor
    channel_out: Tensor
    spatial_bias: Tensor
    spatial_out: Tensor
    bias1: Tensor
    bias2: Tensor
    alpha: Tensor
    mu: Tensor
    scale1: Tensor
    shift1: Tensor
    scale2: Tensor
    shift2: Tensor
    epsilon: float
    groups: int


class GateFactors(NamedTuple):
    """y = h⊙g1: g1 and h⊙g1(1 − g1), (R, H, W, C); ζ and σ of the channel path (…, C/r); where (R, H, W, 1);
    σ of the spatial path (…, C/2).
    """

    gate1: Tensor
    slope1: Tensor
    what: Tensor
    what_slope: Tensor
    where: Tensor
    where_slope: Tensor


class InhibitFactors(NamedTuple):
    """∂s/∂c1 and ∂s/∂h as factors, z1 normalised, (R, H, W, C); 1/√(variance + ε), (R, groups)."""

    inhibit: Tensor
    scale: Tensor
    z1: Tensor
    rstd: Tensor


class UpdateFactors(NamedTuple):
    """∂h'/∂c2, ∂h'/∂(U∗s) and 1 − ∂h'/∂h as factors, z2 normalised, (R, H, W, C); 1/√(variance + ε), (R, groups).

    Not ∂h'/∂h: half precision rounds it to 1 where a gate is nearly shut, and I − J keeps nothing of it.
    """

    excite: Tensor
    gate2: Tensor
    lose: Tensor
    z2: Tensor
    rstd: Tensor


def gate(channel: Tensor, spatial: Tensor, h: Tensor, w: Weights, record: bool) -> tuple[Tensor, GateFactors | None]:
    """h⊙σ(a) from the first layers of both gate paths (without bias), (R, H, W, C/r) and (R, H, W, C/2)."""
    channel, spatial = channel + w.channel_bias, spatial + w.spatial_bias
    what = F.softplus(channel)
    where = _spread(F.softplus(spatial) @ w.spatial_out.to(spatial.dtype))
    g1 = torch.sigmoid((what @ w.channel_out.mT.to(what.dtype)) * where + w.bias1)
    y = (h * g1).to(h.dtype)
    if not record:
        return y, None
    slopes = (g1, h * g1 * (1 - g1), what, torch.sigmoid(channel), where, torch.sigmoid(spatial))
    return y, GateFactors(*(t if t is where else t.to(h.dtype) for t in slopes))


def inhibit(z1: Tensor, x: Tensor, h: Tensor, w: Weights, record: bool) -> tuple[Tensor, InhibitFactors | None]:
    """s = ζ(x − c1⊙(α h + μ)), in the type of h."""
    n1, rstd = _normalise(z1, w)
    c1, t = n1 * w.scale1 + w.shift1, w.alpha * h + w.mu
    q = x - c1 * t
    s = F.softplus(q).to(h.dtype)
    if not record:
        return s, None
    through = -torch.sigmoid(q)
    return s, InhibitFactors(*(f.to(h.dtype) for f in (through * t, through * c1 * w.alpha, n1)), rstd)


def update(
    z2: Tensor, mixed: Tensor, h: Tensor, w: Weights, half: torch.dtype, record: bool
) -> tuple[Tensor, Tensor, UpdateFactors | None]:
    """Next state in the type of h and in ``half``; ``mixed`` is U∗s without bias."""
    n2, rstd = _normalise(z2, w)
    c2 = n2 * w.scale2 + w.shift2
    g2, candidate = torch.sigmoid(mixed + w.bias2), F.softplus(c2)
    state = ((1 - g2) * h + g2 * candidate).to(h.dtype)
    if not record:
        return state, state.to(half), None
    factors = (g2 * torch.sigmoid(c2), (candidate - h) * g2 * (1 - g2), g2, n2)
    return state, state.to(half), UpdateFactors(*(f.to(half) for f in factors), rstd)


def through_update(v: Tensor, f: UpdateFactors, w: Weights) -> tuple[Tensor, Tensor]:
    """Cotangents of z2 and of U∗s from that of the next state."""
    return _norm_adjoint(f.excite * v * w.scale2, f.z2, f.rstd).to(f.z2.dtype), (f.gate2 * v).to(f.z2.dtype)


def through_inhibit(y2: Tensor, mixed: Tensor, f: InhibitFactors, w: Weights) -> tuple[Tensor, Tensor]:
    """Cotangents of s (the sum of both arguments) and of z1."""
    wide = torch.promote_types(y2.dtype, torch.float32)
    ds = y2.to(wide) + mixed
    return ds.to(y2.dtype), _norm_adjoint(f.inhibit * ds * w.scale1, f.z1, f.rstd).to(y2.dtype)


def through_gate(dy: Tensor, f: GateFactors, w: Weights) -> tuple[Tensor, Tensor]:
    """Cotangents of the first layers of the channel path (…, C/r) and of the spatial path (…, C/2) from that of y."""
    wide = torch.promote_types(dy.dtype, torch.float32)
    da = f.slope1.to(wide) * dy
    what = f.what.to(wide) @ w.channel_out.mT.to(wide)
    dwhere = (da * what).sum(-1, keepdim=True)
    dchannel = (da * f.where) @ w.channel_out.to(wide) * f.what_slope
    dspatial = _gather(dwhere) @ w.spatial_out.mT.to(wide) * f.where_slope
    return dchannel.to(dy.dtype), dspatial.to(dy.dtype)


def collect(
    v: Tensor, ds: Tensor, dy: Tensor, dchannel: Tensor, spatial: Tensor, gates: GateFactors, inhibits: InhibitFactors,
    updates: UpdateFactors, w: Weights,
) -> Tensor:
    """Jᵀv: all paths to h added up; ``spatial`` is the spatial path's cotangent of h."""
    wide = v.dtype
    total = torch.addcmul(v, updates.lose.to(wide), v, value=-1)
    total = total + inhibits.scale.to(wide) * ds + gates.gate1.to(wide) * dy + spatial
    return (total + dchannel.to(wide) @ w.channel_in.to(wide)).to(wide)


def _normalise(z: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
    wide = z.to(torch.promote_types(z.dtype, torch.float32)).unflatten(-1, (w.groups, -1))
    variance, mean = torch.var_mean(wide, (1, 2, 4), correction=0, keepdim=True)
    rstd = (variance + w.epsilon).rsqrt()
    return ((wide - mean) * rstd).flatten(-2), rstd.view(len(z), w.groups)


def _norm_adjoint(dn: Tensor, n: Tensor, rstd: Tensor) -> Tensor:
    """Adjoint of a group norm: rstd·(dn − mean(dn) − n·mean(n⊙dn)), means over pixels and channels of a group."""
    groups = rstd.shape[1]
    dn, n = dn.unflatten(-1, (groups, -1)), n.to(dn.dtype).unflatten(-1, (groups, -1))
    mean, slope = dn.mean((1, 2, 4), keepdim=True), (dn * n).mean((1, 2, 4), keepdim=True)
    return (rstd[:, None, None, :, None] * (dn - mean - n * slope)).flatten(-2)


def _spread(taps: Tensor) -> Tensor:
    """Last part of a 3×3 convolution to one channel: taps (R, H, W, 9) -> (R, H, W, 1)."""
    height, width = taps.shape[1:3]
    padded = F.pad(taps, (0, 0, 1, 1, 1, 1))
    shifted = (padded[:, k // 3 : k // 3 + height, k % 3 : k % 3 + width, k] for k in range(9))
    return sum(shifted).unsqueeze(-1)


def _gather(where: Tensor) -> Tensor:
    """Adjoint of :func:`_spread`: (R, H, W, 1) -> (R, H, W, 9)."""
    height, width = where.shape[1:3]
    padded = F.pad(where[..., 0], (1, 1, 1, 1))
    return torch.stack(
        [padded[:, 2 - k // 3 : 2 - k // 3 + height, 2 - k % 3 : 2 - k % 3 + width] for k in range(9)], dim=-1
    )
