"""The modules that hooks of an update reach, whose parameters and buffers they may read and write."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from rlrun.nn import Follow
from rlrun.training.callback import Callback

Place = tuple[dict[str, Any], str]  # a module's parameters or buffers, and a name
OUTSIDE = ("rlrun.memory", "rlrun.collect", "rlrun.env", "rlrun.core", "torch.optim", "torch.utils")


def modules_of(callbacks: Iterable[Callback]) -> list[nn.Module]:
    """Return the modules that callbacks hold, directly or through other objects, in a fixed order."""
    return [part for part in parts_of(callbacks) if isinstance(part, nn.Module)]


def parts_of(callbacks: Iterable[Callback]) -> list[Any]:
    """Return what callbacks hold, but for tensors and what belongs to memory, collection and environments."""
    parts: dict[int, Any] = {}
    pending: list[Any] = list(callbacks)[::-1]
    while pending:
        part = pending.pop()
        if id(part) in parts or isinstance(part, Tensor | str | int | float | type | Follow) or part is None:
            continue
        parts[id(part)] = part
        pending += _parts(part)[::-1]
    return list(parts.values())


def _parts(part: Any) -> list[Any]:
    if isinstance(part, Mapping):
        return list(part.values())
    if isinstance(part, list | tuple):
        return list(part)
    if isinstance(part, functools.partial):
        return [part.func, *part.args, *part.keywords.values()]
    if hasattr(part, "__self__"):  # a bound method
        return [part.__self__]
    if type(part).__module__.startswith(OUTSIDE) or not hasattr(part, "__dict__"):
        return []
    return list(vars(part).values())


@contextmanager
def swapped(places: Sequence[Place], stand_in: Mapping[int, Tensor]) -> Iterator[None]:
    """Have modules hold other tensors, by the id of the ones that they hold."""
    before = [holder[name] for holder, name in places]
    try:
        for (holder, name), tensor in zip(places, before, strict=True):
            holder[name] = stand_in[id(tensor)]
        yield
    finally:
        for (holder, name), tensor in zip(places, before, strict=True):
            holder[name] = tensor
