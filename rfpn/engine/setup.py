"""From command-line arguments to a checked, frozen config."""

import contextlib
import logging
import math
import os
import sys

import torch
import yaml
from detectron2.config import CfgNode
from detectron2.config import get_cfg as detectron2_cfg
from detectron2.engine import default_setup
from detectron2.utils import comm
from detectron2.utils.file_io import PathManager
from detectron2.utils.logger import setup_logger

from rfpn.config import get_cfg, read_settings, settings_of
from rfpn.data.files import whole_file
from rfpn.engine.checkpoint import name_full_disk
from rfpn.engine.optimizer import OPTIMIZERS
from rfpn.engine.step import DTYPES
from rfpn.layers.checks import Range, check_setting

# what keys may be where nothing else sees to it, or where a slip of the keyboard would fill the memory
_RULES = {
    "DATALOADER.NUM_WORKERS": Range(0, 1024, whole=True),
    "SOLVER.BASE_LR": Range(0, sys.float_info.max),
    "SOLVER.CHECKPOINT_PERIOD": Range(1, math.inf, whole=True),
    "SOLVER.MAX_ITER": Range(1, math.inf, whole=True),
    "MODEL.RECURRENT.KERNEL_SIZE": Range(0, 255, whole=True),
    "MODEL.PATHFINDER.FEEDFORWARD_LAYERS": Range(1, 1000, whole=True),
    "INPUT.PATHFINDER_SIZE": Range(1, 4096, whole=True),
    "SOLVER.OPTIMIZER": OPTIMIZERS,
    "SOLVER.SKIP_NONFINITE": Range(0, math.inf, whole=True),
    "SOLVER.ACCUMULATE": Range(1, 10_000, whole=True),
    "SOLVER.AMP.DTYPE": tuple(DTYPES),
    "TEST.PQ_WORKERS": Range(1, 1024, whole=True),
}


# what shapes the weights that a run leaves, and what does not although it stands among it
_LEARNT = ("MODEL.", "INPUT.", "DATASETS.TRAIN")
_OF_A_MACHINE = ("MODEL.WEIGHTS", "MODEL.DEVICE", "MODEL.ALLOW_MISSING_WEIGHTS")


def setup(args) -> CfgNode:
    """Merge the config file and overrides, check them, set up logging and seeds, write ``config.yaml``.

    With ``--eval-only`` the ``config.yaml`` of a training stays as it is, and ``config_eval.yaml`` is written beside it.

    Raises:
        OSError: a config or weights file is missing, or OUTPUT_DIR cannot be made. KeyError: an unknown key.
        ValueError: a value out of range.
    """
    cfg = load_cfg(args.config_file, args.opts)
    # a resumed run needs nothing but its own checkpoint
    if not (args.resume and os.path.isfile(os.path.join(cfg.OUTPUT_DIR, "last_checkpoint"))):
        check_weights(cfg)
    check_expected_results(cfg)
    cfg.freeze()
    make_output_dir(cfg)
    changed = changed_keys(cfg) if args.resume and not args.eval_only else []
    with name_full_disk(cfg.OUTPUT_DIR), _kept_record(cfg.OUTPUT_DIR, args.eval_only):
        default_setup(cfg, args)
    logger = setup_logger(cfg.OUTPUT_DIR, distributed_rank=comm.get_rank(), name="rfpn")
    if changed:
        logger.warning("--resume goes on with weights that were trained with other settings: %s", "; ".join(changed))
    return cfg


def changed_keys(cfg: CfgNode) -> list[str]:
    """What differs in model, input and training data from the ``config.yaml`` of the run in ``OUTPUT_DIR``: "KEY old -> new".

    Nothing on processes other than the main one, and where there is no run to go on with.
    """
    path = os.path.join(cfg.OUTPUT_DIR, "config.yaml")
    if not comm.is_main_process() or not all(map(os.path.isfile, (path, os.path.join(cfg.OUTPUT_DIR, "last_checkpoint")))):
        return []
    try:
        old, new = read_settings(path), settings_of(cfg)
    except ValueError:  # damaged; it is about to be written anew
        return []
    learnt = (key for key in new if key.startswith(_LEARNT) and "TEST" not in key and key not in _OF_A_MACHINE)
    return [f"{key} {old[key]} -> {new[key]}" for key in learnt if key in old and old[key] != new[key]]


@contextlib.contextmanager
def _kept_record(folder: str, evaluating: bool):
    """Where an evaluation writes ``config.yaml`` in the folder of a training, keep the training's."""
    path = os.path.join(folder, "config.yaml")
    kept = None
    if evaluating and comm.is_main_process() and os.path.isfile(path):
        with open(path) as file:
            kept = file.read()
    yield
    if kept is not None:
        os.replace(path, os.path.join(folder, "config_eval.yaml"))
        with whole_file(path) as temporary:
            temporary.write_text(kept)


