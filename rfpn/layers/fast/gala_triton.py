"""The stages of :mod:`rfpn.layers.fast.gala_stages` as Triton kernels: same names, same arguments."""

import torch
import triton
from torch import Tensor

from rfpn.layers.fast import gala_kernels as kernels
from rfpn.layers.fast.gala_kernels import TAPS
from rfpn.layers.fast.gala_stages import GateFactors, InhibitFactors, UpdateFactors, Weights
from rfpn.layers.fast.series_triton import add_term as add_term

ROWS = 64
CHUNK = 128  # channels of a kernel over pixels
NORM_CHUNK = 32  # channels of a kernel with a group norm, more where a group has more
ADJOINT_CHUNK = 64  # of one that takes a norm's adjoint


def on_pixels(kernel, like: Tensor, *arguments, chunks: int = 1, block: int = ROWS, warps: int = 4, **constants) -> None:
    """Run a kernel on all pixels of ``like`` (R, H, W, ·), ``block`` to a program, its channels in ``chunks`` programs."""
    rows = like.shape[0] * like.shape[1] * like.shape[2]
    with torch.cuda.device_of(like):
        # one stage: more would fetch operands of later rounds into shared memory, of which there is too little
        kernel[(triton.cdiv(rows, block), chunks)](*arguments, rows, ROWS=block, num_warps=warps, num_stages=1, **constants)


