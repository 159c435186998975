"""Checkpoints: written whole or not at all, read without running anything, summed up in one line."""

import contextlib
import errno
import logging
import os
from pathlib import Path

import numpy as np
import torch
from detectron2.checkpoint import DetectionCheckpointer
from detectron2.config import CfgNode
from detectron2.utils.file_io import PathManager
from torch import Tensor, nn

from rfpn.data.files import FULL_DISK, first_few
from rfpn.engine.convert import is_released
from rfpn.engine.safe_pickle import load_arrays, load_tensors

_PARTIAL = ".partial"
_RELEASED = "its names are those of the paper's released code, which tools/convert_checkpoint.py rewrites"


class Checkpointer(DetectionCheckpointer):
    """Detectron2's checkpointer with atomic writes, safe reads and a summary of what was matched.

    ``incompatible`` holds the missing, unexpected and misshapen keys of the last load; ``foreign``: none of its tensors is the
    model's.
    """

    incompatible = None
    foreign = False
    # the last checkpoint, where a run goes on with it
    _resumed: str | None = None

    def save(self, name: str, **kwargs) -> None:
        """Write ``name``.pth; whatever happens meanwhile, the previous file and its tag stay whole.

        Raises:
            OSError: the file could not be written, for instance to a full disk; nothing of it is left.
        """
        try:
            super().save(name + _PARTIAL, **kwargs)
        # torch turns a failed write into a RuntimeError, with the reason as its context
        except (OSError, RuntimeError) as error:
            reason = error if isinstance(error, OSError) else error.__context__
            if isinstance(reason, KeyboardInterrupt):
                raise reason from None
            if not isinstance(reason, OSError):
                raise
            self.remove_partial()
            path = os.path.abspath(os.path.join(self.save_dir, name + ".pth"))
            raise OSError(f"{path} could not be written: {reason.strerror or reason}; {last_good(self.save_dir)}") from error

    def tag_last_checkpoint(self, last_filename_basename: str) -> None:
        """Move a finished file to its name, then point ``last_checkpoint`` to it."""
        final = last_filename_basename.replace(_PARTIAL, "")
        if final != last_filename_basename:
            partial = os.path.join(self.save_dir, last_filename_basename)
            _flush(partial)
            os.replace(partial, os.path.join(self.save_dir, final))
        tag = os.path.join(self.save_dir, "last_checkpoint")
        with open(tag + _PARTIAL, "w") as file:
            file.write(final)
        _flush(tag + _PARTIAL)
        os.replace(tag + _PARTIAL, tag)

    def remove_tag(self) -> None:
        """Let ``last_checkpoint`` name none any more; the checkpoints stay."""
        Path(self.save_dir, "last_checkpoint").unlink(missing_ok=True)

    def remove_partial(self) -> None:
        """Remove what a write that was cut short has left in the folder; unfinished files of other programs stay."""
        folder = Path(self.save_dir)
        for path in (*folder.glob(f"*{_PARTIAL}.pth"), folder / f"last_checkpoint{_PARTIAL}"):
            path.unlink(missing_ok=True)

    def resume_or_load(self, path: str, *, resume: bool = True) -> dict:
        """As Detectron2's; of a last checkpoint that is missing or damaged the error says how to go on from another."""
        self._resumed = self.get_checkpoint_file() if resume and self.has_checkpoint() else None
        return super().resume_or_load(path, resume=resume)

    def load(self, path: str, *args, **kwargs) -> dict:
        """As Detectron2's. Raises OSError or ValueError naming the file that is missing, damaged or refused."""
        if path and not os.path.isfile(PathManager.get_local_path(path)):
            if os.path.isdir(path):
                remedy = "name a file of it in MODEL.WEIGHTS or, to resume, in its last_checkpoint"
                raise FileNotFoundError(f"checkpoint {os.path.abspath(path)} is a folder: {remedy}")
            raise FileNotFoundError(f"checkpoint {os.path.abspath(path)} does not exist{self._others(path)}")
        rest = super().load(path, *args, **kwargs)
        if path and self.foreign:
            if not self.incompatible.unexpected_keys:
                raise ValueError(f"{os.path.abspath(path)} holds no weights at all")
            raise ValueError(
                f"{os.path.abspath(path)}: none of its tensors is one of the model's; names there are such as "
                f"{self.incompatible.unexpected_keys[0]}, here {next(iter(self.model.state_dict()))}"
            )
        return rest

    def _load_file(self, filename: str) -> dict:
        try:
            return read_checkpoint(filename)
        except ValueError as error:
            raise ValueError(f"{error}{self._others(filename)}") from None

    def _others(self, path: str) -> str:
        """How to do without the file that a run was to go on with, as a clause for the end of an error; "" for others."""
        if path != self._resumed:
            return ""
        folder, own = Path(self.save_dir).absolute(), os.path.basename(path)
        found = [file for file in folder.glob("model_*.pth") if file.name != own and _PARTIAL not in file.name]
        if not found:
            return f"; no other checkpoint is in {folder}: start anew, without --resume"
        newest = max(found, key=lambda file: file.stat().st_mtime).name
        return f"; to continue from another one, write its name, such as {newest}, into {folder / 'last_checkpoint'}"

    def _convert_ndarray_to_tensor(self, state_dict: dict) -> None:
        # the dict of the last call is loaded, once its tensors are renamed and those of another shape are dropped from it
        super()._convert_ndarray_to_tensor(state_dict)
        self._read = state_dict

    def _load_model(self, checkpoint: dict):
        given, own = len(checkpoint["model"]), self.model.state_dict().keys()
        self.incompatible = super()._load_model(checkpoint)
        loaded = own & self._read.keys()
        del self._read
        missing, unexpected, misshapen = self.incompatible
        self.foreign = len(unexpected) == given
        # tensors that are absent but that neither torch nor Detectron2 calls missing: norms' counters, constants
        told = {*loaded, *missing, *(name for name, *_ in misshapen)}
        spared = [name for name in own if name not in told]
        spared = f"; absent but not needed {len(spared)} ({first_few(spared, 3)})" if spared else ""
        logger = logging.getLogger("rfpn")
        logger.info("weights: loaded %d of %d tensors; %s%s", len(loaded), len(own), self.summary(), spared)
        if is_released(unexpected):
            logger.warning("the mask head is not loaded: %s", _RELEASED)
        return self.incompatible

    def summary(self) -> str:
        """Numbers and first names of the missing, unexpected and misshapen tensors of the last load."""
        missing, unexpected, misshapen = self.incompatible
        misfits = [f"{name} {tuple(theirs)} for {tuple(ours)}" for name, theirs, ours in misshapen]
        absent = [name for name in missing if name not in {m[0] for m in misshapen}]
        return "; ".join((_count("missing", absent), _count("unexpected", unexpected), _count("wrong shape", misfits)))


