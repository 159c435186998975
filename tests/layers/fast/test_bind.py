"""Fast forms serve a cell as it was made, on drives that they were made for, and nothing else."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch._functorch.aot_autograd import aot_function
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrizations

from rfpn.layers import GALAHGRUCell, HGRUCell, RecurrentLayer
from rfpn.layers import fast as fast_package
# imported before anything is patched, since they take names from the package
from rfpn.layers.fast import gala as _gala_form
from rfpn.layers.fast import graphs
from rfpn.layers.fast import hgru as _hgru_form
from tests.layers.fast.fast_problems import OnCard, gala, hgru, spread

DRIVES = {"hgru": (2, 4, 8, 8), "gala": (2, 64, 5, 5)}
CELLS = {"hgru": hgru, "gala": gala}


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    monkeypatch.setattr(fast_package, "available", lambda x: True)


def _bound(cell, kind, drive=None) -> bool:
    return fast_package.bind(cell, torch.rand(DRIVES[kind]) if drive is None else drive) is not None


def _trained(cell):
    layer = RecurrentLayer(cell, 2)
    layer(torch.rand(2, cell.channels, 5, 5)).hidden.sum().backward()
    torch.optim.Adam(layer.parameters()).step()
    return cell


def _loaded(cell):
    cell.load_state_dict(copy.deepcopy(cell.state_dict()))
    return cell


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize(
    "change",
    [
        lambda cell: cell,
        copy.deepcopy,
        lambda cell: pickle.loads(pickle.dumps(cell)),
        lambda cell: cell.eval(),
        lambda cell: cell.requires_grad_(False),
        lambda cell: cell.to(memory_format=torch.channels_last),
        _loaded,
        _trained,
    ],
    ids=["made", "copied", "pickled", "evaluated", "frozen", "channels_last", "loaded", "trained"],
)
def test_served(kind, change):
    assert _bound(change(CELLS[kind]()), kind)


def _with(cell, **parts):
    for name, part in parts.items():
        setattr(cell, name, part)
    return cell


def _with_forward(cell, part):
    part.forward = lambda *inputs: inputs[-1]
    return cell


def _shared(cell):
    cell.excitation.weight = cell.inhibition.weight
    return cell


def _padded(cell):
    cell.excitation.padding_mode = "circular"
    return cell


def _loosened(cell):
    cell.norm_excitation.eps = 0.1
    return cell


def _counted(cell):
    """A norm then works with running statistics in evaluation."""
    cell.norm_inhibition.register_buffer("running_mean", torch.zeros(cell.channels))
    cell.norm_inhibition.register_buffer("running_var", torch.ones(cell.channels))
    return cell


def _wrapped(cell):
    """A convolution on a torus, say."""
    conv = cell.excitation
    conv._conv_forward = lambda h, weight, bias: nn.Conv2d._conv_forward(conv, h.roll(1, 3), weight, bias)
    return cell


def _hooked(kind):
    def register(cell):
        getattr(cell.excitation, f"register_{kind}")(lambda *_: None)
        return cell

    return register


def _replica(cell):
    """As nn.DataParallel makes them: tensors in the parameters' places, which are no parameters."""
    copied = copy.copy(cell)
    copied._parameters = {name: None for name, p in cell._parameters.items() if p is None}
    copied.__dict__.update({name: p.detach().clone() for name, p in cell._parameters.items() if p is not None})
    copied._modules = {name: _replica(module) for name, module in cell._modules.items() if module is not None}
    copied._is_replica = True
    return copied


CHANGES = {
    "forward hook": _hooked("forward_hook"),
    "forward pre-hook": _hooked("forward_pre_hook"),
    "backward hook": _hooked("full_backward_hook"),
    "backward pre-hook": _hooked("full_backward_pre_hook"),
    "another forward of a part": lambda cell: _with_forward(cell, cell.norm_inhibition),
    "another forward": lambda cell: _with_forward(cell, cell),
    "another norm": lambda cell: _with(cell, norm_inhibition=nn.GroupNorm(1, cell.channels)),
    "a setting of a norm": _loosened,
    "padding": _padded,
    "running statistics": _counted,
    "another convolution": _wrapped,
    "a bias": lambda cell: _with(cell, inhibition=nn.Conv2d(cell.channels, cell.channels, 3, padding=1)),
    "a scale for all channels": lambda cell: _with(cell, alpha=nn.Parameter(torch.full((1, 1, 1), 0.1))),
    "shared kernels": _shared,
    "shared gates": lambda cell: _with(cell, gate_excitation=cell.inhibition),
    "weight norm": lambda cell: _with(cell, excitation=parametrizations.weight_norm(cell.excitation)),
    "spectral norm": lambda cell: _with(cell, excitation=parametrizations.spectral_norm(cell.excitation)),
    "a replica": _replica,
    "float64": lambda cell: cell.double(),
    "half": lambda cell: cell.half(),
}


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("name", CHANGES)
def test_changed_cells_run_as_they_are(kind, name, monkeypatch):
    cell = CHANGES[name](CELLS[kind]())
    assert not _bound(cell, kind)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    if name not in ("float64", "half"):  # these a graph holds as they are, one step after the other
        drive = torch.rand(DRIVES[kind]).as_subclass(OnCard)
        with torch.no_grad():
            assert not graphs.usable(RecurrentLayer(cell, 2), drive)


LARGE = {
    "hgru": (1, 4, 1100, 1100),  # more frequencies than a launch has programs for
    "hgru, samples": (54_000, 4, 32, 300),  # canvases are larger than drives
    "hgru, spectra": (1, 64, 740, 740),  # a kernel's transform has C² channels
    "gala": (200_000, 64, 14, 14),
}


