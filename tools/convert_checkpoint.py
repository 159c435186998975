#!/usr/bin/env python3
"""Rewrite a checkpoint of the paper's released code in this project's names.

    python tools/convert_checkpoint.py --config-file configs/COCO-PanopticSegmentation/rfpn_R_50_1x.yaml \\
        released.pth converted.pth

Reads .pth files that hold tensors and numpy arrays, .pkl and .npz files of arrays; nothing in them is run.
"""

import argparse
import os

import torch

from rfpn.data.files import first_few, read_npz, whole_file
from rfpn.engine.checkpoint import read_checkpoint
from rfpn.engine.convert import convert_released, head_of, is_released
from rfpn.engine.setup import load_cfg
from rfpn.modeling.build import build_model
from rfpn.programs import one_line_errors


def read(path: str) -> dict[str, torch.Tensor]:
    """Name -> tensor from a checkpoint file; where names in an .npz bear the prefix ``state_dict/``, of those that do.

    Raises:
        OSError, ValueError: naming the file that cannot be read, or holds what is no tensor.
    """
    if path.endswith(".npz"):
        arrays, prefix = read_npz(path), "state_dict/"
        state = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)} or arrays
    else:
        state = read_checkpoint(path)["model"]
    try:
        return {name: torch.as_tensor(value) for name, value in state.items()}
    except TypeError as error:  # arrays of text
        raise ValueError(f"{os.path.abspath(path)} holds what is no tensor ({error})") from None


def convert(args) -> None:
    """Read, rename, check against the configured model, write."""
    if not os.path.isfile(args.input):
        raise FileNotFoundError(f"{os.path.abspath(args.input)} does not exist")
    cfg = load_cfg(args.config_file, ["MODEL.WEIGHTS", "", "MODEL.DEVICE", "cpu", *args.opts])
    model = build_model(cfg)
    state = read(args.input)
    if not is_released(state):
        raise ValueError(f"{os.path.abspath(args.input)} names no released recurrent mask head")
    head = head_of(model)
    try:
        converted = convert_released(state, head)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{os.path.abspath(args.input)}: {error.args[0]}") from None
    wanted = model.state_dict()
    wrong = [name for name in converted if name in wanted and wanted[name].shape != converted[name].shape]
    if wrong:
        raise ValueError(f"{os.path.abspath(args.input)}: shapes do not fit the configuration: {', '.join(wrong)}")
    os.makedirs(os.path.dirname(os.path.abspath(args.output)), exist_ok=True)
    # torch.save by itself turns a full disk into a RuntimeError
    with whole_file(args.output) as temporary, open(temporary, "wb") as file:
        torch.save({"model": converted}, file)
    left, unknown = (sorted(some) for some in (wanted.keys() - converted.keys(), converted.keys() - wanted.keys()))
    words = [f"{args.output}: {len(converted)} tensors"]
    for names, what in ((left, "are the configured model's alone"), (unknown, "it does not know")):
        words += [f"{len(names)} {what} ({first_few(names, 3)})"] * bool(names)
    print("; ".join(words))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config-file", required=True, metavar="FILE", help="configuration of the model")
    parser.add_argument("input", help="checkpoint of the released code")
    parser.add_argument("output", help="checkpoint to write")
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="KEY VALUE overrides of the configuration, last")
    with one_line_errors():
        convert(parser.parse_args())
