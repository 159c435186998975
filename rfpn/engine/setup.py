"""From command-line arguments to a checked, frozen config."""

import functools
import logging
import os
from itertools import zip_longest

import torch
import yaml
from detectron2.config import CfgNode
from detectron2.engine import default_setup
from detectron2.utils import comm
from detectron2.utils.file_io import PathManager
from detectron2.utils.logger import setup_logger

from rfpn.config import get_cfg
from rfpn.engine.checkpoint import name_full_disk
from rfpn.engine.output_dir import claim, kept_record, make_output_dir
from rfpn.engine.resume import changed_keys
from rfpn.engine.rules import check_expected_results, check_values


def setup(args) -> CfgNode:
    """Merge the config file and overrides, check them, set up logging and seeds.

    The ``config.yaml`` of a run in OUTPUT_DIR stays as it is: :meth:`rfpn.engine.trainer.Trainer.resume_or_load` writes that
    of a training once nothing stands against it. With ``--eval-only``, ``config_eval.yaml`` is written beside it, or
    ``config.yaml`` where there is none.

    Raises:
        OSError: a config or weights file is missing, or OUTPUT_DIR cannot be made. KeyError: an unknown key.
        ValueError: a value out of range, or another training is at work in OUTPUT_DIR.
    """
    cfg = load_cfg(args.config_file, args.opts)
    # a resumed run needs nothing but its own checkpoint
    if not (args.resume and os.path.isfile(os.path.join(cfg.OUTPUT_DIR, "last_checkpoint"))):
        check_weights(cfg)
    check_expected_results(cfg)
    if not (args.config_file or args.eval_only or cfg.DATASETS.TRAIN):
        raise ValueError("DATASETS.TRAIN names no data set; give --config-file, or DATASETS.TRAIN")
    cfg.freeze()
    make_output_dir(cfg)
    with name_full_disk(cfg.OUTPUT_DIR):
        if comm.is_main_process() and not args.eval_only:
            claim(cfg.OUTPUT_DIR)
        with kept_record(cfg.OUTPUT_DIR, args.eval_only):
            default_setup(cfg, args)
    logger = setup_logger(cfg.OUTPUT_DIR, distributed_rank=comm.get_rank(), name="rfpn")
    if args.resume and not args.eval_only:
        changed, restored = changed_keys(cfg)
        if changed:
            logger.warning("--resume continues from weights that were trained with other settings: %s", "; ".join(changed))
        if restored:
            logger.warning("--resume keeps the checkpoint's value of: %s", "; ".join(restored))
    return cfg


def load_cfg(config_file: str, overrides: list[str]) -> CfgNode:
    """Config from a file and ``KEY VALUE`` overrides, not frozen; on the CPU where there is no GPU, ``~`` expanded in paths.

    Raises:
        OSError: the file is missing. KeyError: an unknown key. ValueError: a value of the wrong type or out of range.
    """
    cfg = get_cfg()
    if config_file:
        _merge_file(cfg, config_file)
    _check_overrides(cfg, overrides)
    try:
        cfg.merge_from_list(overrides)
    except ValueError as error:  # of another type
        hint = "; a tuple is written \"('one', 'two')\", one of a single value \"('one',)\""
        raise ValueError(f"command-line override: {error}{hint if 'tuple' in str(error) else ''}") from None
    except TypeError as error:  # a value that Python cannot make, such as {[]: 1}
        raise KeyError(f"command-line override: {' '.join(map(str, overrides))} cannot be taken ({error})") from None
    check_values(cfg)
    cfg.MODEL.DEVICE = _device(cfg.MODEL.DEVICE)
    cfg.OUTPUT_DIR, cfg.MODEL.WEIGHTS = (os.path.expanduser(path) for path in (cfg.OUTPUT_DIR, cfg.MODEL.WEIGHTS))
    return cfg


def _merge_file(cfg: CfgNode, config_file: str) -> None:
    path = os.path.abspath(config_file)
    if not os.path.isfile(config_file):
        raise FileNotFoundError(f"--config-file {path} {_absence(path)}")
    if path.endswith(".py"):
        raise ValueError(f"--config-file {path} is a lazy configuration, which is not supported; give one in YAML")
    try:
        _check_repeated_keys(path)
        # with its default, allow_unsafe=True, Detectron2 would run Python code in the file
        cfg.merge_from_file(config_file, allow_unsafe=False)
    except KeyError as error:
        raise KeyError(f"--config-file {path}: {error.args[0]}") from None
    except (AssertionError, AttributeError, RecursionError, TypeError, UnicodeError, yaml.YAMLError) as error:
        raise ValueError(f"--config-file {path} is no configuration: {error}") from None


