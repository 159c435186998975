"""What an hGRU step and its transpose do between two large convolutions, in torch operations.

One step of :class:`rfpn.layers.HGRUCell` is ``gate`` → conv → ``inhibit`` → conv → ``update``. ``linearize`` writes the
step's Jacobian as ten element-wise factors; a transposed product is then ``norm_adjoint`` → convᵀ →
``through_excitation`` → ``norm_adjoint`` → convᵀ → ``through_inhibition``. States are (N, C, H, W); convolutions take
and give canvases (:mod:`rfpn.layers.fast.spectral`). ``hgru_triton`` holds the same functions as Triton kernels.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from rfpn.fixed_point.neumann import add_term as add_term
from rfpn.layers.fast.spectral import pack, unpack


class Weights(NamedTuple):
    """The cell's parameters without its large kernels: gates (C, C), all else (C,)."""

    gate1: Tensor
    bias1: Tensor
    gate2: Tensor
    bias2: Tensor
    alpha: Tensor
    mu: Tensor
    kappa: Tensor
    gamma: Tensor
    omega: Tensor
    scale1: Tensor
    shift1: Tensor
    scale2: Tensor
    shift2: Tensor
    epsilon: float
    outer: bool  # the released form's outer softplus


class Moments(NamedTuple):
    """Statistics of a batch: mean and 1/√(variance + ε) of every channel, (C,) each."""

    mean: Tensor
    rstd: Tensor


class Factors(NamedTuple):
    """J = ∂F/∂h of one step as element-wise factors, each (N, C, H, W); v is a cotangent of h_{t+1}.

    c2 += excite·v;  s += direct·v + U2ᵀ(gate2·v);  h += v − lose·v;  c1 += inhibit·ds;  h += scale·ds;
    h += gate1·dy + U1ᵀ(slope1·dy);  z1, z2 are the normalised convolutions. Not 1 − lose: half precision rounds it to 1
    where a gate is nearly shut, and I − J keeps nothing of it.
    """

    excite: Tensor
    direct: Tensor
    gate2: Tensor
    lose: Tensor
    z2: Tensor
    inhibit: Tensor
    scale: Tensor
    z1: Tensor
    gate1: Tensor
    slope1: Tensor


def _column(vector: Tensor) -> Tensor:
    return vector.view(-1, 1, 1)


def _mix(matrix: Tensor, x: Tensor) -> Tensor:
    """1×1 convolution: matrix (Co, C), x (N, C, H, W)."""
    return (matrix @ x.flatten(2)).view_as(x)


def gate(h: Tensor, canvas: Tensor, w: Weights) -> None:
    """h⊙σ(U1∗h + b1) into ``canvas``."""
    pack(h * torch.sigmoid(_mix(w.gate1, h) + _column(w.bias1)), canvas)


def moments(canvas: Tensor, like: Tensor, epsilon: float) -> Moments:
    """Statistics over the samples of ``canvas``, which have the shape of ``like``."""
    variance, mean = torch.var_mean(unpack(canvas, like), (0, 2, 3), correction=0)
    return Moments(mean, (variance + epsilon).rsqrt())


def inhibit(z1: Tensor, m1: Moments, x: Tensor, h: Tensor, canvas: Tensor, w: Weights) -> None:
    """s = ζ(x − ζ(c1⊙(α h + μ))) into ``canvas``."""
    c1 = _normalise(unpack(z1, x), m1) * _column(w.scale1) + _column(w.shift1)
    pack(F.softplus(x - F.softplus(c1 * (_column(w.alpha) * h + _column(w.mu)))), canvas)


def update(z2: Tensor, m2: Moments, s_canvas: Tensor, h: Tensor, w: Weights, canvas: Tensor | None) -> Tensor:
    """The next state; with ``canvas`` also :func:`gate` of it."""
    s = unpack(s_canvas, h)
    mixed = _candidate(unpack(z2, h), m2, s, h, w)[2]
    state = F.softplus(mixed) if w.outer else mixed
    if canvas is not None:
        gate(state, canvas, w)
    return state


