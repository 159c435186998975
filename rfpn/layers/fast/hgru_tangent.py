"""One hGRU step and its derivative along a direction, as autograd operations that need no second derivative.

The Lipschitz penalty asks for the gradient of a function of Jᵀp. For fixed directions w and p,
d⟨w, Jᵀp⟩ = d⟨p, J w⟩, and J w comes from carrying a tangent through the step; so one backward pass through step and tangent
replaces differentiating twice.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from rfpn.layers.fast.spectral import conv2d


def step_with_tangent(
    x: Tensor, h: Tensor, direction: Tensor | None, p: dict[str, Tensor], spectra: tuple[Tensor, Tensor], eps: float, outer: bool
) -> tuple[Tensor, Tensor | None]:
    """F(x, h) and J·direction.

    Args:
        x, h, direction: (N, C, H, W); without direction there is no tangent.
        p: the cell's parameters by name. spectra: of the inhibition and the excitation kernel.
        eps: of the norms. outer: the released form's outer softplus.
    """
    stages = _stages(x.device.type)
    gated = stages["gate"](h, direction, p["gate_inhibition.weight"], p["gate_inhibition.bias"])
    z1 = conv2d(gated, p["inhibition.weight"], spectra[0])
    s = stages["inhibit"](
        z1, x, h, direction, p["norm_inhibition.weight"], p["norm_inhibition.bias"], p["alpha"], p["mu"], eps
    )
    z2 = conv2d(s, p["excitation.weight"], spectra[1])
    return stages["update"](
        z2, s, h, direction, p["gate_excitation.weight"], p["gate_excitation.bias"], p["norm_excitation.weight"],
        p["norm_excitation.bias"], p["kappa"], p.get("gamma", p["kappa"]), p["omega"], eps, outer,
    )


def gate(h, direction, weight, bias):
    g, slope = _gate(h, weight, bias)
    if direction is None:
        return h * g
    return torch.cat([h * g, direction * g + h * slope * _mix(weight, direction)])


def inhibit(z, x, h, direction, norm_weight, norm_bias, alpha, mu, eps):
    c, dc = _batch_norm(z, direction is not None, norm_weight, norm_bias, eps)
    t = alpha * h + mu
    r = c * t
    q = x - F.softplus(r)
    if direction is None:
        return F.softplus(q)
    return torch.cat([F.softplus(q), -torch.sigmoid(q) * torch.sigmoid(r) * (dc * t + c * (alpha * direction))])


def update(z, s, h, direction, weight, bias, norm_weight, norm_bias, kappa, gamma, omega, eps, outer):
    c, dc = _batch_norm(z, direction is not None, norm_weight, norm_bias, eps)
    s, ds = (s, None) if direction is None else s.chunk(2)
    g, slope = _gate(s, weight, bias)
    argument = kappa * s + gamma * c + omega * s * c
    candidate = F.softplus(argument)
    mixed = (1 - g) * h + g * candidate
    state = F.softplus(mixed) if outer else mixed
    if direction is None:
        return state, None
    dcandidate = torch.sigmoid(argument) * (kappa * ds + gamma * dc + omega * (ds * c + s * dc))
    dmixed = (1 - g) * direction + g * dcandidate + slope * _mix(weight, ds) * (candidate - h)
    return state, torch.sigmoid(mixed) * dmixed if outer else dmixed


def _mix(weight, x):
    return (weight.flatten(1) @ x.flatten(2)).view_as(x)


def _gate(x, weight, bias):
    g = torch.sigmoid(_mix(weight, x) + bias.view(-1, 1, 1))
    return g, g * (1 - g)


def _batch_norm(z, tangent, weight, bias, eps):
    """Batch norm of z and, where z is stacked with a tangent, of that."""
    z, dz = z.chunk(2) if tangent else (z, None)
    variance, mean = torch.var_mean(z, (0, 2, 3), correction=0, keepdim=True)
    rstd = (variance + eps).rsqrt()
    n = (z - mean) * rstd
    weight = weight.view(-1, 1, 1)
    c = n * weight + bias.view(-1, 1, 1)
    if dz is None:
        return c, None
    dn = rstd * (dz - dz.mean((0, 2, 3), keepdim=True) - n * (n * dz).mean((0, 2, 3), keepdim=True))
    return c, dn * weight


_PLAIN = {"gate": gate, "inhibit": inhibit, "update": update}
_COMPILED = {}


def _stages(device: str) -> dict:
    from rfpn.layers.fast import compiles

    if not compiles(device):
        return _PLAIN
    if not _COMPILED:
        _COMPILED.update({name: torch.compile(stage) for name, stage in _PLAIN.items()})
    return _COMPILED
