"""The program that renames a released checkpoint, on a model with the released names made from its own weights."""

import argparse
import io

import convert_checkpoint
import numpy as np
import pytest
import torch

from rfpn.engine.checkpoint import Checkpointer, check_complete
from rfpn.layers.released import _GALA_HGRU
from tests.analysis.tiny_runs import SCENES, build

HEAD = "roi_heads.mask_head."
CELL = HEAD + "recurrent.cell."


@pytest.fixture(scope="module")
def weights():
    """The model's own state dict, and the same in the released names."""
    own = build(SCENES)[1].state_dict()
    released = {name: value for name, value in own.items() if not name.startswith(CELL)}
    for name in [name for name in released if name.startswith(HEAD + "norm.")]:
        released[name.replace("norm.", "horizontal_norm.")] = released.pop(name)
    for theirs, ours in _GALA_HGRU.items():
        for copy in ("recurrent.", "mask_fcn_rnn."):
            released[HEAD + copy + theirs] = own[CELL + ours]
    return own, released


def run(source, target, *overrides):
    options = {"config_file": str(SCENES), "input": str(source), "output": str(target), "opts": list(overrides)}
    convert_checkpoint.convert(argparse.Namespace(**options))


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("kind", ["model", "state_dict", "bare", "npz"])
def test_a_released_checkpoint_becomes_the_models_own(weights, tmp_path, kind, prefix):
    own, released = weights
    content = {prefix + name: value for name, value in released.items()}
    source, target = tmp_path / f"released.{'npz' if kind == 'npz' else 'pth'}", tmp_path / "new" / "converted.pth"
    if kind == "npz":
        np.savez(source, x=np.zeros(3), **{f"state_dict/{name}": value.numpy() for name, value in content.items()})
    else:
        torch.save(content if kind == "bare" else {kind: content, "iteration": 5}, source)
    run(source, target)
    converted = torch.load(target, weights_only=True)["model"]
    assert converted.keys() == own.keys()
    assert all(torch.equal(converted[name], own[name]) for name in own)
    checkpointer = Checkpointer(build(SCENES)[1])
    checkpointer.load(str(target))
    assert not any(checkpointer.incompatible)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_released_checkpoint_given_as_weights_says_what_converts_it(weights, tmp_path, caplog, prefix):
    """Training would start with a random mask head."""
    path = tmp_path / "released.pth"
    torch.save({prefix + name: value for name, value in weights[1].items()}, path)
    checkpointer = Checkpointer(build(SCENES)[1])
    with caplog.at_level("WARNING", logger="rfpn"):
        checkpointer.load(str(path))
    assert "the mask head is not loaded: " in caplog.text and "tools/convert_checkpoint.py rewrites" in caplog.text
    with pytest.raises(ValueError, match="missing .*released code, which tools/convert_checkpoint.py rewrites"):
        check_complete(checkpointer, allow_missing=False)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda s: [1], "source.pth holds a list"),
        (lambda s: {"a": "text"}, "source.pth holds 'a', a str"),
        (lambda s: {"a": torch.zeros(1)}, "source.pth names no released recurrent mask head"),
        (lambda s: {n: v for n, v in s.items() if not n.endswith("u1_gate.bias")}, r"missing \['u1_gate.bias'\]"),
        (lambda s: {**s, HEAD + "extra": torch.zeros(1)}, "unknown tensor extra"),
        (lambda s: {n: torch.cat([v, v]) if n.endswith(".mu") else v for n, v in s.items()}, "source.pth: .* mu of shape .64"),
        (lambda s: {**s, HEAD + "deconv.bias": torch.zeros(7)}, "source.pth: shapes do not fit.*deconv.bias"),
    ],
)
def test_what_cannot_be_converted_is_named(weights, tmp_path, change, words):
    torch.save(change(weights[1]), tmp_path / "source.pth")
    with pytest.raises((ValueError, KeyError), match=words):
        run(tmp_path / "source.pth", tmp_path / "converted.pth")
    assert not (tmp_path / "converted.pth").exists()


def written(write, *content, **arrays) -> bytes:
    file = io.BytesIO()
    write(file, *content, **arrays)
    return file.getvalue()


ARCHIVE = written(np.savez_compressed, a=np.arange(1000.0))
MIDDLE = len(ARCHIVE) // 2
DAMAGED = {
    "no archive": b"no archive",
    "empty": b"",
    "cut": ARCHIVE[:MIDDLE],
    "overwritten": ARCHIVE[:MIDDLE] + b"\xff" * 64 + ARCHIVE[MIDDLE + 64 :],
    "a single array": written(np.save, np.zeros(3)),
    "objects": written(np.savez, a=np.array([{}])),
    "a .pth": written(lambda file: torch.save({"a": torch.zeros(1)}, file)),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_file_that_is_no_archive_is_named(tmp_path, content):
    (tmp_path / "source.npz").write_bytes(content)
    with pytest.raises(ValueError, match="source.npz (cannot be read as|is no) .npz archive"):
        run(tmp_path / "source.npz", tmp_path / "converted.pth")


def test_arrays_of_text_are_named(tmp_path):
    np.savez(tmp_path / "source.npz", a=np.array(["text"]))
    with pytest.raises(ValueError, match="source.npz holds what is no tensor"):
        run(tmp_path / "source.npz", tmp_path / "converted.pth")


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda state: state.pop(HEAD + "deconv.bias"), f"1 are the configured model's alone ({HEAD}deconv.bias)"),
        (lambda state: state.update({HEAD + "deconv.foo": torch.zeros(1)}), f"1 it does not know ({HEAD}deconv.foo)"),
    ],
)
def test_what_a_head_lacks_or_has_too_much_is_named(weights, tmp_path, capsys, change, words):
    state = dict(weights[1])
    change(state)
    torch.save(state, tmp_path / "released.pth")
    run(tmp_path / "released.pth", tmp_path / "new.pth")
    assert words in capsys.readouterr().out


def test_copies_of_the_cell_that_differ_are_named(weights, tmp_path):
    state = {**weights[1], HEAD + "mask_fcn_rnn.alpha": torch.zeros(1)}
    torch.save(state, tmp_path / "released.pth")
    with pytest.raises(ValueError, match="released.pth: released mask head: its two copies of the cell differ in alpha$"):
        run(tmp_path / "released.pth", tmp_path / "new.pth")
