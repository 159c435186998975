"""The cells, gradients and penalties against arrays made by the arithmetic of the paper's released code."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rfpn.fixed_point import column_sums, implicit_gradient, iterate, lipschitz_penalty
from rfpn.layers import ConvLSTMCell, GALAHGRUCell, HGRUCell, RecurrentLayer, cell_state_dict
from rfpn.layers.released import _HGRU
from tests.problems import assert_close, gradients

ONE_STEP, MANY_STEPS = 1e-5, 1e-4
CELLS = {
    "hgru_pathfinder_k3": lambda: HGRUCell(25, 3),
    "hgru_pathfinder_k5": lambda: HGRUCell(25, 5),
    "hgru_pathfinder_k15": lambda: HGRUCell(25, 15),
    "hgru_gala_c64": lambda: GALAHGRUCell(64),
}
PATHFINDER = [name for name in CELLS if "pathfinder" in name]


class Golden:
    """One file of arrays and the cell with its weights."""

    def __init__(self, folder, name):
        with np.load(folder / "golden" / f"{name}.npz") as arrays:
            self.arrays = {key: torch.from_numpy(arrays[key]) for key in arrays}
        if name in CELLS:
            self.cell = CELLS[name]()
            self.cell.load_state_dict(cell_state_dict(self.cell, self.under("param/")))
        self.x = self["x"].requires_grad_()

    def __getitem__(self, key):
        return self.arrays[key]

    def under(self, prefix):
        return {key.removeprefix(prefix): value for key, value in self.arrays.items() if key.startswith(prefix)}

    def gradients(self, prefix):
        """Released gradients under this project's parameter names."""
        return {f"cell.{name}": value for name, value in cell_state_dict(self.cell, self.under(prefix)).items()}


@pytest.fixture(scope="module", params=CELLS)
def golden(request, reference):
    return Golden(reference, request.param)


@pytest.fixture(scope="module", params=PATHFINDER)
def pathfinder(request, reference):
    return Golden(reference, request.param)


def last_step(golden, steps=20):
    """h_T, recorded as a function of h_{T−1} and of the weights, and h_{T−1}."""
    with torch.no_grad():
        previous = iterate(golden.cell, golden.x, torch.zeros_like(golden.x), steps - 1)
    previous.requires_grad_()
    return golden.cell(golden.x, previous), previous


def test_states(golden):
    layer = RecurrentLayer(golden.cell, 40)
    with torch.no_grad():
        states = {step: hidden for step, (hidden, _) in enumerate(layer.unroll(golden.x, 40), start=1)}
    wanted = {name: value for name, value in golden.arrays.items() if name.startswith("h_")}
    assert len(wanted) == 5
    for name, value in wanted.items():
        steps = int(name.removeprefix("h_"))
        assert_close({name: states[steps]}, {name: value}, ONE_STEP if steps == 1 else MANY_STEPS)


def test_bptt(pathfinder):
    layer = RecurrentLayer(pathfinder.cell, 6, gradient="bptt")
    found = gradients((layer(pathfinder.x).hidden * pathfinder["cotangent"]).sum(), layer, pathfinder.x)
    assert_close(found, pathfinder.gradients("bptt6/grad/") | {"x": pathfinder["bptt6/grad_x"]}, MANY_STEPS)


def test_rbp(golden):
    layer = RecurrentLayer(golden.cell, 20, neumann_terms=15)
    output = layer(golden.x)
    found = gradients((output.hidden * golden["cotangent"]).sum(), layer, golden.x)
    wanted = golden.gradients("rbp20/grad/") | {"x": golden["rbp20/grad_x"]}
    if isinstance(golden.cell, HGRUCell):
        # these files' grad_x also holds the gradient of the mean-square penalty with respect to x
        h, previous = last_step(golden)
        (of_penalty,) = torch.autograd.grad(lipschitz_penalty(h, previous, 0.9), golden.x)
        found["x"] = found["x"] + of_penalty
        assert_close({"h_20": output.hidden}, {"h_20": golden["rbp20/h_20"]}, MANY_STEPS)
        assert_close({"h_19": previous}, {"h_19": golden["rbp20/h_19"]}, MANY_STEPS)
    assert_close(found, wanted, MANY_STEPS)
    assert layer.diagnostics["truncated_share"] == 0 and layer.diagnostics["neumann_length"] == 15


def test_neumann_sum_and_terms(golden):
    h, previous = last_step(golden)
    sums, norms = [], []
    hidden = implicit_gradient(h, previous, 15, report=sums.append)
    (hidden * golden["cotangent"]).sum().backward()
    term = golden["cotangent"]
    h, previous = last_step(golden)
    for _ in range(16):
        norms.append(term.double().norm())
        (term,) = torch.autograd.grad(h, previous, term, retain_graph=True)
    found = {"sum": sums[0].total, "norms": torch.stack(norms)}
    wanted = {"sum": golden["rbp20/neumann_sum_15"], "norms": golden["rbp20/neumann_term_norms"]}
    assert_close(found, wanted, MANY_STEPS)


