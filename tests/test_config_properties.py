"""Random values of every key of this project: each trains one step, or ends with one line that names a key."""

import math

import numpy as np
import pytest
import torch
from detectron2.config import get_cfg as detectron2_cfg
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.layers import ShapeSpec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from rfpn.config import flatten, get_cfg
from rfpn.data.pathfinder.registration import register_pathfinder
from rfpn.engine.setup import load_cfg
from rfpn.engine.step import TrainStep
from rfpn.engine.trainer import Trainer
from rfpn.modeling import HGRUMaskHead
from rfpn.programs import one_line_errors
from tests.engine.distributed_job import Wrapped


COUNT = st.integers(1, 4)
SMALL = st.floats(0, 2)
# values that can work, small enough for a test
LIKELY = {
    "MODEL.RECURRENT.CELL": st.sampled_from(["hgru", "conv_lstm"]),
    "MODEL.RECURRENT.STEPS": COUNT,
    "MODEL.RECURRENT.EXTRA_STEPS": st.integers(0, 2),
    "MODEL.RECURRENT.TEST_STEPS": COUNT,
    "MODEL.RECURRENT.TEST_TOLERANCE": SMALL,
    "MODEL.RECURRENT.GRADIENT": st.sampled_from(["bptt", "tbptt", "rbp"]),
    "MODEL.RECURRENT.SOLVER": st.sampled_from(["steps", "anderson"]),
    "MODEL.RECURRENT.SOLVER_TOLERANCE": SMALL,
    "MODEL.RECURRENT.ADJOINT": st.sampled_from(["neumann", "solve"]),
    "MODEL.RECURRENT.WINDOW": COUNT,
    "MODEL.RECURRENT.NEUMANN_TERMS": st.integers(0, 4),
    "MODEL.RECURRENT.NEUMANN_TOLERANCE": SMALL,
    "MODEL.RECURRENT.GROWTH_LIMIT": st.floats(0.5, 4),
    "MODEL.RECURRENT.KERNEL_SIZE": st.integers(0, 7),
    "MODEL.RECURRENT.FORM": st.sampled_from(["released", "printed"]),
    "MODEL.RECURRENT.GATE_BIAS": st.sampled_from(["released", "chronos"]),
    "MODEL.RECURRENT.GATE_STEPS": st.integers(0, 30),
    "MODEL.RECURRENT.NORM_GROUPS": st.sampled_from([1, 2, 3, 8, 32]),
    "MODEL.RECURRENT.NORM_START": SMALL,
    "MODEL.RECURRENT.FAST": st.sampled_from(["auto", "off"]),
    "MODEL.RECURRENT.LIPSCHITZ.WEIGHT": SMALL,
    "MODEL.RECURRENT.LIPSCHITZ.COEFFICIENT": SMALL,
    "MODEL.RECURRENT.LIPSCHITZ.REDUCTION": st.sampled_from(["mean_square", "sum_square", "norm"]),
    "MODEL.RECURRENT.LIPSCHITZ.PROBE": st.sampled_from(["ones", "sample_signs", "rademacher", "secant"]),
    "MODEL.RECURRENT.LIPSCHITZ.TWO_SIDED": st.booleans(),
    "MODEL.PATHFINDER.LAYER": st.sampled_from(["recurrent", "feedforward"]),
    "MODEL.PATHFINDER.CHANNELS": COUNT,
    "MODEL.PATHFINDER.FEEDFORWARD_LAYERS": COUNT,
    "MODEL.PATHFINDER.LOSS": st.sampled_from(["focal", "cross_entropy"]),
    "MODEL.PATHFINDER.FOCAL_GAMMA": SMALL,
    "MODEL.PATHFINDER.SUPERVISE_ALL_STEPS": st.booleans(),
    "INPUT.PATHFINDER_SIZE": st.integers(1, 20),
    "INPUT.PATHFINDER_THRESHOLD": SMALL,
    "SOLVER.OPTIMIZER": st.sampled_from(["SGD", "Adam", "AdamW"]),
    "SOLVER.LR_FACTORS": st.sampled_from([(("layer", 2.0), ("layer.cell", 0.0)), (("roi_heads.mask_head", 2.0),)]),
    "SOLVER.SKIP_NONFINITE": COUNT,
    "SOLVER.TRAIN_ONLY": st.sampled_from([("layer",), ("layer.cell", "readout"), ("roi_heads.mask_head",)]),
    "SOLVER.ACCUMULATE": COUNT,
    "SOLVER.AMP.DTYPE": st.sampled_from(["bfloat16", "float16"]),
    "MODEL.ALLOW_MISSING_WEIGHTS": st.booleans(),
    "TEST.LOG_IMAGES": COUNT,
    "TEST.PQ_WORKERS": COUNT,
}
# wrong types, signs, sizes and words
ODD = st.one_of(
    st.sampled_from([None, True, "", "unknown", "Hgru", [], [1], (), {}, {"a": 1}, b"x", -1, 0, -0.5, 2.5, 1e308]),
    st.sampled_from([10**9, 2**70, -(10**9), math.nan, math.inf, -math.inf, 10**9 + 1, "1e999", "[", "-"]),
    st.text(max_size=4),
)
MASK_HEAD = ["MODEL.RECURRENT.NORM_GROUPS", 8, "MODEL.ROI_MASK_HEAD.CONV_DIM", 4, "MODEL.ROI_HEADS.NUM_CLASSES", 2]
PATHFINDER = ["MODEL.META_ARCHITECTURE", "PathfinderNet", "MODEL.PATHFINDER.CHANNELS", 3, "INPUT.PATHFINDER_SIZE", 16]
PATHFINDER += ["DATASETS.TRAIN", ("properties_train",), "SOLVER.IMS_PER_BATCH", 2, "SOLVER.MAX_ITER", 1]
PATHFINDER += ["DATALOADER.ASPECT_RATIO_GROUPING", False, "DATALOADER.NUM_WORKERS", 0, "SOLVER.BASE_LR", 1e-3]
SHARED = ["MODEL.RECURRENT.STEPS", 2, "MODEL.RECURRENT.NEUMANN_TERMS", 2, "MODEL.RECURRENT.KERNEL_SIZE", 3]
SHARED += ["MODEL.DEVICE", "cpu", "MODEL.WEIGHTS", ""]


