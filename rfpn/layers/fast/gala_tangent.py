"""One GALA hGRU step and its derivative along a direction; see :mod:`rfpn.layers.fast.hgru_tangent`."""

import torch
from torch import Tensor
from torch.nn import functional as F


def step_with_tangent(
    x: Tensor, h: Tensor, direction: Tensor | None, p: dict[str, Tensor], groups: int, eps: float, half: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """F(x, h) and J·direction.

    Args:
        x, h, direction: (R, C, H, W); without direction there is no tangent.
        p: the cell's parameters by name. groups, eps: of the norms. half: the type that convolutions work in.
    """
    tangent = direction is not None
    wide = h.dtype

    def conv(stacked, name):
        weight = p[name].to(half)
        return F.conv2d(stacked.to(half), weight, padding=weight.shape[-1] // 2).to(wide)

    def split(stacked):
        return stacked.chunk(2) if tangent else (stacked, None)

    def channel(name):
        return p[name].view(-1, 1, 1)

    def softplus_path(first, second):
        a, da = split(conv(state, f"gate_inhibition.{first}.weight"))
        a = a + channel(f"gate_inhibition.{first}.bias")
        a = torch.cat([F.softplus(a), torch.sigmoid(a) * da]) if tangent else F.softplus(a)
        return split(conv(a, f"gate_inhibition.{second}.weight"))

    def norm(z, name):
        z, dz = split(z)
        z = z.unflatten(1, (groups, -1))
        variance, mean = torch.var_mean(z, (2, 3, 4), correction=0, keepdim=True)
        rstd = (variance + eps).rsqrt()
        n = (z - mean) * rstd
        c = n.flatten(1, 2) * channel(f"{name}.weight") + channel(f"{name}.bias")
        if not tangent:
            return c, None
        dz = dz.unflatten(1, (groups, -1))
        dn = rstd * (dz - dz.mean((2, 3, 4), keepdim=True) - n * (n * dz).mean((2, 3, 4), keepdim=True))
        return c, dn.flatten(1, 2) * channel(f"{name}.weight")

    state = torch.cat([h, direction]) if tangent else h
    what, dwhat = softplus_path("channel_in", "channel_out")
    where, dwhere = softplus_path("spatial_in", "spatial_out")
    g1 = torch.sigmoid(what * where + channel("gate_inhibition.bias"))
    y = h * g1
    if tangent:
        y = torch.cat([y, direction * g1 + h * (g1 * (1 - g1)) * (dwhat * where + what * dwhere)])
    c1, dc1 = norm(conv(y, "inhibition.weight"), "norm_inhibition")
    t = p["alpha"] * h + p["mu"]
    q = x - c1 * t
    s = F.softplus(q)
    if tangent:
        s = torch.cat([s, -torch.sigmoid(q) * (dc1 * t + c1 * (p["alpha"] * direction))])
    g2, dg2 = split(conv(s, "gate_excitation.weight"))
    g2 = torch.sigmoid(g2 + channel("gate_excitation.bias"))
    c2, dc2 = norm(conv(s, "excitation.weight"), "norm_excitation")
    candidate = F.softplus(c2)
    out = (1 - g2) * h + g2 * candidate
    if not tangent:
        return out, None
    return out, (1 - g2) * direction + g2 * torch.sigmoid(c2) * dc2 + g2 * (1 - g2) * dg2 * (candidate - h)
