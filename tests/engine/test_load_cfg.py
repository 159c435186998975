"""Configurations are checked as they are read."""

import logging
from types import SimpleNamespace

import pytest
import torch

from rfpn.engine.setup import _say_no_gpu, check_weights, load_cfg, setup


@pytest.mark.parametrize(
    "content, words",
    [
        ("MODEL: {RECURRENT: {STEPS: .nan}}", "MODEL.RECURRENT.STEPS"),
        ("MODEL: {RECURRENT: {STEPS: null}}", "MODEL.RECURRENT.STEPS must not be None"),
        ("MODEL: {RECURRENT: {STEPS: [3]}}", "MODEL.RECURRENT.STEPS"),
        ("MODEL: {RECURRENT: 3}", "MODEL.RECURRENT|no configuration"),
        ("MODEL: {RECURRENT: {STEPS: 3", "no configuration"),
        ("- a list", "no configuration"),
        ("# nothing", "is empty"),
        ("just words", "no configuration"),
        ("\0", "no configuration"),
        ("_BASE_: [1]", "no configuration"),
        ("_BASE_: broken.yaml", "no configuration"),
        ("OUTPUT_DIR: \udcfc", "no configuration"),
    ],
)
def test_a_broken_file_is_named(tmp_path, content, words):
    path = tmp_path / "broken.yaml"
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(ValueError, match=words):
        load_cfg(str(path), [])


@pytest.mark.parametrize("base", ["", "_BASE_"])
def test_python_in_a_file_is_refused_and_does_not_run(tmp_path, base):
    path, trace = tmp_path / "foreign.yaml", tmp_path / "trace"
    path.write_text(f"SEED: !!python/object/apply:os.system ['touch {trace}']")
    if base:
        path = tmp_path / "on_top.yaml"
        path.write_text("_BASE_: foreign.yaml")
    with pytest.raises(ValueError, match=f"{path} is no configuration: .*python/object"):
        load_cfg(str(path), [])
    assert not trace.exists()


def test_a_folder_in_the_place_of_a_file_is_named_as_such(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"--config-file {tmp_path} is a folder, no file"):
        load_cfg(str(tmp_path), [])
    with pytest.raises(FileNotFoundError, match=f"MODEL.WEIGHTS {tmp_path} is a folder, no file"):
        check_weights(load_cfg("", ["MODEL.WEIGHTS", str(tmp_path)]))
    with pytest.raises(FileNotFoundError, match=f"--config-file {tmp_path}/a.py does not exist"):
        load_cfg(str(tmp_path / "a.py"), [])


def test_weights_that_cannot_be_fetched_say_what_to_give_instead():
    address = "http://127.0.0.1:9/a.pkl"
    with pytest.raises(FileNotFoundError, match=f"MODEL.WEIGHTS {address} could not be fetched .*: give the path"):
        check_weights(load_cfg("", ["MODEL.WEIGHTS", address]))


def test_lazy_configurations_are_not_read(tmp_path):
    path = tmp_path / "lazy.py"
    path.write_text("model = dict(depth=50)")
    with pytest.raises(ValueError, match=f"--config-file {path} is a lazy configuration, which is not supported; .* YAML"):
        load_cfg(str(path), [])


def test_no_config_file_is_the_reason_that_there_is_no_data_set(tmp_path):
    args = SimpleNamespace(config_file="", opts=["OUTPUT_DIR", str(tmp_path / "run")], resume=False, eval_only=False)
    with pytest.raises(ValueError, match="DATASETS.TRAIN names no data set; give --config-file"):
        setup(args)
    assert not (tmp_path / "run").exists()


def test_a_key_of_another_version_is_named_with_its_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("MODEL: {RECURRENT: {FORMER: 1}}")
    with pytest.raises(KeyError, match=f"--config-file {path}: Non-existent config key: MODEL.RECURRENT.FORMER"):
        load_cfg(str(path), [])