@pytest.mark.parametrize("name", LARGE)
def test_drives_beyond_what_kernels_count_run_plain(name, monkeypatch):
    kind = name.split(",")[0]
    for form in (_gala_form, "FastGALA"), (_hgru_form, "FastHGRU"):
        monkeypatch.setattr(*form, lambda *_: "would be served")
    # takes no memory
    drive = torch.zeros(1).expand(LARGE[name])
    assert not _bound(CELLS[kind](drive.shape[1]), kind, drive)
    assert _bound(CELLS[kind](drive.shape[1]), kind, drive[:1, :, :14, :14])


def test_frequencies_of_a_program_are_those_of_the_kernels():
    pytest.importorskip("triton")
    from rfpn.layers.fast.spectral_triton import HALF_TILE, TILE

    assert fast_package._FREQUENCIES == {False: TILE[2], True: HALF_TILE[3] // HALF_TILE[2]}


def test_under_autocast_fewer_frequencies_fit():
    drive = torch.zeros(1).expand(1, 4, 400, 400)
    assert _bound(hgru(), "hgru", drive)
    with torch.autocast("cpu", torch.bfloat16):
        assert not _bound(hgru(), "hgru", drive)


def test_converted_norms_are_another():
    assert not _bound(nn.SyncBatchNorm.convert_sync_batchnorm(hgru()), "hgru")


class _Variant(HGRUCell):
    pass


@pytest.mark.parametrize(
    "cell, drive",
    [
        (_Variant(4, 7), torch.rand(2, 4, 8, 8)),
        (hgru(kernel_size=1), torch.rand(2, 4, 8, 8)),
        (HGRUCell(65, 7), torch.rand(2, 65, 8, 8)),
        (hgru(), torch.rand(0, 4, 8, 8)),
        (hgru(), torch.rand(4, 8, 8)),
        (hgru(), torch.rand(2, 3, 8, 8)),
        (hgru(), torch.rand(2, 4, 8, 8).half()),
        (hgru(), torch.rand(2, 4, 8, 8, device="meta")),
        (gala(), torch.rand(2, 32, 5, 5)),
        (gala(), torch.rand(2, 64, 17, 16)),
        (GALAHGRUCell(96, gate_reduction=3), torch.rand(2, 96, 5, 5)),
        (gala(32), torch.rand(2, 32, 5, 5)),
        (GALAHGRUCell(512), torch.rand(2, 512, 5, 5)),
        (GALAHGRUCell(16, groups=8, gate_reduction=1), torch.rand(2, 16, 5, 5)),
        (gala(128, groups=1), torch.rand(2, 128, 5, 5)),
        (gala(), torch.rand(2, 64, 5, 5).half()),
    ],
    ids=["subclass", "small kernel", "wide", "no samples", "no batch", "channels", "half drive", "device", "gala channels",
         "many pixels", "no power of two", "narrow gate", "wide gate", "narrow", "wide groups", "gala half drive"],
)  # fmt: skip
def test_drives_and_cells_that_are_not_served(cell, drive):
    assert fast_package.bind(cell, drive) is None


@pytest.mark.parametrize("form", [_hgru_form.FastHGRU, lambda cell, x: _gala_form.FastGALA(cell, torch.float32, x)])
def test_kernels_get_weights_that_lie_in_one_piece(form, monkeypatch):
    """They are handed no strides."""
    monkeypatch.undo()
    kind = "hgru" if form is _hgru_form.FastHGRU else "gala"
    weights = [part for part in form(spread(CELLS[kind]()), torch.rand(DRIVES[kind])).weights if torch.is_tensor(part)]
    assert len(weights) > 10 and all(part.is_contiguous() for part in weights)


@pytest.mark.parametrize("kind", CELLS)
def test_what_is_not_computed_at_once_runs_plain(kind, monkeypatch):
    drive, cell = torch.rand(DRIVES[kind]), CELLS[kind]()
    bound = []
    torch.func.grad(lambda x: bound.append(_bound(cell, kind, x)) or x.sum())(drive)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        bound.append(_bound(cell, kind, fake.from_tensor(drive)))
    make_fx(lambda x: bound.append(_bound(cell, kind, x)) or x + 0)(drive)
    aot_function(lambda x: bound.append(_bound(cell, kind, x)) or x + 0, fw_compiler=lambda graph, _: graph)(drive)
    assert set(bound) == {False} and len(bound) >= 4
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not _bound(cell, kind, drive)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with torch.no_grad():
        assert not graphs.usable(RecurrentLayer(cell, 2), drive.as_subclass(OnCard))


@pytest.mark.parametrize("dtype, served", [(torch.bfloat16, True), (torch.float16, False)])
def test_gala_under_autocast(dtype, served):
    drive = torch.rand(DRIVES["gala"])
    with torch.autocast("cpu", dtype):
        assert _bound(gala(), "gala", drive.as_subclass(OnCard)) == served
        # Triton's interpreter gets products of bfloat16 wrong
        assert not _bound(gala(), "gala", drive)


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_hooks_on_all_modules_are_called(kind):
    cell = hgru()
    handle = getattr(nn.modules.module, f"register_module_{kind}_hook")(lambda *_: None)
    try:
        assert not _bound(cell, "hgru")
    finally:
        handle.remove()
    assert _bound(cell, "hgru")


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
def test_hgru_takes_drives_of_bfloat16_under_its_autocast_alone(autocast):
    """A convolution before it gives such, and states are float32 then."""
    drive = torch.rand(DRIVES["hgru"]).bfloat16()
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        assert _bound(hgru(), "hgru", drive) == (autocast is torch.bfloat16)
