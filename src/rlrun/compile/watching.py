"""What hooks do besides computing, while a graph is made of them: attributes, generators, and what they gather."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any

import numpy as np
from torch import Tensor, nn

from rlrun.compile.places import TORCH_OWN, Scope
from rlrun.compile.untraceable import Untraceable, first_line
from rlrun.training.callback import Callback

ABSENT = object()  # what an attribute is that the class has, or nobody, and not the object
_OF_CLASSES = (int, float, str, type(None), tuple, np.ndarray, np.generic)  # looked at where a class has them, too
_PARTS = ("_parameters", "_buffers", "_modules")  # where modules look once they have no such attribute


class Watch:
    """Attributes of objects that hooks read and write.

    Attributes:
        reads: what the graph assumes: attributes of an object, a name, and its value.
        read: all that was read: the id of the object's attributes, and the name.
        written: likewise, since it was last cleared.
    """

    def __init__(self) -> None:
        self.reads: list[tuple[dict[str, Any], str, Any]] = []
        self.read: set[tuple[int, str]] = set()
        self.written: set[tuple[int, str]] = set()
        self._noted: set[tuple[int, str]] = set()

    def note(self, attributes: dict[str, Any], name: str, had: Any) -> None:
        """Note what a graph takes for granted, once."""
        if (id(attributes), name) not in self._noted:
            self._noted.add((id(attributes), name))
            self.reads.append((attributes, name, had))

    @contextmanager
    def over(self, objects: Sequence[Any]) -> Iterator[None]:
        """Note what is read and written of objects; tensors, and what modules keep by names of torch's, lie in places.

        Not what was written before: a graph makes that itself.

        Raises:
            Untraceable: a callback or a module cannot be looked at.
        """
        begun = {id(instance): dict(vars(instance)) for instance in objects}
        watch = self

        class Watched:
            def __getattribute__(self, name: str) -> Any:
                attributes: dict[str, Any] = super().__getattribute__("__dict__")
                had = begun[id(self)].get(name, ABSENT)
                try:
                    value = super().__getattribute__(name)
                except AttributeError:
                    if had is ABSENT and not any(name in attributes.get(part, ()) for part in _PARTS):
                        watch.note(attributes, name, ABSENT)
                        watch.read.add((id(attributes), name))
                    raise
                own = had is value and name not in TORCH_OWN and not isinstance(value, Tensor)
                if own or (isinstance(value, _OF_CLASSES) and (had is value or had is ABSENT)):
                    watch.note(attributes, name, had)
                watch.read.add((id(attributes), name))
                return value

            def __setattr__(self, name: str, value: Any) -> None:
                watch.written.add((id(super().__getattribute__("__dict__")), name))
                super().__setattr__(name, value)

        watched: list[tuple[Any, type]] = []
        try:
            for instance in objects:
                kind = type(instance)
                try:
                    object.__setattr__(instance, "__class__", type(kind.__name__, (Watched, kind), {}))
                except Exception as error:  # its class has slots, or minds what is derived from it
                    if isinstance(instance, Callback | nn.Module):
                        raise Untraceable(None, f"{kind.__name__} cannot be looked at: {first_line(error)}") from error
                else:
                    watched.append((instance, kind))
            yield
        finally:
            for instance, kind in watched:
                object.__setattr__(instance, "__class__", kind)


@contextmanager
def blamed(number: int, scope: Scope) -> Iterator[None]:
    """Say which hook it was that failed, drew numbers that no graph draws, or gathered something."""
    drawn, gathered = _drawn(scope), [list(container) for container in scope.gathering]
    try:
        yield
    except Untraceable:
        raise
    except Exception as error:
        raise Untraceable(number, first_line(error)) from error
    finally:
        moved = not _same(drawn, _drawn(scope))
        if moved:
            _put_back(drawn, scope)
        more = not all(map(unchanged, scope.gathering, gathered))
        for container, before in zip(scope.gathering, gathered, strict=True) if more else ():
            container.clear()
            container.extend(before) if isinstance(container, deque) else container.update(before)
    if moved:
        raise Untraceable(number, "it draws numbers that torch does not draw")
    if more:
        raise Untraceable(number, "it gathers something from update to update")


def unchanged(gathering: Any, before: list[Any]) -> bool:
    """Tell whether a deque or a set holds what it held."""
    return len(gathering) == len(before) and all(map(is_, gathering, before))


def _drawn(scope: Scope) -> list[Any]:
    """Return where generators stand."""
    return [random.getstate(), np.random.get_state(), *map(_state, scope.generators)]


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate()


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, dict):
        return all(_same(before[key], after[key]) for key in before)
    if isinstance(before, list | tuple):
        return all(map(_same, before, after))
    return bool(np.array_equal(before, after)) if isinstance(before, np.ndarray | Tensor) else bool(before == after)


def _put_back(drawn: list[Any], scope: Scope) -> None:
    random.setstate(drawn[0])
    np.random.set_state(drawn[1])
    for generator, state in zip(scope.generators, drawn[2:], strict=True):
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(state)
        else:
            generator.setstate(state)
