"""Configurations are checked as they are read."""

from pathlib import Path

import pytest
import torch

from rfpn.engine.setup import changed_keys, check_expected_results, load_cfg, make_output_dir

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(
    "content, words",
    [
        ("MODEL: {RECURRENT: {STEPS: .nan}}", "MODEL.RECURRENT.STEPS"),
        ("MODEL: {RECURRENT: {STEPS: null}}", "MODEL.RECURRENT.STEPS must not be None"),
        ("MODEL: {RECURRENT: {STEPS: [3]}}", "MODEL.RECURRENT.STEPS"),
        ("MODEL: {RECURRENT: 3}", "MODEL.RECURRENT|no configuration"),
        ("MODEL: {RECURRENT: {STEPS: 3", "no configuration"),
        ("- a list", "no configuration"),
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


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["MODEL.MASK_ON", "False"], "MODEL.MASK_ON must be True"),
        (["MODEL.PIXEL_MEAN", "[1.0, 2.0]"], "MODEL.PIXEL_MEAN must have 3 value.s. with INPUT.FORMAT BGR"),
        (["INPUT.FORMAT", "L"], "MODEL.PIXEL_MEAN must have 1 value.s. with INPUT.FORMAT L"),
        (["TEST.AUG.ENABLED", "True"], "TEST.AUG.ENABLED must be False"),
        (["MODEL.PIXEL_STD", "[1.0]"], "MODEL.PIXEL_STD must have 3 value"),
    ],
)
def test_keys_that_cannot_go_together_are_named(overrides, words):
    config = CONFIGS / "COCO-PanopticSegmentation" / "rfpn_R_50_1x.yaml"
    with pytest.raises(ValueError, match=words):
        load_cfg(str(config), overrides)


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


def test_an_odd_number_of_overrides_is_an_error():
    with pytest.raises(KeyError, match="override"):
        load_cfg("", ["MODEL.WEIGHTS"])


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


def test_paths_in_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    cfg = load_cfg("", ["OUTPUT_DIR", "~/runs/ü 1", "MODEL.WEIGHTS", "~/a.pth"])
    make_output_dir(cfg)
    assert (tmp_path / "runs" / "ü 1").is_dir()
    assert cfg.MODEL.WEIGHTS == str(tmp_path / "a.pth")


@pytest.mark.parametrize("path", ["", "{file}", "{file}/run", "/proc/run"])
def test_an_output_dir_that_cannot_be_made_is_named(path, tmp_path):
    (tmp_path / "file").touch()
    cfg = load_cfg("", ["OUTPUT_DIR", path.format(file=tmp_path / "file")])
    with pytest.raises((OSError, ValueError), match="OUTPUT_DIR"):
        make_output_dir(cfg)


@pytest.mark.parametrize(
    "sets, expected", [(1, [["panoptic_seg", 50.0]]), (1, ["PQ"]), (2, [["panoptic_seg", "PQ", 50.0, 1.0]])]
)
def test_expected_results_that_cannot_be_compared_are_refused(sets, expected):
    cfg = load_cfg("", ["DATASETS.TEST", ("one", "two")[:sets], "TEST.EXPECTED_RESULTS", expected])
    with pytest.raises(ValueError, match="TEST.EXPECTED_RESULTS"):
        check_expected_results(cfg)


def test_settings_that_a_resumed_run_did_not_have_are_named(tmp_path):
    def read(*overrides):
        config = str(CONFIGS / "quick_schedules" / "pathfinder_quick.yaml")
        return load_cfg(config, ["OUTPUT_DIR", str(tmp_path), *map(str, overrides)])

    config = tmp_path / "config.yaml"
    config.write_text(read().dump())
    other = ["MODEL.RECURRENT.STEPS", 6, "MODEL.RECURRENT.LIPSCHITZ.WEIGHT", 0.0, "DATASETS.TRAIN", "('pathfinder_9_train',)"]
    free = ["SOLVER.MAX_ITER", 9, "MODEL.WEIGHTS", "a.pth", "MODEL.RECURRENT.TEST_STEPS", 3, "DATASETS.TEST", "()"]
    assert changed_keys(read(*other)) == []  # no checkpoint: no run to go on with
    (tmp_path / "last_checkpoint").write_text("model_0000001.pth")
    assert changed_keys(read(*free)) == []
    assert sorted(changed_keys(read(*free, *other))) == [
        "DATASETS.TRAIN ['pathfinder_6_train'] -> ['pathfinder_9_train']",
        "MODEL.RECURRENT.LIPSCHITZ.WEIGHT 1.0 -> 0.0",
        "MODEL.RECURRENT.STEPS 4 -> 6",
    ]
    # of an older version, damaged
    config.write_text("MODEL: {RECURRENT: {STEPS: 5}}")
    assert changed_keys(read()) == ["MODEL.RECURRENT.STEPS 5 -> 4"]
    for content in ("", "[1", "words"):
        config.write_text(content)
        assert changed_keys(read()) == []
