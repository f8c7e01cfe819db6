"""Evaluation mode of networks that act: without dropout, and with fixed statistics."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

MODAL = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)  # layers of torch that differ in training
UNIFORM = ("torch", "rlrun")  # packages whose other modules are equal in both modes


def parts_of(network: Any) -> list[nn.Module]:
    """Return the modules of a network, with those of borrowed networks."""
    modules = [*network.modules()] if isinstance(network, nn.Module) else []
    return modules + [part for user in modules for lent in getattr(user, "_borrowed", ()) for part in parts_of(lent)]


def modal_parts(network: Any) -> list[nn.Module]:
    """Return the modules of `parts_of` that may compute differently in training."""
    parts = parts_of(network)
    return [part for part in parts if isinstance(part, MODAL) or type(part).__module__.partition(".")[0] not in UNIFORM]


@contextmanager
def evaluating(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Set modules, without their submodules, to evaluation mode during the context."""
    modes = [part.training for part in parts]
    for part in parts:
        part.training = False
    try:
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode


def evaluation_mode(*networks: Any) -> AbstractContextManager[None]:
    """Return a context in which networks are in evaluation mode; other arguments are ignored."""
    return evaluating([part for network in networks for part in parts_of(network)])
