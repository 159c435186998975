"""Reading weights files: tensors, numpy arrays of numbers and plain containers, nothing else.

Names in a file never reach numpy: its own constructors can be brought to read foreign memory (an object array over
given bytes, a type whose flags are set by hand). Stand-ins collect what a file says of an array, and check it.
"""

import collections
import errno
import io
import os
import pickle
import struct

import numpy as np
import torch

# nesting of containers; a checkpoint has less than ten levels
_DEPTH = 50
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), np.generic, np.ndarray)


class _Type:
    """What a file says of a dtype."""

    def __init__(self, text, *_):
        if not isinstance(text, str) or np.dtype(text).kind not in "biufc":
            raise pickle.UnpicklingError(f"an array of type {text!r}, not of numbers")
        self.dtype = np.dtype(text)

    def __setstate__(self, state):
        self.dtype = self.dtype.newbyteorder(state[1])

    def array(self, data, shape, order="C") -> np.ndarray:
        """The array that ``data`` holds, in the machine's byte order."""
        data = data.encode("latin1") if isinstance(data, str) else data
        return np.frombuffer(data, self.dtype).reshape(shape, order=order).astype(self.dtype.newbyteorder("="))


class _Array:
    """What a file says of an array; ``value`` once it is complete."""

    value = None

    def __setstate__(self, state):
        _, shape, type_, fortran, data = state
        self.value = type_.array(data, shape, "F" if fortran else "C")


def _ndarray(*_):
    raise pickle.UnpicklingError("a call of numpy.ndarray")


def _reconstruct(*_) -> _Array:
    return _Array()


def _scalar(type_: _Type, data) -> np.generic:
    return type_.array(data, ())[()]


def _frombuffer(data, type_: _Type, shape, order, *_) -> np.ndarray:
    return type_.array(data, shape, order)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"a call of _codecs.encode to {encoding!r}")
    return text.encode("latin1")


def _bytes() -> bytes:
    return b""


# every global that pickled numpy arrays and plain containers need, under numpy 1 and 2, Python 2 and 3
_NUMPY = {"numpy.ndarray": _ndarray, "numpy.dtype": _Type}
for _core in ("numpy.core", "numpy._core"):
    _NUMPY |= {f"{_core}.multiarray._reconstruct": _reconstruct, f"{_core}.multiarray.scalar": _scalar}
    _NUMPY[f"{_core}.numeric._frombuffer"] = _frombuffer
_ADMITTED = _NUMPY | {
    "_codecs.encode": _encode,
    "__builtin__.bytes": _bytes,
    "builtins.bytes": _bytes,
    "collections.OrderedDict": collections.OrderedDict,
}


# the one written in Python, whose memory a file cannot blow up and whose opcodes can be overridden
class _ArrayUnpickler(pickle._Unpickler):
    """Unpickler that calls ``_ADMITTED`` alone and sets the state of stand-ins alone."""

    dispatch = dict(pickle._Unpickler.dispatch)

    def find_class(self, module, name):
        """The stand-in for a global, or UnpicklingError."""
        if f"{module}.{name}" not in _ADMITTED:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return _ADMITTED[f"{module}.{name}"]

    def load_build(self):
        """Give a stand-in its state; that of an OrderedDict is dropped, any other refused."""
        state = self.stack.pop()
        if isinstance(self.stack[-1], (_Array, _Type)):
            self.stack[-1].__setstate__(state)
        elif not isinstance(self.stack[-1], collections.OrderedDict):
            raise pickle.UnpicklingError(f"the state of a {type(self.stack[-1]).__name__}")

    dispatch[pickle.BUILD[0]] = load_build

    def load_bytearray8(self):
        """Read a bytearray; the parent's makes it first, as long as the file says, and fills it with zeros."""
        (length,) = struct.unpack("<Q", self.read(8))
        data = self.read(length)
        if len(data) < length:
            raise pickle.UnpicklingError(f"a bytearray of {length} bytes of which {len(data)} are there")
        self.append(bytearray(data))

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


def load_arrays(path: str):
    """Unpickle ``path`` if it holds numpy arrays of numbers and plain containers alone.

    Raises:
        ValueError: naming the file, and what else it holds or that it is damaged.
    """
    with open(path, "rb") as file:
        # read whole first, so that a false length in the file cannot ask for more memory than the file takes
        content = io.BytesIO(file.read())
    try:
        return _resolve(_ArrayUnpickler(content, encoding="latin1").load(), _PLAIN, {})
    except pickle.UnpicklingError as error:
        raise ValueError(_refusal(path, error)) from None
    except Exception as error:  # a damaged or malicious file can make an unpickler raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{os.path.abspath(path)} is damaged or no pickle ({reason})") from None


def load_tensors(path: str):
    """``torch.load`` of a .pth file that holds tensors, numpy arrays of numbers and plain containers alone.

    Raises:
        OSError: naming the file that cannot be read. ValueError: naming it, and what else it holds or that it is damaged.
    """
    admitted = [(stand_in, name) for name, stand_in in _NUMPY.items()]
    # torch restores the state of what it admits by name only
    admitted.append((_Array, f"{__name__}._Array"))
    try:
        with torch.serialization.safe_globals(admitted):
            return _resolve(torch.load(path, map_location="cpu", weights_only=True), (object,), {})
    except pickle.UnpicklingError as error:
        # torch wraps what it found into advice to switch its checks off
        reason = str(error.__context__ or error).partition(" was not an allowed global")[0]
        raise ValueError(_refusal(path, reason)) from None
    except Exception as error:  # a damaged or malicious file can make torch raise anything
        # the system's own errors; EINVAL is not one, since an impossible offset in the file causes it
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise OSError(error.errno, error.strerror, os.path.abspath(path)) from error
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ValueError(f"{os.path.abspath(path)} is damaged or no checkpoint ({reason})") from None


def _refusal(path: str, reason) -> str:
    return (
        f"{os.path.abspath(path)} is refused: it is no checkpoint, or holds more than arrays ({reason}); if you trust it, "
        "load it yourself and save its tensors: torch.save({'model': tensors}, FILE)"
    )


def _resolve(value, admitted: tuple[type, ...], done: dict[int, tuple], depth: int = 0):
    """The value with arrays in the place of their stand-ins; refuses types that are not admitted."""
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, _Type):
        raise pickle.UnpicklingError("a dtype outside an array")
    if type(value) not in (dict, collections.OrderedDict, list, tuple):
        if callable(value) or not isinstance(value, admitted):
            raise pickle.UnpicklingError(f"a {type(value).__name__}")
        return value
    if depth > _DEPTH:
        raise pickle.UnpicklingError(f"containers nested more than {_DEPTH} deep")
    if id(value) in done:
        return done[id(value)][1]
    # the value is kept too, or its id could be given to another
    done[id(value)] = value, value
    if isinstance(value, tuple):
        done[id(value)] = value, tuple(_resolve(item, admitted, done, depth + 1) for item in value)
    else:
        for key, item in list(dict.items(value) if isinstance(value, dict) else enumerate(value)):
            value[_resolve(key, admitted, done, depth + 1)] = _resolve(item, admitted, done, depth + 1)
    return done[id(value)][1]
