"""Training parts of a model while the rest stays as it is."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rfpn.engine.parts import find_part


def train_only(model: nn.Module, names: tuple[str, ...]) -> None:
    """Freeze everything but the named modules: their parameters alone get gradients, no other norm changes its statistics.

    Raises:
        ValueError: ``SOLVER.TRAIN_ONLY`` names no module, or one without parameters or with frozen ones alone.
    """
    trained, parts = set(), set()
    for name in names:
        part = find_part(model, "SOLVER.TRAIN_ONLY", name)
        trained.update(part.parameters())
        parts.update(part.modules())
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.requires_grad and parameter in trained)
    for module in model.modules():
        # a hook, because model.train() would set the norm to training again; none on norms that keep no statistics, such as
        # the contour cell's, which would lose its fast form
        if isinstance(module, _BatchNorm) and module.track_running_stats and module not in parts:
            module.register_forward_pre_hook(_evaluate)


def _evaluate(module: nn.Module, _) -> None:
    module.eval()
