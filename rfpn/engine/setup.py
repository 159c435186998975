"""From command-line arguments to a checked, frozen config."""

import contextlib
import logging
import os
import sys

import torch
from detectron2.config import CfgNode
from detectron2.engine import default_setup
from detectron2.utils import comm
from detectron2.utils.file_io import PathManager
from detectron2.utils.logger import setup_logger

from rfpn.config import get_cfg

# what wrong input raises; anything else is a fault of the program and keeps its traceback
INPUT_ERRORS = (ValueError, KeyError, OSError)


def setup(args) -> CfgNode:
    """Merge the config file and overrides, check them, set up logging and seeds, write ``config.yaml``.

    Raises:
        OSError: a config or weights file is missing. KeyError: an unknown key. ValueError: a value out of range.
    """
    cfg = load_cfg(args.config_file, args.opts)
    check_weights(cfg)
    cfg.freeze()
    default_setup(cfg, args)
    setup_logger(cfg.OUTPUT_DIR, distributed_rank=comm.get_rank(), name="rfpn")
    return cfg


def load_cfg(config_file: str, overrides: list[str]) -> CfgNode:
    """Config from a file and ``KEY VALUE`` overrides, not frozen; on the CPU where there is no GPU."""
    cfg = get_cfg()
    if config_file:
        if not os.path.isfile(config_file):
            raise FileNotFoundError(f"--config-file {os.path.abspath(config_file)} does not exist")
        cfg.merge_from_file(config_file)
    try:
        cfg.merge_from_list(overrides)
    except AssertionError as error:  # yacs asserts on unknown keys and on an odd number of words
        raise KeyError(f"command-line override: {error}") from None
    if cfg.MODEL.DEVICE.startswith("cuda") and not torch.cuda.is_available():
        logging.getLogger("rfpn").warning("no GPU found: running on the CPU (MODEL.DEVICE cpu)")
        cfg.MODEL.DEVICE = "cpu"
    return cfg


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


@contextlib.contextmanager
def one_line_errors():
    """End the program with one line and exit code 2 where its input is wrong, 3 where numbers are not finite."""
    try:
        yield
    except (*INPUT_ERRORS, FloatingPointError) as error:
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        if text.startswith("Caught ") and "Original Traceback" in text:  # from a worker of a loader
            text = text.strip().splitlines()[-1]
        print(f"error: {' '.join(text.split())}", file=sys.stderr)
        sys.exit(3 if isinstance(error, FloatingPointError) else 2)
