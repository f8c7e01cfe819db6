"""Hooks of an update that follow one another, as one graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.callbacks.loss import LossCallback
from rlrun.compile import graph, hooks
from rlrun.compile.adam import Moments
from rlrun.compile.hooks import Inputs, Wanted
from rlrun.compile.places import Scope, entries
from rlrun.compile.trace import Learning, Trace
from rlrun.compile.untraceable import Untraceable, first_line
from rlrun.compile.watching import ABSENT, unchanged
from rlrun.core.typing import Groups
from rlrun.training.wiring import HookCall


class Piece:
    """Hooks as one graph, for the form of what they asked for when it was made.

    Args:
        steps: hooks of targets and losses, one behind the other.
        wanted: what they ask for.
        inputs: what they get now.
        groups: of this update.
        due: maps `id(callback)` to whether its loss steps, or its target network moves, in such an update.
        device: of networks.
        varying: dimensions of each tensor that is given that may have another size the next time; None = none.

    Raises:
        Untraceable: a hook reads or writes what no graph can.
    """

    def __init__(
        self,
        steps: Sequence[HookCall],
        wanted: Wanted,
        inputs: Inputs,
        groups: Groups,
        due: Mapping[int, bool],
        device: str,
        varying: Sequence[Sequence[int]] | None = None,
    ) -> None:
        callbacks = list({id(step.callback): step.callback for step in steps}.values())
        self.learning = [
            Learning(callback, callback.optimizer, Moments(callback.optimizer), torch.zeros(()))
            for callback in callbacks
            if isinstance(callback, LossCallback) and callback.optimizer is not None and due[id(callback)]
        ]
        moved = {id(step.callback) for step in steps if step.event == "end_batch"}
        self._turned = [turned for turned in callbacks if isinstance(turned, LossCallback) or id(turned) in moved]
        self._rated = [
            any("learning_rate" in step.asks for step in steps if step.callback is loss.callback)
            for loss in self.learning
        ]
        self._numbers = [torch.tensor(value) for value in inputs.numbers]
        scope = Scope(callbacks)
        apart = [loss.rate for loss in self.learning] + self._numbers
        apart += [tensor for loss in self.learning for tensor in loss.moments.tensors]
        trace = Trace(steps, scope, self.learning, due)
        # the same tensor may lie in several places, and be one of the parameters that are stepped
        own = {id(tensor): tensor for tensor in [*apart, *(place.read() for place in scope.places)]}
        if any(id(tensor) in own for tensor in inputs.tensors):
            raise Untraceable(None, "they are given a tensor that they hold")  # the next time it may be another one
        tensors = [*own.values(), *inputs.tensors]

        def whole(*stand_ins: Tensor) -> list[Tensor]:
            replacements = dict(zip(map(id, tensors), stand_ins, strict=True))
            return trace(wanted, groups, inputs, self._numbers, replacements)

        try:
            self._sizes = None if varying is None else graph.Sizes(tensors, [*[()] * len(own), *varying])
            module = graph.traced(whole, tensors, self._sizes)
            self._constants = graph.constants(module)
            used = graph.used(module)
            # no gradient is to be thought of
            read = [tensors[number].detach() for number in used]
            self._run = graph.compiled(module, read, device, sized=varying is None)
        except Untraceable:
            raise
        except Exception as error:  # of torch's compiler, which has many
            raise Untraceable(None, f"torch's compiler fails: {first_line(error)}") from error
        finally:
            for loss in self.learning:
                loss.moments.settle()
        self._leave(trace)
        self._input_numbers = [number - len(own) for number in used if number >= len(own)]
        self._own_shapes = tuple(tensor.shape for tensor in own.values())
        self._take_for_granted(scope, trace, [tensors[number] for number in used if number < len(own)])

    def _leave(self, trace: Trace) -> None:
        """Note what the graph leaves behind; most of it is one tensor, for which there is a short way."""
        self._gradients = trace.gradients
        short = [(result.holder, result.key, result.output) for result in trace.results]
        self._simple = [(holder, key, output) for holder, key, output in short if output is not None]
        self._results = [result for result in trace.results if result.output is None]

    def _take_for_granted(self, scope: Scope, trace: Trace, mine: list[Tensor]) -> None:
        """Note what is looked at before each update: where the graph's own tensors lie, and what hooks read."""
        self._read = [tensor.detach() for tensor in mine]
        numbers = {id(tensor): number for number, tensor in enumerate(mine)}
        self._places = [(numbers[id(place.read())], place) for place in scope.places if id(place.read()) in numbers]
        self._shared = {number for number, count in Counter(number for number, _ in self._places).items() if count > 1}
        on_the_way = {(id(step[0]), step[1]): step for _, place in self._places for step in place.way}
        self._ways = list(on_the_way.values())
        self._led = [part for _, _, part in self._ways]
        self._lay = [place.read() for _, place in self._places]
        self._storage = list(map(Tensor.data_ptr, self._lay))
        self._reads = [read for read in trace.watch.reads if (id(read[0]), read[1]) not in on_the_way]
        self._read_values = [value for _, _, value in self._reads]
        self._arrays = [(value, value.copy()) for value in self._read_values if isinstance(value, np.ndarray)]
        self._versions = [tensor._version for tensor in self._constants]
        self._contain(scope, trace, set(on_the_way))
        self._parameters = [parameter for loss in self.learning for parameter in loss.moments.parameters]

    def _contain(self, scope: Scope, trace: Trace, on_the_way: set[tuple[int, Any]]) -> None:
        """Note what the dicts, lists, deques, sets and modules hold that hooks may have looked into."""
        written = {(id(result.holder), result.key) for result in trace.results}
        seen = [container for container in scope.containers if scope.below.get(id(container)) in trace.watch.read]
        hooked = [kind for module in scope.modules for kind in _hooks_of(module)]
        self._unhooked = [kind for kind in hooked if not kind]
        self._containers = [*seen, *(kind for kind in hooked if kind), *(module._modules for module in scope.modules)]
        self._lengths = list(map(len, self._containers))
        self._entries = [  # tensors are looked at by themselves, and what leads to some
            (holder, key)
            for holder in self._containers
            for key, part in entries(holder)
            if (id(holder), key) not in written | on_the_way and not isinstance(part, Tensor)
        ]
        self._contained = [holder[key] for holder, key in self._entries]
        gathering = [container for container in scope.gathering if scope.below.get(id(container)) in trace.watch.read]
        self._gathered = [(container, list(container)) for container in gathering]

    def allows(self, inputs: Inputs) -> bool:
        """Tell whether tensors of other sizes than at first can go by the graph."""
        shapes = (*self._own_shapes, *(tensor.shape for tensor in inputs.tensors))
        return self._sizes is not None and self._sizes.allow(shapes)

    def fits(self) -> bool:
        """Tell whether all that the graph took for granted is still so."""
        try:
            ways = [holder[key] for holder, key, _ in self._ways]
            tensors = [place.owner[place.key] for _, place in self._places]
            contained = [holder[key] for holder, key in self._entries]
        except (KeyError, IndexError):  # somebody took it out
            return False
        reads = [attributes.get(name, ABSENT) for attributes, name, _ in self._reads]
        if not all(map(is_, ways, self._led)) or list(map(len, self._containers)) != self._lengths:
            return False
        # most are the very same object, which is told the fastest
        if not all(map(is_, reads, self._read_values)) and not all(map(_equal, reads, self._read_values)):
            return False
        if not all(map(is_, contained, self._contained)) and not all(map(_equal, contained, self._contained)):
            return False
        if any(self._unhooked) or not all(unchanged(container, before) for container, before in self._gathered):
            return False
        if not all(np.array_equal(array, before) for array, before in self._arrays):
            return False
        if [tensor._version for tensor in self._constants] != self._versions:
            return False
        if not self._follow(tensors) or any(map(hooks.is_hooked, self._parameters)):
            return False
        return all(loss.moments.fits(loss.optimizer) for loss in self.learning)

    def _follow(self, now: list[Any]) -> bool:
        """Take others of the same kind where tensors have been replaced; tell whether that was possible."""
        if all(map(is_, now, self._lay)) and list(map(Tensor.data_ptr, now)) == self._storage:
            return True
        for (number, _), tensor, before in zip(self._places, now, self._lay, strict=True):
            if tensor is not before and (number in self._shared or not _alike(tensor, before)):
                return False
            if not _lies_alike(tensor, self._read[number]):
                return False
            self._read[number] = tensor.detach()  # its numbers may lie elsewhere by now
        self._lay, self._storage = now, list(map(Tensor.data_ptr, now))
        return True

    def __call__(self, groups: Groups, inputs: Inputs) -> None:
        """Do what the hooks do."""
        for number, now in zip(self._numbers, inputs.numbers, strict=True):
            number.fill_(now)
        for (callback, _, moments, rate), rated in zip(self.learning, self._rated, strict=True):
            callback.set_rate(groups[callback.data_group or ""]["learning_rate"] if rated else None)
            rate.fill_(moments.group["lr"])
        tensors = inputs.tensors
        # A compiled step of Adam takes half as long again where averages of dead units have become that small.
        torch.set_flush_denormal(True)
        try:
            with torch.no_grad():
                outputs = self._run(*self._read, *[tensors[number] for number in self._input_numbers])
        finally:
            torch.set_flush_denormal(False)
        for holder, key, output in self._simple:
            holder[key] = outputs[output]
        for parameter, reached in self._gradients:
            parameter.grad = None if reached is None else outputs[reached]
        for result in self._results:
            result.put(groups, outputs, inputs)
        for loss in self.learning:
            loss.callback.stepped()
        for turned in self._turned:
            turned.passed()


def _hooks_of(module: nn.Module) -> tuple[Any, ...]:
    """Return the hooks that see, or change, what goes into a module or comes out of it."""
    return module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks


def _equal(now: Any, before: Any) -> bool:
    plain = isinstance(now, int | float | str | np.generic)
    return now is before or (plain and type(now) is type(before) and bool(now == before))


def _alike(now: Any, before: Tensor) -> bool:
    """Tell whether a tensor may take the place of another; a parameter may not, as its optimizer knows it."""
    if not isinstance(now, Tensor) or isinstance(before, nn.Parameter):
        return False
    return _lies_alike(now, before)


def _lies_alike(now: Tensor, before: Tensor) -> bool:
    kind = now.dtype == before.dtype and now.device == before.device
    return kind and now.shape == before.shape and now.stride() == before.stride()
