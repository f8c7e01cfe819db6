"""What hooks do while a graph is made of them, and what they leave behind."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun.callback import Callback
from rlrun.callbacks.loss import LossCallback
from rlrun.fused import hooks
from rlrun.fused.adam import Moments
from rlrun.fused.asked import Asked, Given
from rlrun.fused.places import Held, entries, leaves, rebuilt, standing_in
from rlrun.routing import Step
from rlrun.typing import Groups

ABSENT = object()  # what an attribute is that the class has, and not the object
_TAKEN = (int, float, str, type(None), tuple, np.ndarray)


class Untraceable(Exception):
    """What a hook does hangs on more than a graph reads, or it writes more than tensors.

    Attributes:
        step: number of the hook; None = all of them.
    """

    def __init__(self, step: int | None, why: str) -> None:
        super().__init__(why)
        self.step = step


class Learning(NamedTuple):
    """A loss whose optimiser steps in the graph.

    Attributes:
        moments: what the optimiser keeps.
        rate: of learning, a number as a tensor.
    """

    callback: LossCallback
    optimiser: torch.optim.Optimizer
    moments: Moments
    rate: Tensor


class Result(NamedTuple):
    """Something that hooks leave behind.

    Attributes:
        group: the data group that it goes to; None = the holder.
        holder: attributes of an object, a list or a dict.
        tree: with leaves of any kind.
        places: of each leaf: which output, what is given, which number, or what is known already.
        fixed: of the last of these.
    """

    group: str | None
    holder: Any
    key: Any
    tree: Any
    places: list[tuple[str, int]]
    fixed: list[Any]

    @property
    def output(self) -> int | None:
        """The number of the output that a holder gets as it is; None where it is more, or something else."""
        alone = self.group is None and self.tree is None and self.places[0][0] == "output"
        return self.places[0][1] if alone else None

    def goes_to(self, group: str | None, holder: Any, key: Any) -> bool:
        """Tell whether it goes there."""
        return self.holder is holder and self.key == key and self.group == group

    def put(self, groups: Groups, outputs: Sequence[Tensor], given: Given) -> None:
        """Write it to where the hooks would."""
        sources: dict[str, Sequence[Any]] = {
            "output": outputs, "given": given.tensors, "number": given.numbers, "known": self.fixed
        }  # fmt: skip
        made = rebuilt(self.tree, iter([sources[kind][number] for kind, number in self.places]))
        if self.group is not None:
            groups[self.group][self.key] = made
        else:
            self.holder[self.key] = made


class Trace:
    """Calls hooks with stand-ins, and notes what they read that is no tensor, and what they leave behind.

    Args:
        steps: the hooks.
        held: by their callbacks.
        learning: losses among them that step an optimiser.
        due: whether losses are learned from and slow copies move, by the identity of whose they are.
    """

    def __init__(
        self, steps: Sequence[Step], held: Held, learning: Sequence[Learning], due: Mapping[int, bool]
    ) -> None:
        self.steps = steps
        self.held = held
        self.learning = learning
        self.due = due
        self.reads: list[tuple[dict[str, Any], str, Any]] = []
        self.results: list[Result] = []
        self.gradients: list[tuple[Tensor, int | None]] = []  # of each parameter: an output
        self._outputs: dict[int, tuple[int, Tensor]] = {}  # by the identity of what is put out
        self._callbacks = list({id(step.callback): step.callback for step in steps}.values())
        self._parameters = {id(each.callback): [*each.callback.parameters] for each in learning}

    def __call__(
        self, asked: Asked, groups: Groups, given: Given, numbers: Sequence[Tensor], others: Mapping[int, Tensor]
    ) -> list[Tensor]:
        """Return what hooks make: the outputs of the graph.

        others: stand-ins, by the identity of what they stand for.
        """
        tensors, floats = [others[id(each)] for each in given.tensors], [others[id(each)] for each in numbers]
        data = asked.instead(groups, iter(tensors), iter(floats))
        known = {id(each): ("given", place) for place, each in enumerate(tensors)}
        known |= {id(each): ("number", place) for place, each in enumerate(floats)}
        traced = hooks.Traced(
            others,
            {id(each.callback): others[id(each.rate)] for each in self.learning},
            {id(each.callback): each.moments for each in self.learning},
            self.due,
        )
        with standing_in(self.held, others) as before, _watched(self.held.objects, self.reads):
            for number, step in enumerate(self.steps):
                group = step.callback.data_group or ""
                with _blamed(number, self.held):
                    result = hooks.call(step, data[group], traced) or {}
                    data[group].update(result)
                    self._note_changes(number, before, known)
                for name, tree in result.items():
                    self._note(group, None, name, tree, known)
            for each in self.learning:
                for real, stood in zip(self._parameters[id(each.callback)], each.callback.parameters, strict=True):
                    self.gradients.append((real, None if stood.grad is None else self._output(stood.grad)))
        return [tensor for _, tensor in self._outputs.values()]

    def _note_changes(self, number: int, before: list[dict[Any, Any]], known: Mapping[int, tuple[str, int]]) -> None:
        """Note what a hook has written since; attributes of callbacks may be anything, all else tensors."""
        own = {id(vars(callback)) for callback in self._callbacks}
        for holder, had in zip(self.held.holders, before, strict=True):
            now = dict(entries(holder))
            for key, tree in now.items():
                if key in had and tree is had[key]:
                    continue
                if id(holder) not in own and not isinstance(tree, Tensor):
                    raise Untraceable(number, f"it writes '{key}', which is no tensor")
                if key not in had:  # a hook may ask whether it is there
                    if isinstance(holder, list):
                        raise Untraceable(number, "it makes a list longer")
                    self.reads.append((holder, key, ABSENT))
                self._note(None, holder, key, tree, known)
                had[key] = tree
            if len(had) > len(now):
                raise Untraceable(number, "it deletes what it held")

    def _output(self, tensor: Tensor) -> int:
        """Put a tensor out, once; return the number of the output."""
        number, _ = self._outputs.setdefault(id(tensor), (len(self._outputs), tensor))
        return number

    def _note(self, group: str | None, holder: Any, key: Any, tree: Any, known: Mapping[int, tuple[str, int]]) -> None:
        places: list[tuple[str, int]] = []
        fixed: list[Any] = []
        for leaf in leaves(tree):
            if id(leaf) in known:
                places.append(known[id(leaf)])
            elif isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
                raise Untraceable(None, f"'{key}' is a size, and sizes differ")
            elif isinstance(leaf, Tensor):
                places.append(("output", self._output(leaf)))
            else:
                places.append(("known", len(fixed)))
                fixed.append(leaf)
        form = rebuilt(tree, iter([None] * len(places)))  # stand-ins are not kept
        self.results = [
            each for each in self.results if not (each.holder is holder and each.key == key and each.group == group)
        ]
        self.results.append(Result(group, holder, key, form, places, fixed))


def first_line(error: Exception) -> str:
    """Return the first line of what an error says; torch's say many."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def _watched(objects: Sequence[Any], reads: list[tuple[dict[str, Any], str, Any]]) -> Iterator[None]:
    """Note the attributes of objects that are read and are numbers, words or nothing: a graph takes them for granted.

    Not those that were written before: it makes them itself.
    """
    begun = {id(each): dict(vars(each)) for each in objects}
    noted: set[tuple[int, str]] = set()

    class Watched:
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            had = begun[id(self)].get(name, ABSENT)
            taken = isinstance(value, _TAKEN) or (isinstance(value, dict | list) and isinstance(self, Callback))
            if taken and (had is value or had is ABSENT) and (id(self), name) not in noted:
                noted.add((id(self), name))
                reads.append((super().__getattribute__("__dict__"), name, had))
            return value

    watched: list[tuple[Any, type]] = []
    try:
        for each in objects:
            kind = type(each)
            with suppress(TypeError):  # its class has slots
                object.__setattr__(each, "__class__", type(kind.__name__, (Watched, kind), {}))
                watched.append((each, kind))
        yield
    finally:
        for each, kind in watched:
            object.__setattr__(each, "__class__", kind)