def on_rois(kernel, like: Tensor, w: Weights, *arguments, chunk: int = NORM_CHUNK, warps: int = 8, **constants) -> None:
    """Run a kernel on all RoIs and channels of ``like`` (R, H, W, C), at least ``chunk`` of these in a program."""
    rois, h, width, channels = like.shape
    group = channels // w.groups
    chunk = min(channels, max(chunk, group))
    with torch.cuda.device_of(like):
        kernel[(rois, channels // chunk)](
            *arguments, HW=h * width, PIXELS=max(16, triton.next_power_of_2(h * width)), C=channels, CHUNK=chunk,
            GROUP=group, num_warps=warps, **constants,
        )


def spatial_gate(
    spatial: Tensor, like: Tensor, w: Weights, *, tangent: bool = False, activity: Tensor | None = None,
    slope: Tensor | None = None, **launch: int,
) -> Tensor:
    """The spatial path's output of ``like``'s pixels, (R, H, W, 1), from its first layer; ``tangent``: (2R, H, W, 1).

    Its ζ goes to ``activity`` and ζ' to ``slope``, where given. ``launch``: see :func:`on_pixels`.
    """
    taps = spatial.new_empty((*spatial.shape[:3], TAPS.value), dtype=torch.float32)
    on_pixels(
        kernels.taps_kernel, like, spatial, w.spatial_bias, w.spatial_out, taps, taps if activity is None else activity,
        taps if slope is None else slope, ACTIVITY=activity is not None, SLOPE=slope is not None, TANGENT=tangent,
        C=spatial.shape[-1], **launch,
    )
    return _spread(taps)


def _spread(taps: Tensor) -> Tensor:
    """Taps (R, H, W, 16) summed where they belong: (R, H, W, 1)."""
    where = taps.new_empty((*taps.shape[:3], 1))
    on_pixels(kernels.spread_kernel, taps, taps, where, H=taps.shape[1], W=taps.shape[2])
    return where


def gate(channel: Tensor, spatial: Tensor, h: Tensor, w: Weights, record: bool) -> tuple[Tensor, GateFactors | None]:
    """See :func:`rfpn.layers.fast.gala_stages.gate`."""
    chunk = min(CHUNK, h.shape[-1])
    y = torch.empty_like(h)
    gate1, slope1, what, what_slope, where_slope = (
        torch.empty_like(like) if record else y for like in (h, h, channel, channel, spatial)
    )
    where = spatial_gate(spatial, h, w, slope=where_slope if record else None)
    on_pixels(
        kernels.gate_kernel, h, channel, w.channel_bias, w.channel_out, where, w.bias1, h, y, gate1, slope1, what, what_slope,
        RECORD=record, C=h.shape[-1], R=channel.shape[-1], CHUNK=chunk, chunks=h.shape[-1] // chunk,
    )
    return y, GateFactors(gate1, slope1, what, what_slope, where, where_slope) if record else None


def inhibit(z1: Tensor, x: Tensor, h: Tensor, w: Weights, record: bool) -> tuple[Tensor, InhibitFactors | None]:
    """See :func:`rfpn.layers.fast.gala_stages.inhibit`."""
    s = torch.empty_like(h)
    factors = [s] * 4
    if record:
        factors = [*(torch.empty_like(h) for _ in range(3)), h.new_empty((len(h), w.groups), dtype=torch.float32)]
    on_rois(
        kernels.inhibit_kernel, h, w, z1, x, h, s, w.scale1, w.shift1, w.alpha, w.mu, *factors, w.epsilon, RECORD=record
    )
    return s, InhibitFactors(*factors) if record else None


def update(
    z2: Tensor, mixed: Tensor, h: Tensor, w: Weights, half: torch.dtype, record: bool
) -> tuple[Tensor, Tensor, UpdateFactors | None]:
    """See :func:`rfpn.layers.fast.gala_stages.update`."""
    out, narrow = torch.empty_like(h), torch.empty_like(h, dtype=half)
    factors = [narrow] * 5
    if record:
        factors = [*(torch.empty_like(narrow) for _ in range(4)), h.new_empty((len(h), w.groups), dtype=torch.float32)]
    on_rois(
        kernels.update_kernel, h, w, z2, mixed, h, out, narrow, w.scale2, w.shift2, w.bias2, *factors, w.epsilon, RECORD=record
    )
    return out, narrow, UpdateFactors(*factors) if record else None


def through_update(v: Tensor, f: UpdateFactors, w: Weights) -> tuple[Tensor, Tensor]:
    """See :func:`rfpn.layers.fast.gala_stages.through_update`."""
    dz2, dmixed = torch.empty_like(f.z2), torch.empty_like(f.z2)
    on_rois(
        kernels.through_update_kernel, v, w, v, f.excite, f.gate2, f.z2, f.rstd, w.scale2, dz2, dmixed,
        chunk=ADJOINT_CHUNK, warps=4,
    )
    return dz2, dmixed


def through_inhibit(y2: Tensor, mixed: Tensor, f: InhibitFactors, w: Weights) -> tuple[Tensor, Tensor]:
    """See :func:`rfpn.layers.fast.gala_stages.through_inhibit`."""
    ds, dz1 = torch.empty_like(y2), torch.empty_like(y2)
    on_rois(
        kernels.through_inhibit_kernel, y2, w, y2, mixed, f.inhibit, f.z1, f.rstd, w.scale1, ds, dz1,
        chunk=ADJOINT_CHUNK, warps=4,
    )
    return ds, dz1


def through_gate(dy: Tensor, f: GateFactors, w: Weights) -> tuple[Tensor, Tensor]:
    """See :func:`rfpn.layers.fast.gala_stages.through_gate`."""
    height, width, channels = dy.shape[1:]
    dchannel, dspatial = torch.empty_like(f.what), torch.empty_like(f.where_slope)
    dwhere = torch.empty_like(f.where)
    on_pixels(
        kernels.through_gate_kernel, dy, dy, f.slope1, f.what, f.what_slope, f.where, w.channel_out, dchannel, dwhere,
        C=channels, R=f.what.shape[-1], CHUNK=min(CHUNK, channels),
    )
    on_pixels(
        kernels.taps_adjoint_kernel, dy, dwhere, w.spatial_out, f.where_slope, dspatial,
        C=dspatial.shape[-1], H=height, W=width,
    )
    return dchannel, dspatial


def collect(
    v: Tensor, ds: Tensor, dy: Tensor, dchannel: Tensor, spatial: Tensor, gates: GateFactors, inhibits: InhibitFactors,
    updates: UpdateFactors, w: Weights,
) -> Tensor:
    """See :func:`rfpn.layers.fast.gala_stages.collect`."""
    out = torch.empty_like(v)
    chunk = min(CHUNK, v.shape[-1])
    on_pixels(
        kernels.collect_kernel, v, v, ds, dy, dchannel, spatial, updates.lose, inhibits.scale, gates.gate1, w.channel_in, out,
        C=v.shape[-1], R=dchannel.shape[-1], CHUNK=chunk, chunks=v.shape[-1] // chunk,
    )
    return out
