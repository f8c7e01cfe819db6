"""Where the tensors lie that an update reads and writes, and how others take their place while it is traced."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.nn import Follow, Stepper
from rlrun.training.callback import Callback

# What has its own lists of tensors that lie elsewhere, too.
_APART = (Follow, Stepper, torch.optim.Optimizer)
_ENDS = (str, bytes, int, float, bool, type(None), *_APART)
# What modules have for themselves; it changes by their own doing, and is seen where it leads to tensors.
TORCH_OWN = frozenset(vars(nn.Module()))
_NOT_OF_UPDATES = ("rlrun.memory", "rlrun.collect", "rlrun.env", "rlrun.core.spaces")


class Buffer(NamedTuple):
    """An entry of an object's attributes, or of a list or a dict that it holds.

    Attributes:
        way: the entries that lead there, each with what it holds.
    """

    owner: Any
    key: Any
    way: tuple[tuple[Any, Any, Any], ...] = ()

    def read(self) -> Any:
        return self.owner[self.key]


class Scope:
    """All that callbacks hold, they themselves and their networks, as far as an update may read it.

    Attributes:
        places: of tensors.
        holders: dicts and lists that were gone through, among them the attributes of objects.
        objects: whose attributes these are.
        modules: those of torch among them.
        containers: holders that are no attributes of an object.
        gathering: deques and sets, which an update may add to and a graph does not.
        below: maps the id of each container or gathering object to the attribute that holds it: id of the holder, name.
        generators: of numpy and of python, whose draws no graph repeats.
        recurrent: whether a layer is recurrent; such layers keep lists of their own parameters.
    """

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.places: list[Buffer] = []
        self.holders: list[Any] = []
        self.objects: list[Any] = []
        self.modules: list[nn.Module] = []
        self.containers: list[Any] = []
        self.gathering: list[Any] = []
        self.below: dict[int, tuple[int, str]] = {}
        self.generators: list[np.random.Generator | np.random.RandomState | random.Random] = []
        self.recurrent = False
        self._seen: set[int] = set()
        self._attributes: set[int] = set()  # of objects, by identity
        for callback in callbacks:
            self._look(callback, ())

    def _look(self, part: Any, way: tuple[tuple[Any, Any, Any], ...]) -> None:
        if isinstance(part, _ENDS) or id(part) in self._seen:
            return
        self._seen.add(id(part))
        if isinstance(part, dict | list):
            self._go_through(part, way, inside=bool(way) and way[-1][1] in TORCH_OWN)
        elif isinstance(part, tuple):  # nobody writes into it
            for element in part:
                self._look(element, way)
        elif isinstance(part, deque | set):
            self.gathering.append(part)
            self._note_attribute(part, way)
        elif isinstance(part, np.random.Generator | np.random.RandomState | random.Random):
            self.generators.append(part)
        elif _may_be_read(part) and hasattr(part, "__dict__"):
            self.recurrent |= isinstance(part, nn.RNNBase)
            self.objects.append(part)
            if isinstance(part, nn.Module):
                self.modules.append(part)
            self._attributes.add(id(vars(part)))
            self._go_through(vars(part), way, inside=True)

    def _go_through(self, holder: Any, way: tuple[tuple[Any, Any, Any], ...], *, inside: bool) -> None:
        self.holders.append(holder)
        if not inside:
            self.containers.append(holder)
            self._note_attribute(holder, way)
        for key, value in entries(holder):
            if isinstance(value, Tensor):
                self.places.append(Buffer(holder, key, way))
            else:
                self._look(value, (*way, (holder, key, value)))

    def _note_attribute(self, part: Any, way: tuple[tuple[Any, Any, Any], ...]) -> None:
        """Note in which attribute something lies."""
        for holder, key, _ in reversed(way):
            if id(holder) in self._attributes:
                self.below[id(part)] = (id(holder), key)
                return


def _may_be_read(part: Any) -> bool:
    """Tell whether an update may read what an object has: networks, callbacks, and parts of ours but for the memory."""
    if isinstance(part, nn.Module | Callback):
        return True
    home = type(part).__module__
    return home.startswith("rlrun.") and not home.startswith(_NOT_OF_UPDATES)


def entries(holder: Any) -> list[tuple[Any, Any]]:
    """Return the keys and values of a dict, or the numbers and entries of a list."""
    return list(holder.items() if isinstance(holder, dict) else enumerate(holder))


@contextmanager
def standing_in(scope: Scope, stand_ins: Mapping[int, Tensor]) -> Iterator[list[dict[Any, Any]]]:
    """Let others stand where tensors lie, found by the identity of these; all that is written meanwhile is undone.

    Yields what each of the holders had then.
    """
    before = [dict(entries(holder)) for holder in scope.holders]
    try:
        for place in scope.places:
            place.owner[place.key] = stand_ins[id(place.read())]
        yield [dict(entries(holder)) for holder in scope.holders]
    finally:
        for holder, had in zip(scope.holders, before, strict=True):
            if isinstance(holder, dict):
                holder.clear()
                holder.update(had)
            else:
                holder[:] = had.values()


def leaves(tree: Any) -> list[Any]:
    """Return what lies in dicts, tuples and lists, in their order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, tuple | list):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


def structure(tree: Any) -> Any:
    """Return the keys and types of dicts, tuples and lists, without what lies in them."""
    if isinstance(tree, dict):
        return tuple((key, structure(value)) for key, value in tree.items())
    if isinstance(tree, tuple | list):
        return (type(tree), *map(structure, tree))
    return None


def rebuilt(tree: Any, values: Iterator[Any]) -> Any:
    """Return a tree of the same form with other leaves."""
    if isinstance(tree, dict):
        result = {} if type(tree) is dict else copy.copy(tree)
        result.update({key: rebuilt(value, values) for key, value in tree.items()})
        return result
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(rebuilt(value, values) for value in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(rebuilt(value, values) for value in tree)
    return next(values)
