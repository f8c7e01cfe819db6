"""The mode of networks that act: evaluation, without dropout and with fixed statistics."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from torch import nn

from rlrun.security.trust import within

MODAL = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)  # layers of torch that differ in training
UNIFORM = ("torch", "rlrun")  # packages whose other modules act alike in both modes


def modal_parts(network: Any) -> list[nn.Module]:
    """Return the modules that may act differently in training, of a network and of those that it borrows."""
    modules = [*network.modules()] if isinstance(network, nn.Module) else []
    own = [part for part in modules if isinstance(part, MODAL) or not within(type(part).__module__, UNIFORM)]
    borrowed = [modal_parts(lent) for part in modules for lent in getattr(part, "_borrowed", ())]
    return list(dict.fromkeys(chain(own, *borrowed)))


@contextmanager
def evaluating(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Set modules, not those inside of them, to evaluation mode during the context."""
    modes = [part.training for part in parts]
    for part in parts:
        part.training = False
    try:
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode


@contextmanager
def evaluation_mode(agent: Any) -> Iterator[None]:
    """Set an agent's policy to evaluation mode (no dropout, fixed statistics) during the context."""
    policy = getattr(agent, "policy", None)
    if not isinstance(policy, nn.Module):
        yield
        return
    training = policy.training
    policy.eval()
    try:
        yield
    finally:
        policy.train(training)
