"""What a cell consists of: fast forms serve only cells that are as their constructors left them."""

from typing import Iterable

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# the second is where a convolution does its work
_METHODS = ("forward", "_conv_forward")


def parts_of(cell: nn.Module) -> tuple:
    """Names, types and settings of a cell's modules, and names and shapes of its parameters and of its buffers."""
    modules = tuple((name, type(module), module.extra_repr()) for name, module in cell.named_modules())
    return modules, _shapes(cell.named_parameters()), _shapes(cell.named_buffers())


def _shapes(named: Iterable[tuple[str, Tensor]]) -> tuple:
    return tuple(sorted((name, tuple(tensor.shape)) for name, tensor in named))


def as_made(cell: nn.Module) -> bool:
    """Whether a cell is as its constructor left it, which put ``parts_of`` into its ``made_of``.

    False with hooks on any part or on all modules, a method of ``_METHODS`` put into an instance, exchanged or reset modules,
    parametrizations, buffers such as running statistics, weights shared by two parts, and for replicas of nn.DataParallel,
    which have no parameters.
    """
    changed = (any(vars(module).get(name) for name in _METHODS + _HOOKS) for module in cell.modules())
    # PyTorch 2.6 has no function that asks for them all
    on_all_modules = (getattr(torch_module, "_global" + name) for name in _HOOKS)
    if any(on_all_modules) or any(changed):
        return False
    return getattr(cell, "made_of", None) == parts_of(cell)