def read_checkpoint(path: str) -> dict:
    """What a .pth, .pkl (model zoo) or .pyth (pycls) file holds; ``model`` are the weights by name, tensors or arrays.

    Raises:
        OSError, ValueError: naming the file that is missing, damaged, refused or holds no weights by name.
    """
    loaded = load_arrays(path) if path.endswith(".pkl") else load_tensors(path)
    if not isinstance(loaded, dict):
        raise ValueError(f"{os.path.abspath(path)} holds a {type(loaded).__name__}, not weights by name")
    if path.endswith(".pkl"):
        loaded = _zoo_format(loaded)
    elif path.endswith(".pyth"):
        loaded = _pycls_format(loaded)
    elif "model" not in loaded:
        loaded = {"model": loaded.get("state_dict", loaded)}
    weights = loaded["model"]
    if not isinstance(weights, dict):
        raise ValueError(f"{os.path.abspath(path)} holds no weights by name")
    for name, value in weights.items():
        if not (isinstance(name, str) and isinstance(value, (Tensor, np.ndarray))):
            kind = type(value).__name__
            raise ValueError(f"{os.path.abspath(path)} holds {name!r}, a {kind}, where weights by name are expected")
    return loaded


def load_for_evaluation(model: nn.Module, cfg: CfgNode, resume: bool = False) -> nn.Module:
    """Give a model the weights of MODEL.WEIGHTS, or with ``resume`` those of the run's last checkpoint.

    Raises:
        ValueError: the file does not give every parameter, or gives more to parts of the model, and
            MODEL.ALLOW_MISSING_WEIGHTS does not admit that; or one is not finite.
    """
    checkpointer = Checkpointer(model, save_dir=cfg.OUTPUT_DIR)
    checkpointer.resume_or_load(cfg.MODEL.WEIGHTS, resume=resume)
    check_complete(checkpointer, cfg.MODEL.ALLOW_MISSING_WEIGHTS)
    bad = [name for name, value in model.state_dict().items() if not torch.isfinite(value).all()]
    if bad:
        raise ValueError(f"{_count('not finite', bad)} in MODEL.WEIGHTS: no score would mean anything")
    return model


