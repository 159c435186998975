"""Checkpoints: atomic, safe to read, summed up; model-zoo files load all but the mask head."""

import collections
import logging
import os
import pickle
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from detectron2.checkpoint import DetectionCheckpointer
from detectron2.modeling import build_model
from torch import nn

from rfpn.engine.checkpoint import Checkpointer, check_complete, load_for_evaluation, name_full_disk, read_checkpoint
from rfpn.engine.safe_pickle import load_arrays
from rfpn.engine.setup import load_cfg


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def model(width: int = 3) -> nn.Module:
    torch.manual_seed(0)
    layers = {"first": nn.Linear(2, width), "second": nn.Linear(width, 1), "roi_heads": nn.Identity()}
    return nn.Sequential(collections.OrderedDict(layers))


def test_a_checkpoint_round_trips_with_weights_only(tmp_path):
    source = model()
    Checkpointer(source, str(tmp_path)).save("model_1", iteration=7)
    loaded = torch.load(tmp_path / "model_1.pth", weights_only=True)
    assert loaded["iteration"] == 7 and loaded["model"].keys() == source.state_dict().keys()
    assert (tmp_path / "last_checkpoint").read_text() == "model_1.pth"
    assert sorted(os.listdir(tmp_path)) == ["last_checkpoint", "model_1.pth"]


def test_a_checkpoint_and_its_tag_are_on_the_disk_before_they_take_their_names(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *arguments, name=name, real=real: calls.append(name) or real(*arguments))
    Checkpointer(model(), str(tmp_path)).save("model")
    assert calls == ["fsync", "replace"] * 2


def test_a_failed_write_keeps_the_previous_checkpoint(tmp_path, monkeypatch):
    checkpointer = Checkpointer(model(), str(tmp_path))
    checkpointer.save("model")
    before = (tmp_path / "model.pth").read_bytes()

    def fail(data, file):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="No space left"):
        checkpointer.save("model")
    assert (tmp_path / "model.pth").read_bytes() == before
    assert (tmp_path / "last_checkpoint").read_text() == "model.pth"


def test_unfinished_files_of_other_programs_stay(tmp_path):
    ours, theirs = ["model_0000001.partial.pth", "last_checkpoint.partial"], ["set.zip.partial", "notes.partial.txt"]
    for name in ours + theirs:
        (tmp_path / name).touch()
    (tmp_path / "folder.partial").mkdir()
    Checkpointer(torch.nn.Linear(1, 1), str(tmp_path)).remove_partial()
    assert {path.name for path in tmp_path.iterdir()} == {*theirs, "folder.partial"}


@pytest.mark.parametrize("content", [{}, {"model": {}}])
def test_a_file_without_weights_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "none.pth")
    with pytest.raises(ValueError, match="none.pth holds no weights at all"):
        Checkpointer(model(), str(tmp_path)).load(str(tmp_path / "none.pth"))


@pytest.mark.parametrize("damaged", [True, False])
def test_a_last_checkpoint_that_is_of_no_use_names_another_and_the_way_to_it(tmp_path, damaged):
    checkpointer = Checkpointer(model(), str(tmp_path))
    for name in ("model_0000009", "model_0000019", "model_0000029"):
        checkpointer.save(name)
    last = tmp_path / "model_0000029.pth"
    # as a run leaves them that was started anew
    for age, file in enumerate(sorted(tmp_path.glob("model_*.pth"), reverse=True)):
        os.utime(file, (age, age))
    (tmp_path / "model_0000039.partial.pth").touch()
    last.write_bytes(last.read_bytes()[:300]) if damaged else last.unlink()
    found = rf"{last} (is damaged|does not exist).*; to continue .* such as model_0000009.pth, into {tmp_path}/last_checkpoint$"
    with pytest.raises((ValueError, OSError), match=found):
        checkpointer.resume_or_load("", resume=True)
    # as MODEL.WEIGHTS it is a file like any other
    with pytest.raises((ValueError, OSError), match=rf"{last} (is damaged|does not exist)(?!.*last_checkpoint)"):
        checkpointer.resume_or_load(str(last), resume=False)
    (tmp_path / "last_checkpoint").write_text("model_0000019.pth")
    checkpointer.resume_or_load("", resume=True)


def test_a_damaged_checkpoint_that_is_the_only_one_says_so(tmp_path):
    checkpointer = Checkpointer(model(), str(tmp_path))
    checkpointer.save("model_final")
    (tmp_path / "model_final.pth").write_bytes(b"PK")
    with pytest.raises(ValueError, match=f"no other checkpoint is in {tmp_path}: start anew, without --resume"):
        checkpointer.resume_or_load("", resume=True)