def _check_overrides(cfg: CfgNode, overrides: list) -> None:
    """Raise KeyError naming an unknown key, or one without a value: yacs asserts that, which ``python -O`` leaves out."""
    words = list(map(str, overrides))
    for key, value in zip_longest(words[::2], words[1::2]):
        fault = None
        if not _is_key(cfg, key):
            fault = f"Non-existent key: {key}"
        elif value is None or (len(words) % 2 and _is_key(cfg, value)):
            fault = f"{key} has no value; overrides are KEY VALUE in pairs"
        if fault:
            raise KeyError(f"command-line override: {fault}{_slip(overrides)}")


def _is_key(cfg: CfgNode, name: str) -> bool:
    node = cfg
    for part in name.split("."):
        if not isinstance(node, CfgNode) or part not in node:
            return False
        node = node[part]
    return True


def _slip(overrides: list) -> str:
    """What may be meant by overrides that are no pairs of known keys and values, as a clause for the end of an error."""
    for word in map(str, overrides):
        if word.startswith("--"):
            return f"; {word} must come before all overrides"
        if "=" in word and word.split("=")[0].isupper():
            return f"; write {word.replace('=', ' ', 1)}, without ="
    return ""


def _check_repeated_keys(path: str) -> None:
    """Raise ValueError where a key of a YAML file, or of its bases, is written twice: the last would count alone."""
    with open(path, encoding="utf-8") as file:
        root = yaml.compose(file, Loader=yaml.SafeLoader)
    if root is None:
        raise ValueError(f"--config-file {path} is empty")
    nodes, walked = [(root, "")], set()
    while nodes:
        node, section = nodes.pop()
        # a YAML alias may lead back to a node that holds it
        if not isinstance(node, yaml.MappingNode) or id(node) in walked:
            continue
        walked.add(id(node))
        seen = set()
        for key, value in node.value:
            name = f"{section}{key.value}"
            if name in seen and key.value != "<<":
                line = key.start_mark.line + 1
                raise ValueError(f"--config-file {path}: {name} is written again in line {line}; join the two")
            seen.add(name)
            nodes.append((value, f"{name}."))
            if name == "_BASE_":
                _check_bases(path, value.value if isinstance(value, yaml.SequenceNode) else [value])


def _check_bases(path: str, bases: list) -> None:
    for base in bases:
        if isinstance(base.value, str):
            found = os.path.join(os.path.dirname(path), os.path.expanduser(base.value))
            # Detectron2 itself tells of a base that is missing or is no path
            if os.path.isfile(found) and found != path:
                _check_repeated_keys(found)


def _device(name: str) -> str:
    """MODEL.DEVICE, or the CPU where that is a GPU and there is none. Raises ValueError for what is no device."""
    try:
        device = torch.device(name)
        if device.type != "cuda":
            torch.empty(0, device=device)
    except (AssertionError, ImportError, NotImplementedError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        wanted = "a device that works here, such as cuda or cpu"
        raise ValueError(f"MODEL.DEVICE must be {wanted}, got {name!r}: {reason}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        _say_no_gpu()
        return "cpu"
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"MODEL.DEVICE is {name}, but this machine has {torch.cuda.device_count()} GPUs")
    return name


@functools.cache
def _say_no_gpu() -> None:
    """Once a process: a program may read the configurations of many models."""
    logging.getLogger("rfpn").warning("no GPU found: running on the CPU (MODEL.DEVICE cpu)")


def check_weights(cfg: CfgNode) -> None:
    """Raise FileNotFoundError at once when ``MODEL.WEIGHTS`` names a file that cannot be had."""
    weights = cfg.MODEL.WEIGHTS
    if not weights:
        return
    try:
        found = os.path.isfile(PathManager.get_local_path(weights))
    except Exception as error:  # download handlers raise whatever their transport raises
        raise FileNotFoundError(
            f"MODEL.WEIGHTS {weights} could not be fetched ({error}): give the path of a file, or \"''\" to start without any"
        ) from None
    if not found:
        path = weights if "://" in weights else os.path.abspath(weights)
        raise FileNotFoundError(f"MODEL.WEIGHTS {path} {_absence(path)}")


def _absence(path: str) -> str:
    return "is a folder, no file" if os.path.isdir(path) else "does not exist"