@pytest.mark.parametrize("base", [False, True])
def test_a_section_written_twice_is_named(tmp_path, base):
    """YAML lets the last one count alone."""
    path = tmp_path / "config.yaml"
    path.write_text("MODEL:\n  RECURRENT:\n    STEPS: 7\nSEED: 1\nMODEL:\n  WEIGHTS: ''\n")
    if base:
        (tmp_path / "above.yaml").write_text("_BASE_: config.yaml\n")
    with pytest.raises(ValueError, match=f"{path}: MODEL is written again in line 5"):
        load_cfg(str(tmp_path / "above.yaml" if base else path), [])


@pytest.mark.parametrize("text", ["SOLVER: &x\n  MAX_ITER: 5\n  FOO: *x\n", "_BASE_: [twice.yaml]\n"])
def test_aliases_that_lead_back_and_lists_of_bases(tmp_path, text):
    (tmp_path / "twice.yaml").write_text("SEED: 1\nSEED: 2\n")
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match="no configuration|twice.yaml: SEED is written again in line 2"):
        load_cfg(str(tmp_path / "config.yaml"), [])


@pytest.mark.parametrize("asserts", [True, False])
@pytest.mark.parametrize(
    "overrides, words",
    [
        (["MODEL.RECURENT.STEPS", "3"], "Non-existent key: MODEL.RECURENT.STEPS"),
        (["MODEL.RECURRENT.STEPS.X", "3"], "Non-existent key: MODEL.RECURRENT.STEPS.X"),
        (["MODEL.DEVICE.c", "3"], "Non-existent key: MODEL.DEVICE.c"),
        (["_BASE_", "x.yaml"], "Non-existent key: _BASE_"),
        (["SEED", "1", "MODEL.WEIGHTS"], "MODEL.WEIGHTS has no value"),
        (["SOLVER.MAX_ITER", "SEED", "1"], "SOLVER.MAX_ITER has no value"),
    ],
)
def test_unknown_keys_and_those_without_a_value_are_named_under_python_O_too(monkeypatch, asserts, overrides, words):
    if not asserts:
        monkeypatch.setattr("yacs.config._assert_with_logging", lambda *_: None)
    with pytest.raises(KeyError, match=f"command-line override: {words}"):
        load_cfg("", overrides)


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["SEED=1"], "write SEED 1, without ="),
        (["SOLVER.MAX_ITER=3", "SEED=1"], "write SOLVER.MAX_ITER 3, without ="),
        (["DATASETS.TRAIN", "scenes_panoptic_train"], r"a tuple is written .*\('one',\)"),
    ],
)
def test_overrides_in_other_ways_of_writing_are_told_of(overrides, words):
    with pytest.raises((KeyError, ValueError), match=f"command-line override: .*{words}"):
        load_cfg("", overrides)


def test_an_option_after_the_overrides_is_told_of():
    with pytest.raises(KeyError, match="--output must come before all overrides"):
        load_cfg("", ["SEED", "1", "--output", "folder"])


@pytest.mark.parametrize(
    "key, value",
    [
        ("SOLVER.MAX_ITER", 0),
        ("SOLVER.MAX_ITER", -5),
        ("SOLVER.CHECKPOINT_PERIOD", 0),
        ("SOLVER.CHECKPOINT_PERIOD", -1),
        ("SOLVER.BASE_LR", -0.1),
        ("DATALOADER.NUM_WORKERS", -1),
        ("MODEL.DEVICE", "gpu"),
        ("MODEL.DEVICE", ""),
    ],
)
def test_values_that_detectron2_stumbles_over_are_named(key, value):
    with pytest.raises(ValueError, match=f"{key} must be"):
        load_cfg("", [key, value])


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert load_cfg("", ["MODEL.DEVICE", "cuda:0"]).MODEL.DEVICE == "cuda:0"
    with pytest.raises(ValueError, match="MODEL.DEVICE is cuda:1, but this machine has 1 GPUs"):
        load_cfg("", ["MODEL.DEVICE", "cuda:1"])


def test_that_there_is_no_gpu_is_said_once(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(logging.getLogger("rfpn"), "propagate", True)
    _say_no_gpu.cache_clear()
    with caplog.at_level(logging.WARNING, logger="rfpn"):
        assert [load_cfg("", []).MODEL.DEVICE for _ in range(2)] == ["cpu", "cpu"]
    assert caplog.text.count("no GPU found") == 1
