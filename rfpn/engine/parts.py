"""Parts of a model: those that a configuration names, and its recurrent layers."""

from torch import nn

from rfpn.layers import RecurrentLayer


def find_part(model: nn.Module, key: str, name: str) -> nn.Module:
    """The module of this name, such as "roi_heads.mask_head".

    Raises:
        ValueError: there is none, or it has no parameters, or none that is trained; ``key`` is the configuration's.
    """
    part = dict(model.named_modules()).get(name) if name else None
    if part is None or not any(True for _ in part.parameters()):
        known = ", ".join(child for child, module in model.named_children() if any(True for _ in module.parameters()))
        raise ValueError(f"{key} {name!r} is no module with parameters; there are {known} and those below them")
    if not any(parameter.requires_grad for parameter in part.parameters()):
        raise ValueError(f"{key} {name!r} is frozen throughout; MODEL.BACKBONE.FREEZE_AT and SOLVER.TRAIN_ONLY say what is")
    return part


def recurrent_layers(model: nn.Module) -> list[RecurrentLayer]:
    """All recurrent layers of a model, in the order of its modules."""
    return [module for module in model.modules() if isinstance(module, RecurrentLayer)]
