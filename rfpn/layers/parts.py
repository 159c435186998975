"""What a cell consists of: fast forms serve only cells that are as their constructors left them."""

from torch import nn
from torch.nn.modules.module import _has_any_global_hook

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def parts_of(cell: nn.Module) -> tuple:
    """Names, types and settings of a cell's modules, and names and shapes of its parameters."""
    modules = tuple((name, type(module), module.extra_repr()) for name, module in cell.named_modules())
    return modules, tuple(sorted((name, tuple(p.shape)) for name, p in cell.named_parameters()))


def as_made(cell: nn.Module) -> bool:
    """Whether a cell is as its constructor left it, which put ``parts_of`` into its ``made_of``.

    False with hooks on any part or on all modules, a ``forward`` put into an instance, exchanged or reset modules,
    parametrizations, weights shared by two parts, and for replicas of nn.DataParallel, which have no parameters.
    """
    changed = (vars(module).get("forward") or any(getattr(module, hooks) for hooks in _HOOKS) for module in cell.modules())
    if _has_any_global_hook() or any(changed):
        return False
    return getattr(cell, "made_of", None) == parts_of(cell)
