"""Every key of the configuration reaches the model that it is meant for."""

import pytest
import torch
from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec

from rfpn.config import flatten, get_cfg
from rfpn.layers import ConvLSTMCell, HGRUCell
from rfpn.modeling import HGRUMaskHead, PathfinderNet
from rfpn.modeling.recurrent import recurrent_options

# key below MODEL.RECURRENT -> a value that is not the default, argument of RecurrentLayer, what that becomes
OPTIONS = {
    "STEPS": (7, "steps"),
    "EXTRA_STEPS": (2, "extra_steps"),
    "TEST_STEPS": (9, "test_steps"),
    "TEST_TOLERANCE": (0.125, "test_tolerance"),
    "SOLVER_TOLERANCE": (0.25, "solver_tolerance"),
    "ADJOINT": ("solve", "adjoint"),
    "WINDOW": (5, "window"),
    "NEUMANN_TERMS": (11, "neumann_terms"),
    "NEUMANN_TOLERANCE": (0.5, "neumann_tolerance"),
    "GROWTH_LIMIT": (3.0, "growth_limit"),
    "LIPSCHITZ.WEIGHT": (4.0, "lipschitz"),
    "LIPSCHITZ.COEFFICIENT": (0.75, "coefficient"),
    "LIPSCHITZ.REDUCTION": ("norm", "reduction"),
    "LIPSCHITZ.PROBE": ("sample_signs", "probe"),
    "LIPSCHITZ.TWO_SIDED": (True, "two_sided"),
    "FAST": ("off", "fast"),
}
# these exclude others, or are of cells
ALONE = {"GRADIENT": ("tbptt", "gradient"), "SOLVER": ("anderson", "solver")}
OF_CELLS = {"CELL", "KERNEL_SIZE", "FORM", "GATE_BIAS", "GATE_STEPS", "NORM_GROUPS", "NORM_START"}


def configured(values: dict) -> CfgNode:
    cfg = get_cfg()
    cfg.merge_from_list(["MODEL.DEVICE", "cpu", *(word for pair in values.items() for word in pair)])
    return cfg


def below(values: dict) -> dict:
    return {f"MODEL.RECURRENT.{key}": value for key, value in values.items()}


def test_the_tables_of_this_test_are_whole():
    keys = flatten(get_cfg().MODEL.RECURRENT)
    assert keys.keys() == OPTIONS.keys() | ALONE.keys() | OF_CELLS
    assert all(keys[key] != value for key, (value, _) in (OPTIONS | ALONE).items())


def test_options_of_the_recurrent_layer():
    default = recurrent_options(configured({}))
    found = recurrent_options(configured(below({key: value for key, (value, _) in OPTIONS.items()})))
    wanted = {argument: True if key == "LIPSCHITZ.WEIGHT" else value for key, (value, argument) in OPTIONS.items()}
    assert found == default | wanted and found.keys() - wanted.keys() == {"gradient", "solver"}
    for key, (value, argument) in ALONE.items():
        assert recurrent_options(configured(below({key: value}))) == default | {argument: value}


@pytest.mark.parametrize("test_steps, used", [(0, 5), (7, 7)])
def test_evaluation_follows_steps_that_are_set_later_unless_it_has_its_own(test_steps, used):
    values = below({"KERNEL_SIZE": 3, "STEPS": 2, "TEST_STEPS": test_steps}) | {"MODEL.PATHFINDER.CHANNELS": 2}
    layer = PathfinderNet(configured(values)).eval().layer
    layer.steps = 5
    assert (layer(torch.zeros(1, 2, 4, 4)).steps == used).all()


CELL = {"GATE_BIAS": "chronos", "GATE_STEPS": 13, "NORM_START": 0.5, "KERNEL_SIZE": 5}