def test_every_key_has_a_strategy():
    assert LIKELY.keys() == flatten(get_cfg()).keys() - flatten(detectron2_cfg()).keys()


def train_pathfinder(overrides: list, folder) -> None:
    cfg = load_cfg("", [*SHARED, *PATHFINDER, "OUTPUT_DIR", str(folder), *overrides])
    Trainer(cfg).train()


def train_mask_head(overrides: list, folder) -> None:
    cfg = load_cfg("", [*SHARED, *MASK_HEAD, "MODEL.RECURRENT.LIPSCHITZ.WEIGHT", 1.0, *overrides])
    head = HGRUMaskHead(cfg, ShapeSpec(channels=32, height=14, width=14))
    TrainStep(Wrapped(head, count=lambda _: 2), [0], torch.optim.SGD(head.parameters(), lr=1e-3)).train(0, 1)


def check(train, overrides: dict, folder, capsys) -> None:
    """One step, or one line that names one of the overridden keys, or the loss that is not finite."""
    capsys.readouterr()
    try:
        with one_line_errors():
            train([word for pair in overrides.items() for word in pair], folder)
    except SystemExit as end:
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
        named = [key for key in overrides if key.rpartition(".")[2] in line]
        assert named if end.code == 2 else end.code == 3 and "not finite: " in line, line


@pytest.fixture(scope="module", autouse=True)
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("properties")
    generator = np.random.default_rng(0)
    for kind in ("imgs", "seg"):
        (folder / kind / "0").mkdir(parents=True)
        for i in range(3):
            picture = generator.integers(0, 2, (16, 16), dtype=np.uint8) * 255
            Image.fromarray(picture).save(folder / kind / "0" / f"sample_{i}.png")
    register_pathfinder("properties_train", str(folder))
    yield
    DatasetCatalog.remove("properties_train")
    MetadataCatalog.pop("properties_train")


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """No writers of logs, no checkpoints: two thirds of the time of a run of one step."""
    monkeypatch.setattr(Trainer, "build_writers", lambda self: [])
    monkeypatch.setattr("rfpn.engine.checkpoint.Checkpointer.save", lambda *_, **__: None)


ONCE = {"deadline": None, "derandomize": True, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@pytest.mark.parametrize("key", LIKELY)
def test_any_value_of_a_key_trains_or_is_named(key, tmp_path, capsys):
    @settings(max_examples=10, **ONCE)
    @given(value=st.one_of(LIKELY[key], ODD))
    def one_value(value):
        check(train_pathfinder, {key: value}, tmp_path, capsys)
        if key.startswith("MODEL.RECURRENT."):
            check(train_mask_head, {key: value}, tmp_path, capsys)

    one_value()


@settings(max_examples=40, **ONCE)
@given(data=st.data())
def test_keys_together_train_or_one_is_named(tmp_path, capsys, data):
    keys = data.draw(st.lists(st.sampled_from(sorted(LIKELY)), min_size=2, max_size=6, unique=True))
    overrides = {key: data.draw(LIKELY[key], label=key) for key in keys}
    train = data.draw(st.sampled_from([train_pathfinder, train_mask_head]))
    check(train, overrides, tmp_path, capsys)
