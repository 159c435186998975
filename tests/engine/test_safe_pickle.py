"""Weights files of strangers: arrays load whatever wrote them, everything else is refused by name and does not run."""

import collections
import io
import os
import pickle
import struct
import subprocess
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rfpn.engine.safe_pickle import load_arrays, load_tensors

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
CONTENT = {
    "model": collections.OrderedDict(
        w=np.arange(6, dtype=np.float32).reshape(2, 3),
        fortran=np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        big_endian=np.arange(3, dtype=">i4"),
        half=np.arange(3, dtype=np.float16),
        flag=np.array([True, False]),
        empty=np.zeros((0, 3)),
        scalar=np.float32(2.5),
        zero_dimensional=np.array(7),
    ),
    "__author__": "someone",
    "nested": [1, (2.0, None, True), b"bytes", {"k": "v"}],
}


class Call:
    """Pickles as a call that would leave a trace."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def read(content: bytes, folder, name: str = "foreign.pkl"):
    path = folder / name
    path.write_bytes(content)
    return (load_arrays if name.endswith(".pkl") else load_tensors)(str(path))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_and_plain_containers_load(tmp_path, protocol):
    loaded = read(pickle.dumps(CONTENT, protocol=protocol), tmp_path)
    assert loaded["nested"] == CONTENT["nested"] and loaded["__author__"] == "someone"
    assert list(loaded["model"]) == list(CONTENT["model"])
    for name, value in CONTENT["model"].items():
        np.testing.assert_array_equal(loaded["model"][name], value)
        assert loaded["model"][name].dtype == value.dtype.newbyteorder("=") and type(loaded["model"][name]) is type(value)
    torch.from_numpy(loaded["model"]["w"]).add_(1)


def test_a_pickle_of_numpy_1_and_python_2_loads(tmp_path):
    content = (
        b"}S'w'\ncnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I2\ntcnumpy\ndtype\n"
        b"(S'f4'\nI0\nI1\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntbI00\nS'\\x00\\x00\\x80?\\x00\\x00\\x00@'\ntbs."
    )
    np.testing.assert_array_equal(read(content, tmp_path)["w"], np.array([1, 2], np.float32))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "hide",
    [
        lambda call: call,
        lambda call: {"model": {"w": [(call,)]}},
        lambda call: {call: 1},
        lambda call: np.array([call], dtype=object),
        lambda call: {"first": np.zeros(2), "then": call},
    ],
    ids=["alone", "nested", "key", "object array", "after arrays"],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda path: Call(os.system, f"touch {path}"),
        lambda path: Call(subprocess.Popen, ["touch", str(path)]),
        lambda path: Call(eval, f"open({str(path)!r}, 'w')"),
        lambda path: Call(open, str(path), "w"),
        lambda path: Call(os.makedirs, str(path)),
    ],
    ids=["system", "Popen", "eval", "open", "makedirs"],
)
def test_code_does_not_run_whatever_hides_it(tmp_path, protocol, hide, call):
    trace = tmp_path / "trace"
    with pytest.raises(ValueError, match="foreign.pkl is refused"):
        read(pickle.dumps(hide(call(trace)), protocol=protocol), tmp_path)
    assert not trace.exists()


@pytest.mark.parametrize("legacy", [False, True])
def test_code_in_a_checkpoint_of_torch_does_not_run(tmp_path, legacy):
    trace = tmp_path / "trace"
    content = {"model": {"w": torch.zeros(2)}, "trainer": {"hooks": [Call(os.system, f"touch {trace}")]}}
    torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(ValueError, match="a.pth is refused.*system"):
        load_tensors(str(tmp_path / "a.pth"))
    assert not trace.exists()


def test_a_zip_of_a_foreign_pickle_does_not_run(tmp_path):
    trace = tmp_path / "trace"
    with zipfile.ZipFile(tmp_path / "a.pth", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Call(os.system, f"touch {trace}"), protocol=2))
        archive.writestr("archive/version", "3\n")
    with pytest.raises(ValueError, match="a.pth"):
        load_tensors(str(tmp_path / "a.pth"))
    assert not trace.exists()


def test_what_could_be_called_is_refused(tmp_path):
    torch.save({"model": {}, "kind": collections.OrderedDict}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="a.pth is refused: .*a type"):
        load_tensors(str(tmp_path / "a.pth"))


def deep(levels: int) -> bytes:
    return b"]" * levels + b"a" * (levels - 1) + b"."


@pytest.mark.parametrize(
    "content, words",
    [
        (pickle.dumps(np.ndarray), "a function"),
        (pickle.dumps(np.dtype("f4")), "a dtype outside an array"),
        (pickle.dumps(np.array(["a", "b"])), "type 'U1', not of numbers"),
        (pickle.dumps(np.array([{"a": 1}])), "type 'O8', not of numbers"),
        (pickle.dumps({1, 2}), "a set"),
        (pickle.dumps(range(3)), "builtins.range"),
        # an object array over given bytes would make Python follow them as addresses
        (b"cnumpy\nndarray\n((I1\ntcnumpy\ndtype\n(S'O8'\ntRS'AAAAAAAA'\ntR.", "'O8', not of numbers"),
        (b"cnumpy\nndarray\n((I1000000000000\nttR.", "a call of numpy.ndarray"),
        (b"c_codecs\nencode\n(Vx\nVrot13\ntR.", "rot13"),
        (b"cnumpy\nndarray\n}S'__doc__'\nI1\nsb.", "the state of a function"),
        (deep(1000), "nested more than 50"),
        (b"Pid\n.", "persistent"),
    ],
)
def test_what_is_more_than_arrays_is_refused(tmp_path, content, words):
    with pytest.raises(ValueError, match=f"foreign.pkl is refused: .*{words}"):
        read(content, tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle at all",
        pickle.dumps(CONTENT)[:300],
        b"\x80\x04\x8e" + b"\xff" * 5 + b"\0\0\0abc.",  # a terabyte of bytes is announced
        b"\x80\x05\x96" + b"\xff" * 5 + b"\0\0\0abc.",
        b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f.",
        b"\x82\x01.",
        b"0.",
        b"cnumpy\ndtype\n(S'zz'\ntR.",
        pickle.dumps(np.zeros(4)).replace(b"\x8c\x02f8", b"\x8c\x02f4"),  # twice the bytes that its shape needs
    ],
)
def test_a_damaged_pickle_is_named(tmp_path, content):
    with pytest.raises(ValueError, match="foreign.pkl is (damaged|refused)"):
        read(content, tmp_path)


@pytest.mark.parametrize("opcode", [pickle.BINBYTES8, pickle.BYTEARRAY8, pickle.BINUNICODE8])
def test_lengths_in_a_damaged_pickle_ask_for_no_memory(tmp_path, opcode):
    """A machine that gives it would end the process once it is filled."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="is (damaged|refused)"):
            read(b"\x80\x05" + opcode + struct.pack("<Q", 2**28) + b"abc.", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_containers_that_hold_one_another_many_times_or_themselves_end(tmp_path):
    shared = [np.zeros(1)]
    for _ in range(30):
        shared = [shared] * 10
    assert len(read(pickle.dumps(shared), tmp_path)) == 10
    shared.append(shared)
    assert read(pickle.dumps(shared), tmp_path)[-1][-1] is not None


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04 cut short"])
def test_a_damaged_checkpoint_of_torch_is_named(tmp_path, content):
    with pytest.raises(ValueError, match="a.pth is (damaged|refused)"):
        read(content, tmp_path, "a.pth")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_cut_short_is_named(tmp_path, zipped):
    weights = {f"w{i}": torch.zeros(100) for i in range(20)}
    torch.save({"model": weights}, buffer := io.BytesIO(), _use_new_zipfile_serialization=zipped)
    whole = buffer.getvalue()
    for length in range(0, len(whole) - 1, len(whole) // 50):
        with pytest.raises(ValueError, match="a.pth is (damaged|refused)"):
            read(whole[:length], tmp_path, "a.pth")


def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(OSError, match="Input/output error: .*a.pth"):
        read(b"", tmp_path, "a.pth")


def test_arrays_in_a_checkpoint_of_torch_load_and_objects_do_not(tmp_path):
    torch.save({"model": {"w": CONTENT["model"]["w"], "t": torch.ones(2)}, "n": np.float64(3)}, tmp_path / "a.pth")
    loaded = load_tensors(str(tmp_path / "a.pth"))
    np.testing.assert_array_equal(loaded["model"]["w"], CONTENT["model"]["w"])
    assert loaded["n"] == 3 and torch.equal(loaded["model"]["t"], torch.ones(2))
    torch.save({"model": np.array([{"a": 1}])}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="a.pth is refused"):
        load_tensors(str(tmp_path / "a.pth"))


WHOLE = pickle.dumps({"w": np.arange(3.0), "n": [np.float32(1), "x"]}, protocol=4)


@settings(max_examples=300, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4),
    length=st.integers(0, len(WHOLE)),
)
def test_any_damage_gives_arrays_or_one_error(tmp_path_factory, changes, length):
    content = bytearray(WHOLE)
    for place, value in changes:
        content[place] = value
    try:
        read(bytes(content[:length]), tmp_path_factory.getbasetemp())
    except ValueError as error:
        assert "foreign.pkl is" in str(error)
