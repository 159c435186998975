"""What PyTorch does around operations on a tensor: autocast, tracing, transforms, counts of changes in place.

Little of it has a public function: the private ones are called here alone.
"""

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The type that autocast computes in on x's device; None where it is off, as it always is for meta tensors."""
    on = not x.is_meta and torch.is_autocast_enabled(x.device.type)
    return torch.get_autocast_dtype(x.device.type) if on else None


def computed_at_once(x: Tensor) -> bool:
    """Whether operations on x are neither traced, compiled, exported nor transformed (torch.func, forward-mode derivatives).

    Otherwise operations must be torch's own, and autograd functions need methods that those of fast forms lack.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or get_proxy_mode() is not None:
        return False
    if isinstance(x, (FakeTensor, FunctionalTensor)):
        return False
    return forward_ad._current_level < 0 and not torch._C._are_functorch_transforms_active()


def leaf_of(state: Tensor) -> Tensor:
    """A leaf with a state's values, which requires grad. RuntimeError under torch.func and vmap, which admit none."""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            "torch.func and vmap serve neither gradient 'rbp' nor a penalty: use gradient 'bptt' without it, or torch.no_grad()"
        )
    return state.detach().requires_grad_()


def version(tensor: Tensor) -> int | None:
    """How often a tensor was changed in place; None where nobody counts: in inference mode, and under a compiler."""
    return None if torch.compiler.is_compiling() or tensor.is_inference() else tensor._version


def changed(tensor: Tensor, before: int | None) -> bool:
    """Whether a tensor was changed in place since :func:`version` gave ``before``; False where either counts nothing."""
    return before is not None and version(tensor) not in (None, before)


def is_batched(tensor: Tensor) -> bool:
    """Whether a tensor is one of vmap's, many in one, as in ``torch.autograd.grad`` with ``is_grads_batched``."""
    kinds = torch._C._functorch
    return kinds.is_legacy_batchedtensor(tensor) or kinds.is_batchedtensor(tensor)


def is_transformed(tensor: Tensor) -> bool:
    """Whether a tensor is of a transform of torch.func or vmap, after which it can be neither read nor copied."""
    if torch.compiler.is_compiling():
        return False
    return is_batched(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