@contextmanager
def _blamed(number: int, held: Held) -> Iterator[None]:
    """Say which hook it was that failed, drew numbers that no graph draws, or gathered something."""
    drawn, gathered = _drawn(held), [list(each) for each in held.gathering]
    try:
        yield
    except Untraceable:
        raise
    except Exception as error:
        raise Untraceable(number, first_line(error)) from error
    finally:
        moved = not _same(drawn, _drawn(held))
        if moved:
            _put_back(drawn, held)
        more = [len(each) for each in gathered] != list(map(len, held.gathering))
        for each, before in zip(held.gathering, gathered, strict=True) if more else ():
            each.clear()
            each.extend(before) if isinstance(each, deque) else each.update(before)
    if moved:
        raise Untraceable(number, "it draws numbers that torch does not draw")
    if more:
        raise Untraceable(number, "it gathers something from update to update")


def _drawn(held: Held) -> list[Any]:
    """Return where generators stand."""
    return [
        random.getstate(),
        np.random.get_state(),
        *(each.bit_generator.state for each in held.generators),
    ]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return all(map(_same, one, other))
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray | Tensor) else bool(one == other)


def _put_back(drawn: list[Any], held: Held) -> None:
    random.setstate(drawn[0])
    np.random.set_state(drawn[1])
    for generator, state in zip(held.generators, drawn[2:], strict=True):
        generator.bit_generator.state = state