def load_cfg(config_file: str, overrides: list[str]) -> CfgNode:
    """Config from a file and ``KEY VALUE`` overrides, not frozen; on the CPU where there is no GPU, ``~`` expanded in paths.

    Raises:
        OSError: the file is missing. KeyError: an unknown key. ValueError: a value of the wrong type or out of range.
    """
    cfg = get_cfg()
    if config_file:
        path = os.path.abspath(config_file)
        if not os.path.isfile(config_file):
            raise FileNotFoundError(f"--config-file {path} does not exist")
        try:
            # by default Detectron2 runs Python that a file holds
            cfg.merge_from_file(config_file, allow_unsafe=False)
        # what a broken file raises
        except (AssertionError, AttributeError, RecursionError, TypeError, UnicodeError, yaml.YAMLError) as error:
            raise ValueError(f"--config-file {path} is no configuration: {error}") from None
    try:
        cfg.merge_from_list(overrides)
    except AssertionError as error:  # yacs asserts on unknown keys and on an odd number of words
        raise KeyError(f"command-line override: {error}") from None
    check_values(cfg)
    cfg.MODEL.DEVICE = _device(cfg.MODEL.DEVICE)
    cfg.OUTPUT_DIR, cfg.MODEL.WEIGHTS = (os.path.expanduser(path) for path in (cfg.OUTPUT_DIR, cfg.MODEL.WEIGHTS))
    return cfg


def _device(name: str) -> str:
    """MODEL.DEVICE, or the CPU where that is a GPU and there is none. Raises ValueError for what is no device."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"MODEL.DEVICE must be a device such as cuda or cpu, got {name!r}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        logging.getLogger("rfpn").warning("no GPU found: running on the CPU (MODEL.DEVICE cpu)")
        return "cpu"
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"MODEL.DEVICE is {name}, but this machine has {torch.cuda.device_count()} GPUs")
    return name


def check_values(cfg: CfgNode) -> None:
    """Check keys as far as nothing else does, this project's above all. Raises ValueError naming the key."""
    for key in added_keys():
        # yacs lets None through whatever the type
        if _value(cfg, key) is None:
            raise ValueError(f"{key} must not be None")
    for key, rule in _RULES.items():
        check_setting(key, _value(cfg, key), rule)
    if cfg.MODEL.META_ARCHITECTURE == "PanopticFPN" and not cfg.MODEL.MASK_ON:
        raise ValueError("MODEL.MASK_ON must be True with MODEL.META_ARCHITECTURE 'PanopticFPN', which pastes masks")
    if cfg.TEST.AUG.ENABLED:
        raise ValueError("TEST.AUG.ENABLED must be False: Detectron2's test-time augmentation serves none of the models here")
    channels = 1 if cfg.INPUT.FORMAT == "L" else 3
    for key in ("MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD"):
        if len(_value(cfg, key)) != channels:
            raise ValueError(f"{key} must have {channels} value(s) with INPUT.FORMAT {cfg.INPUT.FORMAT}, got {_value(cfg, key)}")


def added_keys() -> list[str]:
    """Full names of the keys that this project adds to Detectron2's."""
    ours, theirs = _leaves(get_cfg()), set(_leaves(detectron2_cfg()))
    return [key for key in ours if key not in theirs]


def _leaves(node: CfgNode, prefix: str = "") -> list[str]:
    keys = []
    for key, value in node.items():
        keys += _leaves(value, f"{prefix}{key}.") if isinstance(value, CfgNode) else [prefix + key]
    return keys


def _value(node: CfgNode, key: str):
    for part in key.split("."):
        node = node[part]
    return node


def check_weights(cfg: CfgNode) -> None:
    """Raise FileNotFoundError at once when ``MODEL.WEIGHTS`` names a file that cannot be had."""
    weights = cfg.MODEL.WEIGHTS
    if not weights:
        return
    try:
        found = os.path.isfile(PathManager.get_local_path(weights))
    except Exception as error:  # download handlers raise whatever their transport raises
        raise FileNotFoundError(f"MODEL.WEIGHTS {weights} could not be fetched: {error}") from None
    if not found:
        path = weights if "://" in weights else os.path.abspath(weights)
        raise FileNotFoundError(f"MODEL.WEIGHTS {path} does not exist")


def check_expected_results(cfg: CfgNode) -> None:
    """Raise ValueError where the scores of an evaluation could not be compared with TEST.EXPECTED_RESULTS."""
    expected = cfg.TEST.EXPECTED_RESULTS
    if not all(isinstance(row, (list, tuple)) and len(row) == 4 for row in expected):
        raise ValueError(f"TEST.EXPECTED_RESULTS must be a list of [task, metric, score, tolerance], got {expected}")
    if expected and len(cfg.DATASETS.TEST) != 1:
        raise ValueError(
            f"TEST.EXPECTED_RESULTS is of one data set, but DATASETS.TEST is {cfg.DATASETS.TEST}; set the former to []"
        )


def make_output_dir(cfg: CfgNode) -> None:
    """Make OUTPUT_DIR. Raises OSError naming it where it cannot be made or written to."""
    path = cfg.OUTPUT_DIR and os.path.abspath(cfg.OUTPUT_DIR)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise OSError(f"OUTPUT_DIR {path!r} cannot be made: {error.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"OUTPUT_DIR {path!r} cannot be written to")