def test_an_empty_tag_names_its_folder_and_the_remedy(tmp_path):
    checkpointer = Checkpointer(model(), str(tmp_path))
    checkpointer.save("model")
    (tmp_path / "last_checkpoint").write_text("")
    with pytest.raises(FileNotFoundError, match=f"{tmp_path} is a folder: name a file of it in .* last_checkpoint"):
        checkpointer.resume_or_load("", resume=True)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_zoo_pickle_of_arrays_loads(tmp_path, protocol):
    path = tmp_path / "zoo.pkl"
    content = {"model": {"w": np.arange(6.0).reshape(2, 3), "n": np.float32(2)}, "__author__": "someone"}
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    loaded = load_arrays(str(path))
    np.testing.assert_array_equal(loaded["model"]["w"], content["model"]["w"])
    assert loaded["model"]["n"] == 2


@pytest.mark.parametrize(
    "name, content",
    [
        ("caffe2.pkl", {"blobs": {"conv1_w": np.ones((2, 3)), "conv1_w_momentum": np.ones((2, 3))}}),
        ("bare.pkl", {"conv1_w": np.ones((2, 3)), "conv1_w_momentum": np.ones((2, 3))}),
        ("zoo.pkl", {"model": {"w": np.ones(2)}, "__author__": "someone", "matching_heuristics": True}),
        ("pycls.pyth", {"model_state": {"norm.weight": torch.ones(2), "norm.num_batches_tracked": torch.tensor(3)}}),
    ],
)
def test_files_of_other_makers_give_what_detectron2_reads(tmp_path, name, content):
    path = tmp_path / name
    torch.save(content, path) if path.suffix == ".pyth" else path.write_bytes(pickle.dumps(content))
    ours, theirs = read_checkpoint(str(path)), DetectionCheckpointer(model())._load_file(str(path))
    assert ours.keys() == theirs.keys() and ours["model"].keys() == theirs["model"].keys()
    assert all(ours[key] == theirs[key] for key in ours.keys() - {"model"})
    assert all((ours["model"][key] == value).all() for key, value in theirs["model"].items())


@pytest.mark.parametrize("suffix", [".pkl", ".pth"])
def test_a_malicious_file_is_refused_by_name_and_does_not_run(tmp_path, suffix):
    trace = tmp_path / "trace"
    path = tmp_path / f"model{suffix}"
    content = {"model": Malicious(trace)}
    if suffix == ".pkl":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path)
    with pytest.raises(ValueError, match=f"model{suffix} is refused"):
        Checkpointer(model()).load(str(path))
    assert not trace.exists()


def test_a_damaged_pickle_is_named(tmp_path):
    path = tmp_path / "cut.pkl"
    path.write_bytes(pickle.dumps({"model": {"w": np.zeros(1000)}})[:500])
    with pytest.raises(ValueError, match="cut.pkl"):
        load_arrays(str(path))


def test_D3_a_pth_of_numpy_arrays_loads_in_safe_mode(tmp_path):
    target = model()
    arrays = {name: value.numpy() + 1 for name, value in target.state_dict().items()}
    torch.save({"model": arrays}, tmp_path / "old.pth")
    Checkpointer(target).load(str(tmp_path / "old.pth"))
    for name, value in target.state_dict().items():
        np.testing.assert_allclose(value.numpy(), arrays[name])


def test_D1_one_line_says_what_was_loaded(tmp_path, caplog):
    state = model().state_dict()
    state["third.weight"] = state.pop("second.bias")
    torch.save({"model": state}, tmp_path / "other.pth")
    target = Checkpointer(model(width=4))
    with caplog.at_level(logging.INFO, logger="rfpn"):
        target.load(str(tmp_path / "other.pth"))
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("weights:")]
    assert "loaded 0 of 4 tensors" in line
    assert "missing 1 (second.bias)" in line
    assert "unexpected 1 (third.weight)" in line
    assert "wrong shape 3 (first.weight (3, 2) for (4, 2)" in line
    with pytest.raises(ValueError, match="missing 4"):
        check_complete(target, allow_missing=False)
    check_complete(target, allow_missing=True)


def test_D1_the_numbers_of_the_line_add_up(tmp_path, caplog):
    """Torch fills in a norm's counter by itself, and does not count it as missing; Detectron2 forgets old files' anchors."""
    target = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    state = {name: value for name, value in target.state_dict().items() if name not in ("0.bias", "1.num_batches_tracked")}
    state["anchor_generator.cell_anchors.0"] = torch.ones(1)
    torch.save({"model": state}, tmp_path / "older.pth")
    with caplog.at_level(logging.INFO, logger="rfpn"):
        Checkpointer(target).load(str(tmp_path / "older.pth"))
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("weights:")]
    assert line == (
        "weights: loaded 5 of 7 tensors; missing 1 (0.bias); unexpected 0; wrong shape 0; "
        "absent but not needed 1 (1.num_batches_tracked)"
    )


