"""What a checkpoint and the run that goes on with it must have in common, what stays the checkpoint's, and the log."""

import json
import os

import torch
from detectron2.config import CfgNode
from detectron2.utils import comm

from rfpn.analysis.logs import of_a_step
from rfpn.config import flatten, read_settings, settings_of

# keys whose values a checkpoint brings along, in its optimizer's state or as its seed
_RESTORED = ("SEED", "SOLVER.BASE_LR", "SOLVER.BIAS_LR_FACTOR", "SOLVER.LR_FACTORS", "SOLVER.MOMENTUM", "SOLVER.NESTEROV")
_RESTORED += ("SOLVER.WEIGHT_DECAY", "SOLVER.WEIGHT_DECAY_BIAS", "SOLVER.WEIGHT_DECAY_NORM")
# keys that Detectron2 scales to the number of processes and that change what an iteration does
_SCALED = ("SOLVER.IMS_PER_BATCH", "SOLVER.BASE_LR")
# beginnings of the keys that shape the weights of a run, and keys that begin so but do not
_LEARNT = ("MODEL.", "INPUT.", "DATASETS.TRAIN")
_OF_A_MACHINE = ("MODEL.WEIGHTS", "MODEL.DEVICE", "MODEL.ALLOW_MISSING_WEIGHTS")
_DECOUPLED = "decoupled_weight_decay"


def changed_keys(cfg: CfgNode) -> tuple[list[str], list[str]]:
    """What differs from the ``config.yaml`` of the run in ``OUTPUT_DIR``, as "KEY old -> new".

    Nothing on processes other than the main one, and where there is no run to go on with.

    Returns:
        What weights were trained with (model, input and training data); what the checkpoint brings along.
    """
    path = os.path.join(cfg.OUTPUT_DIR, "config.yaml")
    if not comm.is_main_process() or not all(map(os.path.isfile, (path, os.path.join(cfg.OUTPUT_DIR, "last_checkpoint")))):
        return [], []
    try:
        old, new = read_settings(path), settings_of(cfg)
    except ValueError:  # damaged; it is about to be written anew
        return [], []
    changes = {key: f"{key} {old[key]} -> {new[key]}" for key in new if key in old and old[key] != new[key]}
    learnt = [key for key in changes if key.startswith(_LEARNT) and "TEST" not in key and key not in _OF_A_MACHINE]
    # a negative SEED asks for none
    restored = [key for key in _RESTORED if key in changes and not (key == "SEED" and new[key] < 0)]
    # BASE_LR as written then stands for another number of processes: the trainer compares the rates in force
    if "SOLVER.REFERENCE_WORLD_SIZE" in changes and "SOLVER.BASE_LR" in restored:
        restored.remove("SOLVER.BASE_LR")
    return [changes[key] for key in learnt], [changes[key] for key in restored]


def settings_in_force(cfg: CfgNode) -> dict:
    """Values by key that a checkpoint keeps of a configuration that was scaled to the number of processes."""
    values = flatten(cfg)
    return {key: values[key] for key in dict.fromkeys((*_RESTORED, *_SCALED))}


def record_in_force(written: CfgNode, cfg: CfgNode, kept: dict) -> CfgNode:
    """A configuration as it was written, but with the values that stay a checkpoint's.

    Args:
        cfg: the same, scaled to the number of processes. kept: :func:`settings_in_force` of the checkpoint.
    """
    own, record = settings_in_force(cfg), written.clone()
    record.defrost()
    for key in _RESTORED:
        value = kept.get(key, own[key])
        if value != own[key]:
            if key == "SOLVER.BASE_LR" and cfg.SOLVER.REFERENCE_WORLD_SIZE:
                value *= written.SOLVER.REFERENCE_WORLD_SIZE / cfg.SOLVER.REFERENCE_WORLD_SIZE
            record.merge_from_list([key, value])
    return record


def scaling_conflict(state: dict, written: CfgNode, cfg: CfgNode) -> str | None:
    """What forbids to resume a run whose batch size, rate and schedule were scaled otherwise, with the remedy, or None.

    Args:
        state: of the checkpoint's trainer. Those of older versions lack some of it, which is taken to be the same.
        written, cfg: as in :func:`record_in_force`.
    """
    own, kept = settings_in_force(cfg), state.get("in_force", {})
    before, now = state.get("scaled_to", 0), cfg.SOLVER.REFERENCE_WORLD_SIZE
    remedy = "set SOLVER.REFERENCE_WORLD_SIZE 0 and the values in its log"
    if before and now and before != now:
        scaled = f"its batch size and schedule were scaled to {before} processes and would be to {now}"
        return f"{scaled}; use {before} processes, or {remedy}"
    reference = written.SOLVER.REFERENCE_WORLD_SIZE
    alike = before == now and state.get("reference", reference) == reference
    if alike or all(kept.get(key, own[key]) == own[key] for key in _SCALED):
        return None
    had, would = (" and ".join(f"{key} {values[key]}" for key in _SCALED) for values in (kept, own))
    return f"it was trained with {had}, and SOLVER.REFERENCE_WORLD_SIZE {reference} would make that {would}; {remedy}"


def trained_names(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Names of the parameters that are trained, in the optimizer's order."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]


def has_shapes(optimizer_state: dict, optimizer: torch.optim.Optimizer) -> bool:
    """Whether the moments in a state are shaped like an optimizer's parameters, which fused kernels do not check."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = ((i, value) for i, values in optimizer_state["state"].items() for value in values.values())
    return all(value.shape == parameters[i].shape for i, value in moments if torch.is_tensor(value) and value.dim())


def same_kind(saved: dict, state: dict) -> bool:
    """Whether two states are of one kind of optimizer, with as many parameters in each group.

    The kind shows in few settings: others come and go with versions of torch.
    """
    before, now = saved["param_groups"], state["param_groups"]
    return len(before) == len(now) and all(
        len(old["params"]) == len(new["params"])
        and {"betas", "momentum"} & old.keys() == {"betas", "momentum"} & new.keys()
        # tells Adam from AdamW
        and old.get(_DECOUPLED, new.get(_DECOUPLED)) == new.get(_DECOUPLED)
        for old, new in zip(before, now)
    )


def cut_log(path: str, iteration: int, scores: bool = True) -> None:
    """Leave out of a log of one JSON object a line what is of ``iteration`` or later, and all from an incomplete line on.

    ``scores``: keep those of an evaluation right before ``iteration``.
    """
    if not os.path.isfile(path):
        return
    kept = []
    # the trainer's writer has the file open to append, so it is shortened in place
    with open(path, "rb+") as file:
        for line in file:
            try:
                record = json.loads(line)
                goes_on = record["iteration"] < iteration + (scores and not of_a_step(record))
            except (AttributeError, ValueError, KeyError, TypeError):
                break
            if not line.endswith(b"\n"):
                break
            # scores may stand behind the line of a later iteration
            kept += [line] * goes_on
        file.seek(0)
        file.writelines(kept)
        file.truncate()
