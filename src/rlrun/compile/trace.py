"""What hooks do while a graph is made of them, and what they leave behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun.callbacks.loss import LossCallback
from rlrun.compile import hooks
from rlrun.compile.adam import Moments
from rlrun.compile.hooks import Inputs, Wanted
from rlrun.compile.places import Scope, entries, leaves, rebuilt, standing_in
from rlrun.compile.untraceable import Untraceable
from rlrun.compile.watching import ABSENT, Watch, blamed
from rlrun.core.typing import Groups
from rlrun.training.wiring import HookCall

# What an update may leave behind besides tensors; anything else may hold some, which stand for others meanwhile.
_PLAIN = (int, float, complex, str, bytes, type(None), Enum, type, np.generic, np.ndarray)
_PLAIN_OF_TORCH = (torch.dtype, torch.device, torch.Size)


class Learning(NamedTuple):
    """A loss whose optimizer steps in the graph.

    Attributes:
        moments: what the optimizer keeps.
        rate: of learning, a number as a tensor.
    """

    callback: LossCallback
    optimizer: torch.optim.Optimizer
    moments: Moments
    rate: Tensor


class TraceResult(NamedTuple):
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

    def put(self, groups: Groups, outputs: Sequence[Tensor], inputs: Inputs) -> None:
        """Write it to where the hooks would."""
        sources: dict[str, Sequence[Any]] = {
            "output": outputs, "given": inputs.tensors, "number": inputs.numbers, "known": self.fixed
        }  # fmt: skip
        value = rebuilt(self.tree, iter([sources[kind][number] for kind, number in self.places]))
        if self.group is not None:
            groups[self.group][self.key] = value
        else:
            self.holder[self.key] = value


class Trace:
    """Calls hooks with stand-ins, and notes what they read that is no tensor, and what they leave behind.

    Args:
        steps: the hooks.
        scope: of their callbacks.
        learning: losses among them that step an optimizer.
        due: maps `id(callback)` to whether its loss steps, or its target network moves.
    """

    def __init__(
        self, steps: Sequence[HookCall], scope: Scope, learning: Sequence[Learning], due: Mapping[int, bool]
    ) -> None:
        self.steps = steps
        self.scope = scope
        self.learning = learning
        self.due = due
        self.watch = Watch()
        self.results: list[TraceResult] = []
        self.gradients: list[tuple[Tensor, int | None]] = []  # of each parameter: an output
        self._outputs: dict[int, tuple[int, Tensor]] = {}  # by the identity of what is put out
        self._callbacks = list({id(step.callback): step.callback for step in steps}.values())
        self._objects = set(map(id, scope.objects))
        self._parameters = {id(loss.callback): [*loss.callback.parameters] for loss in learning}

    def __call__(
        self, wanted: Wanted, groups: Groups, inputs: Inputs, numbers: Sequence[Tensor], stand_ins: Mapping[int, Tensor]
    ) -> list[Tensor]:
        """Return what hooks make: the outputs of the graph.

        stand_ins: by the identity of what they stand for.
        """
        tensors = [stand_ins[id(tensor)] for tensor in inputs.tensors]
        floats = [stand_ins[id(number)] for number in numbers]
        data = wanted.instead(groups, iter(tensors), iter(floats))
        known = {id(tensor): ("given", place) for place, tensor in enumerate(tensors)}
        known |= {id(value): ("number", place) for place, value in enumerate(floats)}
        traced = hooks.Traced(
            stand_ins,
            {id(loss.callback): stand_ins[id(loss.rate)] for loss in self.learning},
            {id(loss.callback): loss.moments for loss in self.learning},
            self.due,
        )
        with standing_in(self.scope, stand_ins) as before, self.watch.over(self.scope.objects):
            for number, step in enumerate(self.steps):
                group = step.callback.data_group or ""
                with blamed(number, self.scope):
                    result = hooks.call(step, data[group], traced) or {}
                    data[group].update(result)
                    self._note_changes(number, before, known)
                if step.event == "begin_batch" and any(
                    getattr(leaf, "requires_grad", False) for leaf in leaves(result)
                ):
                    raise Untraceable(number, "it hands on a gradient, which ends where a graph does")
                for name, tree in result.items():
                    self._note(number, group, None, name, tree, known)
            for loss in self.learning:
                for real, stood in zip(self._parameters[id(loss.callback)], loss.callback.parameters, strict=True):
                    self.gradients.append((real, None if stood.grad is None else self._output(stood.grad)))
        return [tensor for _, tensor in self._outputs.values()]

    def _note_changes(self, number: int, before: list[dict[Any, Any]], known: Mapping[int, tuple[str, int]]) -> None:
        """Note what a hook has written since; attributes of callbacks may be anything, all else tensors."""
        own = {id(vars(callback)) for callback in self._callbacks}
        for holder, had in zip(self.scope.holders, before, strict=True):
            now = dict(entries(holder))
            for key, tree in now.items():
                # somebody else may write there between two updates
                again = id(holder) in own and (id(holder), key) in self.watch.written and not isinstance(tree, Tensor)
                if key in had and tree is had[key] and not again:
                    continue
                if id(holder) not in own and not isinstance(tree, Tensor):
                    raise Untraceable(number, f"it writes '{key}', which is no tensor")
                if key not in had:  # a hook may ask whether it is there
                    if isinstance(holder, list):
                        raise Untraceable(number, "it makes a list longer")
                    self.watch.note(holder, key, ABSENT)
                self._note(number, None, holder, key, tree, known)
                had[key] = tree
            if len(had) > len(now):
                raise Untraceable(number, "it deletes what it held")
        self.watch.written.clear()

    def _output(self, tensor: Tensor) -> int:
        """Put a tensor out, once; return the number of the output."""
        number, _ = self._outputs.setdefault(id(tensor), (len(self._outputs), tensor))
        return number

    def _note(
        self, number: int, group: str | None, holder: Any, key: Any, tree: Any, known: Mapping[int, tuple[str, int]]
    ) -> None:
        places: list[tuple[str, int]] = []
        fixed: list[Any] = []
        for leaf in leaves(tree):
            if id(leaf) in known:
                places.append(known[id(leaf)])
            elif isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
                raise Untraceable(number, f"'{key}' is a size, and sizes differ")
            elif isinstance(leaf, Tensor):
                places.append(("output", self._output(leaf)))
            elif isinstance(leaf, (*_PLAIN, *_PLAIN_OF_TORCH)) or id(leaf) in self._objects:
                places.append(("known", len(fixed)))
                fixed.append(leaf)
            else:
                raise Untraceable(number, f"it leaves '{key}', which holds a {type(leaf).__name__}")
        form = rebuilt(tree, iter([None] * len(places)))  # stand-ins are not kept
        self.results = [
            old for old in self.results if not (old.holder is holder and old.key == key and old.group == group)
        ]
        self.results.append(TraceResult(group, holder, key, form, places, fixed))