def linearize(
    z1: Tensor, m1: Moments, z2: Tensor, m2: Moments, s_canvas: Tensor, x: Tensor, h: Tensor, w: Weights, dtype: torch.dtype
) -> tuple[Tensor, Factors]:
    """The next state and the factors of the Jacobian at (x, h), kept in ``dtype``."""
    s, n1, n2 = unpack(s_canvas, h), _normalise(unpack(z1, h), m1), _normalise(unpack(z2, h), m2)
    g1 = torch.sigmoid(_mix(w.gate1, h) + _column(w.bias1))
    c1 = n1 * _column(w.scale1) + _column(w.shift1)
    t = _column(w.alpha) * h + _column(w.mu)
    r = c1 * t
    through_s = -torch.sigmoid(x - F.softplus(r)) * torch.sigmoid(r)
    g2, argument, mixed, c2 = _candidate(unpack(z2, h), m2, s, h, w)
    slope = torch.sigmoid(mixed) if w.outer else torch.ones_like(mixed)
    through_candidate = slope * g2 * torch.sigmoid(argument)
    factors = Factors(
        excite=through_candidate * (_column(w.gamma) + _column(w.omega) * s),
        direct=through_candidate * (_column(w.kappa) + _column(w.omega) * c2),
        gate2=slope * (F.softplus(argument) - h) * g2 * (1 - g2),
        lose=1 - slope * (1 - g2),
        z2=n2,
        inhibit=through_s * t,
        scale=through_s * c1 * _column(w.alpha),
        z1=n1,
        gate1=g1,
        slope1=h * g1 * (1 - g1),
    )
    return F.softplus(mixed) if w.outer else mixed, Factors(*(factor.to(dtype) for factor in factors))


def product_sums(v: Tensor, factor: Tensor, z: Tensor) -> Tensor:
    """Σ factor⊙v and Σ factor⊙v⊙z over samples and pixels, (2, C)."""
    product = factor * v
    return torch.stack([product.sum((0, 2, 3)), (product * z).sum((0, 2, 3))])


def norm_adjoint(v: Tensor, factor: Tensor, z: Tensor, sums: Tensor, gain: Tensor, canvas: Tensor) -> None:
    """Adjoint of a batch norm: gain·(factor⊙v − mean − z·mean(z⊙·)) into ``canvas``; gain (C,) = weight/√(variance + ε)."""
    mean, slope = sums / (v.numel() / v.shape[1])
    pack(_column(gain) * (factor * v - _column(mean) - z * _column(slope)), canvas)


def through_excitation(y2: Tensor, v: Tensor, factors: Factors, w: Weights) -> tuple[Tensor, Tensor]:
    """Cotangent of s from the transposed convolution y2, and :func:`product_sums` for the norm before it."""
    ds = unpack(y2, v) + factors.direct * v + _mix(w.gate2.T, factors.gate2 * v)
    return ds, product_sums(ds, factors.inhibit, factors.z1)


def through_inhibition(y1: Tensor, v: Tensor, ds: Tensor, factors: Factors, w: Weights) -> Tensor:
    """Jᵀv from the transposed convolution y1."""
    dy = unpack(y1, v)
    own = torch.addcmul(v, factors.lose.to(v.dtype), v, value=-1)
    return own + factors.scale * ds + factors.gate1 * dy + _mix(w.gate1.T, factors.slope1 * dy)


def _normalise(z: Tensor, m: Moments) -> Tensor:
    return (z - _column(m.mean)) * _column(m.rstd)


def _candidate(z2: Tensor, m2: Moments, s: Tensor, h: Tensor, w: Weights) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """g2, the candidate before its softplus, the mixed state before its own, c2."""
    g2 = torch.sigmoid(_mix(w.gate2, s) + _column(w.bias2))
    c2 = _normalise(z2, m2) * _column(w.scale2) + _column(w.shift2)
    argument = _column(w.kappa) * s + _column(w.gamma) * c2 + _column(w.omega) * s * c2
    return g2, argument, (1 - g2) * h + g2 * F.softplus(argument), c2