@pytest.mark.parametrize(
    "name, refused",
    # a layer's, those of heads that this model does without, what frozen norms do not count
    [("first.gain", True), ("first.2.weight", True), ("third.weight", False), ("roi_heads.mask_head.weight", False)]
    + [("first.num_batches_tracked", False)],
)
def test_D1_a_part_of_a_larger_model_is_not_evaluated(tmp_path, name, refused):
    """Nothing of this one is missing in its file."""
    cfg = load_cfg("", ["OUTPUT_DIR", str(tmp_path), "MODEL.WEIGHTS", str(tmp_path / "larger.pth")])
    torch.save({"model": {**model().state_dict(), name: torch.ones(1)}}, cfg.MODEL.WEIGHTS)
    words = f"unexpected 1 .{name}. in parts of this model: .* MODEL.RECURRENT.FORM"
    with pytest.raises(ValueError, match=words) if refused else nullcontext():
        load_for_evaluation(model(), cfg)
    cfg.MODEL.ALLOW_MISSING_WEIGHTS = True
    load_for_evaluation(model(), cfg)


def test_D1_a_panoptic_fpn_checkpoint_fills_all_of_rfpn_but_the_mask_head(tmp_path):
    configs = Path(__file__).parents[2] / "configs" / "COCO-PanopticSegmentation"
    common = ["MODEL.WEIGHTS", "", "MODEL.DEVICE", "cpu"]
    fpn = build_model(load_cfg(str(configs / "panoptic_fpn_R_50_1x.yaml"), common))
    arrays = {name: value.numpy() for name, value in fpn.state_dict().items()}
    path = tmp_path / "zoo.pkl"
    path.write_bytes(pickle.dumps({"model": arrays, "__author__": "Detectron2 Model Zoo"}))
    checkpointer = Checkpointer(build_model(load_cfg(str(configs / "rfpn_R_50_1x.yaml"), common)))
    checkpointer.load(str(path))
    missing, unexpected, misshapen = checkpointer.incompatible
    assert not misshapen
    assert missing and all(name.startswith("roi_heads.mask_head.") for name in missing)
    assert unexpected and all(name.startswith("roi_heads.mask_head.mask_fcn") for name in unexpected)


@pytest.mark.parametrize("wrap", [dict, lambda s: {"state_dict": s, "epoch": 3}, lambda s: {"model": s, "ema_state": s}])
@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("zipped", [True, False])
def test_weights_are_found_in_files_of_other_programs(tmp_path, wrap, prefix, zipped):
    state = {prefix + name: value + 1 for name, value in model().state_dict().items()}
    torch.save(wrap(state), tmp_path / "other.pth", _use_new_zipfile_serialization=zipped)
    target = model()
    Checkpointer(target).load(str(tmp_path / "other.pth"))
    for name, value in target.state_dict().items():
        assert torch.equal(value, state[prefix + name])


@pytest.mark.parametrize(
    "content, words",
    [
        ([1, 2], "a list, not weights by name"),
        ({"model": [1]}, "no weights by name"),
        ({"ema": {"first.weight": torch.zeros(1)}}, "'ema', a dict, where weights by name are expected"),
        ({"model": {1: torch.zeros(1)}}, "1, a Tensor, where weights by name are expected"),
        ({"model": {"first.weight": "zeros"}}, "'first.weight', a str, where weights by name are expected"),
    ],
)
def test_a_file_without_weights_by_name_is_named(tmp_path, content, words):
    path = tmp_path / "other.pth"
    torch.save(content, path)
    with pytest.raises(ValueError, match=f"{path} holds {words}"):
        Checkpointer(model()).load(str(path))


def test_evaluation_refuses_weights_that_are_not_finite_or_not_given(tmp_path):
    cfg = load_cfg("", ["OUTPUT_DIR", str(tmp_path), "MODEL.WEIGHTS", str(tmp_path / "nan.pth")])
    state = model().state_dict()
    torch.save({"model": {**state, "first.bias": state["first.bias"] * float("nan")}}, cfg.MODEL.WEIGHTS)
    with pytest.raises(ValueError, match=r"not finite 1 \(first.bias\) in MODEL.WEIGHTS"):
        load_for_evaluation(model(), cfg)
    cfg.MODEL.WEIGHTS = ""
    with pytest.raises(ValueError, match="MODEL.WEIGHTS names no file"):
        load_for_evaluation(model(), cfg)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "model."])
def test_D1_a_file_of_which_nothing_fits_is_refused(tmp_path, prefix):
    """Detectron2 takes constants out of those missing, so that counts looked as if some had been loaded."""
    path = tmp_path / "other.pth"
    torch.save({"model": {prefix + name: value for name, value in model().state_dict().items()}}, path)
    with pytest.raises(ValueError, match=rf"other.pth: none of its tensors .* such as {prefix}first.weight, here first.weight"):
        Checkpointer(model()).load(str(path))


def test_a_folder_that_was_removed_is_named(tmp_path):
    run = str(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match=f"OUTPUT_DIR {run} is gone"), name_full_disk(run):
        raise FileNotFoundError(2, "No such file or directory", f"{run}/events.out".encode())
    with pytest.raises(FileNotFoundError, match="elsewhere"), name_full_disk(run):
        raise FileNotFoundError(2, "No such file or directory", "elsewhere")