def check_complete(checkpointer: Checkpointer, allow_missing: bool) -> None:
    """Raise ValueError when evaluation would run with parameters that no file gave, or with a part of a larger model."""
    if checkpointer.incompatible is None:
        lack = "MODEL.WEIGHTS names no file"
    else:
        missing, unexpected, _ = checkpointer.incompatible
        lack = missing and f"{_count('missing', missing)} in MODEL.WEIGHTS"
        if lack and is_released(unexpected):
            lack += f" ({_RELEASED})"
    if lack and not allow_missing:
        raise ValueError(
            f"{lack}: evaluating random weights is refused; set MODEL.ALLOW_MISSING_WEIGHTS True to do it anyway"
        )
    surplus = _surplus(checkpointer.model, checkpointer.incompatible[1]) if checkpointer.incompatible else []
    if surplus and not allow_missing:
        raise ValueError(
            f"{_count('unexpected', surplus)} in parts of this model: MODEL.WEIGHTS is of another one, larger or of another "
            "form (MODEL.RESNETS.DEPTH, MODEL.RECURRENT.FORM); set MODEL.ALLOW_MISSING_WEIGHTS True to evaluate it anyway"
        )


def _surplus(model: nn.Module, unexpected: list[str]) -> list[str]:
    """Names of tensors that lie within parts of a model; whole heads that it does without may well be in a file."""
    modules = dict(model.named_modules())
    return [name for name in unexpected if of_a_part(name) and _part(modules, name) not in ("", "roi_heads")]


def of_a_part(name: str) -> bool:
    """Whether a tensor of this name is of a part of the model: frozen norms have no counters, older versions stored anchors."""
    return not any(word in name for word in ("num_batches_tracked", "cell_anchors"))


def _part(modules: dict[str, nn.Module], name: str) -> str:
    """The innermost of these modules that a tensor of this name would lie in; "" is the model."""
    while name not in modules:
        name = name.rpartition(".")[0]
    return name


@contextlib.contextmanager
def name_full_disk(folder: str):
    """Raise OSError naming the file, or else ``folder``, and the last good checkpoint where no room is left to write.

    Also where ``folder`` itself was removed meanwhile.
    """
    try:
        yield
    except OSError as error:
        missing = os.fsdecode(error.filename or "") if error.errno == errno.ENOENT else ""
        if missing.startswith(os.path.join(folder, "")) and not os.path.isdir(folder):
            raise FileNotFoundError(f"OUTPUT_DIR {os.path.abspath(folder)} is gone") from error
        if error.errno not in FULL_DISK:
            raise
        # a write to a file that is open fails without its name
        place = error.filename or f"OUTPUT_DIR {os.path.abspath(folder)}"
        raise OSError(f"{place}: {error.strerror}; {last_good(folder)}") from error


def last_good(folder: str) -> str:
    """The checkpoint in a folder that ``--resume`` goes on with, or that there is none, as a clause for the end of an error."""
    tag = Path(folder) / "last_checkpoint"
    return f"the last good checkpoint is {tag.read_text().strip() if tag.is_file() else 'none'}"


def _pycls_format(data: dict) -> dict:
    weights = data.get("model_state", data)
    weights = {name: value for name, value in weights.items() if not name.endswith("num_batches_tracked")}
    return {"model": weights, "__author__": "pycls", "matching_heuristics": True}


def _zoo_format(data: dict) -> dict:
    if isinstance(data.get("model"), dict):
        return data
    data = data.get("blobs", data)
    weights = {name: value for name, value in data.items() if not name.endswith("_momentum")}
    return {"model": weights, "__author__": "Caffe2", "matching_heuristics": True}


def _count(word: str, names: list[str]) -> str:
    return f"{word} {len(names)}" + (f" ({first_few(names, 3)})" if names else "")


def _flush(path: str) -> None:
    with PathManager.open(path, "rb+") as file:
        os.fsync(file.fileno())