def test_settings_of_the_mask_head(monkeypatch):
    values = {**CELL, "NORM_GROUPS": 4, "STEPS": 7, "LIPSCHITZ.WEIGHT": 4.0}
    cfg = configured({**below(values), "MODEL.ROI_MASK_HEAD.NORM": "BN", "MODEL.ROI_MASK_HEAD.CONV_DIM": 6})
    shape = ShapeSpec(channels=32, height=14, width=14)
    given = HGRUMaskHead.from_config(cfg, shape)
    wanted = {
        "input_channels": 32, "num_classes": 80, "deconv_channels": 6, "kernel_size": 5, "norm": "BN", "norm_groups": 4,
        "gate_bias": "chronos", "gate_steps": 13, "norm_start": 0.5, "lipschitz_weight": 4.0,
    }  # fmt: skip
    assert {name: given.get(name) for name in wanted} == wanted
    steps = []
    monkeypatch.setattr("rfpn.layers.hgru.gate_bias_start", lambda c, n, start: steps.append((n, start)) or torch.zeros(c))
    head = HGRUMaskHead(cfg, shape)
    assert steps == [(13, "chronos")] and head.lipschitz_weight == 4.0 and head.recurrent.steps == 7
    assert head.recurrent.cell.inhibition.kernel_size == (5, 5) and head.recurrent.cell.norm_inhibition.num_groups == 4
    assert (head.recurrent.cell.norm_excitation.weight == 0.5).all() and isinstance(head.norm, torch.nn.BatchNorm2d)


def test_settings_of_the_pathfinder_net(monkeypatch):
    steps = []
    monkeypatch.setattr("rfpn.layers.hgru.gate_bias_start", lambda c, n, start: steps.append((n, start)) or torch.zeros(c))
    values = {**CELL, "FORM": "printed", "STEPS": 7, "LIPSCHITZ.WEIGHT": 4.0, "GRADIENT": "bptt"}
    pathfinder = {"CHANNELS": 5, "FOCAL_GAMMA": 1.5, "SUPERVISE_ALL_STEPS": True}
    given = {f"MODEL.PATHFINDER.{key}": value for key, value in pathfinder.items()}
    net = PathfinderNet(configured(below(values) | given))
    cell = net.layer.cell
    assert steps == [(13, "chronos")] and cell.form == "printed" and cell.channels == 5 and type(cell) is HGRUCell
    assert cell.inhibition.kernel_size == (5, 5) and (cell.norm_inhibition.weight == 0.5).all() and net.layer.steps == 7
    assert (net.lipschitz_weight, net.focal_gamma, net.supervise_all_steps) == (4.0, 1.5, True)
    other = PathfinderNet(configured({"MODEL.RECURRENT.CELL": "conv_lstm", "MODEL.PATHFINDER.LOSS": "cross_entropy"}))
    assert type(other.layer.cell) is ConvLSTMCell and other.focal_gamma == 0


@pytest.mark.parametrize("layer", ["recurrent", "feedforward"])
@pytest.mark.parametrize("key, most", [("PATHFINDER.FEEDFORWARD_LAYERS", 1000), ("RECURRENT.KERNEL_SIZE", 255)])
def test_what_would_fill_the_memory_is_refused_by_the_model_itself(key, most, layer):
    cfg = configured({"MODEL.PATHFINDER.LAYER": layer, "MODEL.PATHFINDER.CHANNELS": 1, f"MODEL.{key}": most + 2})
    with pytest.raises(ValueError, match=f"MODEL.{key} must be at most {most}, got {most + 2}"):
        PathfinderNet(cfg)


def test_a_mask_head_refuses_kernels_that_would_fill_the_memory():
    cfg = configured({"MODEL.RECURRENT.KERNEL_SIZE": 257})
    with pytest.raises(ValueError, match="MODEL.RECURRENT.KERNEL_SIZE must be at most 255, got 257"):
        HGRUMaskHead.from_config(cfg, ShapeSpec(channels=32, height=14, width=14))


@pytest.mark.parametrize("layers", [2, 4])
def test_settings_of_the_feedforward_control(layers):
    values = {"LAYER": "feedforward", "FEEDFORWARD_LAYERS": layers, "CHANNELS": 5}
    net = PathfinderNet(configured({f"MODEL.PATHFINDER.{key}": value for key, value in values.items()}))
    assert len([m for m in net.layer.modules() if isinstance(m, torch.nn.Conv2d)]) == layers and net.filters.bias is None
