"""Arguments and models that the programs for looking at dynamics share."""

import argparse
import os
from typing import Iterator

import torch
from detectron2.config import CfgNode
from detectron2.utils import comm
from detectron2.utils.logger import setup_logger
from torch import nn

from arguments import check_name
from rfpn.analysis.overlay import Overlay, build_overlay
from rfpn.analysis.unrolling import has_recurrent_layer
from rfpn.data.files import finite, write_csv, write_json
from rfpn.engine.checkpoint import load_for_evaluation
from rfpn.engine.setup import check_weights, load_cfg
from rfpn.modeling.build import build_model

WEIGHTS_HELP = """a checkpoint and its name in tables and figures, repeatable; NAME defaults to the file's folder.
Without --config-file each checkpoint is read with the .yaml of its own name beside it (models of the zoo), or else with
the config.yaml there (runs)"""


def analysis_parser(description: str) -> argparse.ArgumentParser:
    """Parser with ``--config-file``, ``--weights``, ``--output``, ``--dataset``, ``--images`` and overrides."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config-file", default="", metavar="FILE", help="configuration of all checkpoints")
    parser.add_argument("--dataset", help="a registered name (default: the first of DATASETS.TEST)")
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="configuration overrides, KEY VALUE ...")
    add_model_arguments(parser)
    return parser


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--weights`` and ``--output``."""
    parser.add_argument("--weights", action="append", default=[], metavar="NAME=FILE", help=WEIGHTS_HELP)
    parser.add_argument("--output", metavar="FOLDER", help="(default: a folder in the first model's OUTPUT_DIR)")


def model_configs(args) -> dict[str, CfgNode]:
    """Frozen configurations of all models, each recurrent, by their names; without ``--weights`` the one of MODEL.WEIGHTS.

    Raises:
        OSError, KeyError, ValueError: naming the file, key, argument or model at fault.
    """
    if not args.weights:
        if not args.config_file:
            raise ValueError("give --weights, or --config-file with MODEL.WEIGHTS")
        cfg = load_cfg(args.config_file, args.opts)
        return {(name := _name(cfg.OUTPUT_DIR)): _checked(cfg, name)}
    configs = {}
    for text in args.weights:
        name, equals, path = text.partition("=")
        if not equals:
            name, path = _name(os.path.dirname(os.path.abspath(text))), text
        if not name or os.sep in name:
            # of a/b=c.pth without a name, what stands before the = is part of the path
            raise ValueError(f"--weights {text}: a name must not be empty or hold {os.sep!r}; give names as in NAME=FILE")
        if name in configs:
            raise ValueError(f"--weights: two models are named {name!r}; give names as in NAME=FILE")
        config_file = args.config_file or _config_beside(path)
        configs[name] = _checked(load_cfg(config_file, [*args.opts, "MODEL.WEIGHTS", path]), name)
    return configs


def load_model(cfg: CfgNode, resume: bool = False) -> nn.Module:
    """The model of a configuration with its weights, in evaluation mode.

    Raises:
        ValueError: the weights file does not give every parameter.
    """
    torch.backends.cudnn.benchmark = cfg.CUDNN_BENCHMARK
    return load_for_evaluation(build_model(cfg), cfg, resume)


def load_models(configs: dict[str, CfgNode]) -> Iterator[tuple[str, CfgNode, nn.Module]]:
    """Yield name, configuration and model, one model at a time."""
    for name, cfg in configs.items():
        yield name, cfg, load_model(cfg)


def load_overlay(config_file: str, overrides: list[str]) -> Overlay:
    """A model with its weights, all of them from the file.

    Raises:
        ValueError, KeyError, OSError: naming the key or file at fault.
    """
    cfg = load_cfg(config_file, overrides)
    check_weights(cfg)
    return build_overlay(load_model(cfg), cfg)


def dataset_of(args, cfg: CfgNode) -> str:
    """``--dataset``, or the first of the configuration's test sets.

    Raises:
        ValueError: there is none.
    """
    if not args.dataset and not cfg.DATASETS.TEST:
        raise ValueError("give --dataset: DATASETS.TEST is empty")
    return args.dataset or cfg.DATASETS.TEST[0]


def open_output(args, configs: dict[str, CfgNode], job: str) -> str:
    """The folder to write into, made, with a log of its own."""
    folder = args.output or os.path.join(next(iter(configs.values())).OUTPUT_DIR, job)
    os.makedirs(folder, exist_ok=True)
    for library in ("rfpn", "fvcore"):
        setup_logger(folder, distributed_rank=comm.get_rank(), name=library)
    return folder


def write_results(folder: str, job: str, rows: list[dict], summaries: dict[str, dict]) -> None:
    """Rows into <job>.csv; the summary of each model, by its name, into <job>.json and onto the console.

    In JSON null stands for numbers that are not finite.
    """
    print_table([{"model": name, **summary} for name, summary in summaries.items()])
    write_csv(os.path.join(folder, f"{job}.csv"), rows)
    write_json(os.path.join(folder, f"{job}.json"), finite(summaries), indent=1)


def print_table(rows: list[dict]) -> None:
    """Print rows of one kind for people, as columns, with four significant digits."""
    from tabulate import tabulate

    print(tabulate([[name, *(_short(row[name]) for row in rows)] for name in rows[0]], disable_numparse=True))


def _config_beside(weights: str) -> str:
    if "://" not in weights and not os.path.isfile(weights):
        raise FileNotFoundError(f"--weights {os.path.abspath(weights)} is no file")
    candidates = os.path.splitext(weights)[0] + ".yaml", os.path.join(os.path.dirname(weights), "config.yaml")
    for path in candidates:
        if os.path.isfile(path):
            return path
    raise FileNotFoundError(f"--weights {weights} has no config.yaml beside it; give --config-file")


def _checked(cfg: CfgNode, name: str) -> CfgNode:
    check_name("--weights", name)
    check_weights(cfg)
    if not has_recurrent_layer(cfg):
        raise ValueError(f"{name} has no recurrent layer whose steps could be looked at: leave it out, or check --config-file")
    cfg.freeze()
    return cfg


def _name(folder: str) -> str:
    return os.path.basename(os.path.normpath(folder))


def _short(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
