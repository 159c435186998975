"""Reading model-zoo ``.pkl`` files: numpy arrays and plain containers, nothing else."""

import os
import pickle

import numpy
import torch

_NUMPY_CORE = "numpy._core" if hasattr(numpy, "_core") else "numpy.core"
# every global that pickled numpy arrays and plain containers need, under numpy 1 and 2
_ADMITTED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"{module}.{name}")
        # numpy 1 and 2 name this module differently
        for spelling in ("numpy._core", "numpy.core"):
            module = module.replace(spelling, _NUMPY_CORE)
        return super().find_class(module, name)


def load_arrays(path: str):
    """Unpickle ``path`` if it holds numpy arrays and plain containers alone.

    Raises:
        ValueError: naming the file, and what else it holds or that it is damaged.
    """
    with open(path, "rb") as file:
        try:
            return _ArrayUnpickler(file, encoding="latin1").load()
        except pickle.UnpicklingError as error:
            raise ValueError(f"{os.path.abspath(path)} is refused: it holds more than arrays ({error})") from None
        except (EOFError, IndexError, AttributeError, ImportError, TypeError) as error:
            raise ValueError(f"{os.path.abspath(path)} is damaged: {error}") from None


def load_tensors(path: str):
    """``torch.load`` of a .pth file that holds tensors, numpy arrays and plain containers alone.

    Raises:
        ValueError: naming the file, and what else it holds.
    """
    numpy_core = numpy._core if hasattr(numpy, "_core") else numpy.core
    admitted = [numpy.ndarray, numpy.dtype, numpy_core.multiarray._reconstruct, numpy_core.multiarray.scalar]
    admitted += [type(numpy.dtype(kind)) for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "bool")]
    try:
        with torch.serialization.safe_globals(admitted):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{os.path.abspath(path)} is refused: it holds more than arrays ({reason})") from None