def test_penalty(golden):
    h, previous = last_step(golden)
    names = {"mean_sq": "mean_square", "sum_sq": "sum_square", "l2norm": "norm"}
    wanted = {name: value for name, value in golden.under("lcp/").items() if "lambda" in name}
    found = {name: lipschitz_penalty(h, previous, 0.9, names[name.removesuffix("_lambda0.9")]) for name in wanted}
    assert wanted
    found["vjp_ones"], wanted["vjp_ones"] = column_sums(h, previous), golden["lcp/vjp_ones"]
    assert_close(found, wanted, MANY_STEPS)


def test_gradient_of_penalty(golden):
    kind, reduction = ("mean_sq", "mean_square") if isinstance(golden.cell, HGRUCell) else ("sum_sq", "sum_square")
    layer = RecurrentLayer(golden.cell, 20, lipschitz=True, coefficient=0.9, reduction=reduction)
    output = layer(golden.x)
    assert_close({"penalty": output.penalty}, {"penalty": golden[f"lcp/{kind}_lambda0.9"]}, MANY_STEPS)
    assert_close(gradients(output.penalty, layer), golden.gradients(f"lcp/grad_{kind}/"), MANY_STEPS)


def test_conv_lstm_states(reference):
    golden = Golden(reference, "conv_lstm_k5")
    cell = ConvLSTMCell(25, 5)
    cell.load_state_dict(cell_state_dict(cell, golden.under("param/")))
    state = RecurrentLayer(cell, 1).initial_state(golden.x)
    for t in range(1, 21):
        state = cell(golden.x, state)
        if t in (1, 6, 20):
            found = {f"h_{t}": cell.hidden(state), f"c_{t}": state[:, 25:]}
            assert_close(found, {name: golden[name] for name in found}, ONE_STEP if t == 1 else MANY_STEPS)


@pytest.mark.parametrize("name", ["recurrent", "mask_fcn_rnn"])
def test_mask_head_logits(reference, name):
    golden = Golden(reference, "released_mask_head_c64")
    weights = golden.under("state_dict/roi_heads.mask_head.")
    cell = GALAHGRUCell(64)
    cell.load_state_dict(cell_state_dict(cell, golden.under(f"state_dict/roi_heads.mask_head.{name}.")))
    readout = nn.ModuleDict(
        {"horizontal_norm": nn.BatchNorm2d(64), "deconv": nn.ConvTranspose2d(64, 64, 2, 2), "predictor": nn.Conv2d(64, 5, 1)}
    ).eval()
    readout.load_state_dict({key: value for key, value in weights.items() if key.split(".")[0] in readout})
    for steps in (20, 30):
        layer = RecurrentLayer(cell, 20, test_steps=steps).eval()
        with torch.no_grad():
            features = readout["horizontal_norm"](layer(golden.x).hidden)
            logits = readout["predictor"](F.relu(readout["deconv"](features)))
        assert_close({"logits": logits}, {"logits": golden[f"logits_{steps}"]}, MANY_STEPS)


def test_names_that_are_missing_or_unknown_are_listed():
    cell = ConvLSTMCell(2, 3)
    with pytest.raises(KeyError, match=r"ConvLSTMCell: missing .*'Wxi.weight'.* unknown \['peephole'\]"):
        cell_state_dict(cell, {"peephole": torch.zeros(2), "Whi.weight": torch.zeros(2, 2, 3, 3)})
    with pytest.raises(KeyError, match=r"HGRUCell: missing .*'alpha'.* unknown \['beta'\]"):
        cell_state_dict(HGRUCell(2, 3), {"beta": torch.zeros(2), "bn.0.weight": torch.zeros(2)})
    with pytest.raises(ValueError, match="form 'released', not 'printed'"):
        cell_state_dict(HGRUCell(2, 3, form="printed"), {})
    names = dict.fromkeys(_HGRU, torch.zeros(2, 2, 1, 1))
    with pytest.raises(ValueError, match=r"u1_gate.bias of shape \(2, 2, 1, 1\), not \(2,\)"):
        cell_state_dict(HGRUCell(2, 3), names)
    gates = {f"W{source}{gate}.weight": torch.zeros(3, 3, 5, 5) for source in "xh" for gate in "ifco"}
    gates |= {f"Wx{gate}.bias": torch.zeros(3) for gate in "ifco"}
    assert cell_state_dict(ConvLSTMCell(3, 5), gates)["from_drive.weight"].shape == (12, 3, 5, 5)
    with pytest.raises(ValueError, match=r"Wxi.weight of shape \(3, 3, 5, 5\), not \(3, 3, 3, 3\)"):
        cell_state_dict(ConvLSTMCell(3, 3), gates)
    with pytest.raises(TypeError, match="Conv2d"):
        cell_state_dict(nn.Conv2d(1, 1, 1), {})
