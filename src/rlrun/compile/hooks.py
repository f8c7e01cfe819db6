"""Hooks of an update as functions of tensors: what each does while a graph is made of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlrun.callbacks.loss import LossCallback
from rlrun.callbacks.target import TargetCallback
from rlrun.compile.adam import Moments, is_plain
from rlrun.compile.places import Scope, leaves, rebuilt, structure
from rlrun.core.errors import RlrunError
from rlrun.core.typing import Groups
from rlrun.training.wiring import HookCall


class Inputs(NamedTuple):
    """What hooks are given in one update.

    Attributes:
        form: of all of it; what has the same form can go by the same graph.
        tensors: what tensors are among it.
        numbers: what is of type float.
    """

    form: tuple[Any, ...]
    tensors: list[Tensor]
    numbers: list[float]

    @property
    def pattern(self) -> tuple[Any, ...]:
        """The form but for sizes."""
        return tuple(len(part) if isinstance(part, torch.Size) else part for part in self.form)


class Wanted:
    """The names that hooks ask for, and that none of them has made.

    Not among them are the learning rate, which is the optimizer's, and what target networks ask for when they move.
    """

    def __init__(self, steps: Sequence[HookCall]) -> None:
        self.names: list[tuple[str, str]] = []
        provided: set[tuple[str, str]] = set()
        for step in steps:
            group = step.callback.data_group or ""
            wanted = [(group, name) for name in step.asks if name != "learning_rate" and step.event != "end_batch"]
            self.names += [key for key in wanted if key not in provided and key not in self.names]
            provided |= {(group, name) for name in step.callback.provides}

    def of(self, groups: Groups) -> Inputs | None:
        """Find it in the groups of an update; None where it is absent, as a loss provides it that is not due."""
        form: list[Any] = []
        tensors: list[Tensor] = []
        numbers: list[float] = []
        for group, name in self.names:
            try:
                tree = groups[group][name]
            except (KeyError, RlrunError):
                return None
            if not isinstance(tree, Tensor):
                form.append(structure(tree))
            for leaf in leaves(tree):
                if isinstance(leaf, Tensor):
                    form += (leaf.shape, leaf.dtype, leaf.device, leaf.requires_grad)
                    tensors.append(leaf.contiguous())  # a graph takes how rows lie for granted
                elif type(leaf) is float:
                    form.append(float)
                    numbers.append(leaf)
                else:
                    form.append(leaf)
        return Inputs(tuple(form), tensors, numbers)

    def instead(
        self, groups: Groups, tensors: Iterator[Tensor], numbers: Iterator[Tensor]
    ) -> Mapping[str, dict[str, Any]]:
        """Return the groups with others in place of tensors and numbers."""
        result: dict[str, dict[str, Any]] = {name: {} for name in groups}
        for group, name in self.names:
            tree = groups[group][name]
            stand_ins = [
                next(tensors) if isinstance(leaf, Tensor) else next(numbers) if type(leaf) is float else leaf
                for leaf in leaves(tree)
            ]
            result[group][name] = rebuilt(tree, iter(stand_ins))
        return result


_OWN = ("backward", "_step", "set_rate", "limit_gradients", "evaluate")  # what losses leave as it is


class Traced(NamedTuple):
    """What stands for tensors and numbers while a graph is made."""

    tensors: Mapping[int, Tensor]  # by the identity of the tensor that each stands for
    rates: Mapping[int, Tensor]  # of learning, by the identity of the loss
    moments: Mapping[int, Moments]  # of the optimizer, by the identity of the loss
    due: Mapping[int, bool]  # whether a loss is learned from or a target network moves in this update, by whose it is

    def of(self, tensor: Tensor) -> Tensor:
        return self.tensors[id(tensor)]


def fits(step: HookCall) -> bool:
    """Tell whether a graph can be made of a hook: those of targets, and of losses that step plain Adam.

    What recurrent layers do is no graph that could be told.
    """
    callback = step.callback
    if Scope([callback]).recurrent:
        return False
    if isinstance(callback, LossCallback):
        own = all(getattr(type(callback), name) is getattr(LossCallback, name) for name in _OWN)
        seen = any(map(is_hooked, callback.parameters))
        steps = callback.optimizer is None or (is_plain(callback.optimizer) and _in_order(callback))
        return step.event == "backward" and own and steps and not seen and callback.veto is None
    if isinstance(callback, TargetCallback):
        return step.event == "begin_batch" or (
            step.event == "end_batch" and type(callback).end_batch is TargetCallback.end_batch
        )
    return False


def _in_order(callback: LossCallback) -> bool:
    """Tell whether the optimizer has the parameters as the loss has them."""
    assert callback.optimizer is not None
    stepped = callback.optimizer.param_groups[0]["params"]
    return len(stepped) == len(callback.parameters) and all(map(is_, stepped, callback.parameters))


def is_hooked(parameter: Any) -> bool:
    """Tell whether somebody sees, or changes, the gradient of a parameter."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def call(step: HookCall, inputs: Mapping[str, Any], traced: Traced) -> dict[str, Any] | None:
    """Do what a hook does, with what stands for its tensors; return what it adds to its data group."""
    callback = step.callback
    if not (step.event == "begin_batch" or traced.due[id(callback)]):
        return None
    if isinstance(callback, LossCallback):
        return _learn(callback, step, inputs, traced)
    if step.event == "end_batch":
        assert isinstance(callback, TargetCallback)
        _move(callback)
        return None
    with torch.enable_grad():  # as it is called otherwise
        result: dict[str, Any] | None = step.method(
            *(inputs[name] for name in step.required), **{name: inputs[name] for name in step.optional}
        )
    return result


def _learn(callback: LossCallback, step: HookCall, inputs: Mapping[str, Any], traced: Traced) -> dict[str, Any] | None:
    values = [inputs[name] for name in step.required]
    optional = {name: inputs[name] for name in step.optional if name != "learning_rate"}
    with torch.set_grad_enabled(callback.optimizer is not None):
        loss, named = callback.evaluate(*values, **optional)
    if callback.optimizer is not None:
        gradients = torch.autograd.grad(loss, callback.parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(callback.parameters, _apart(gradients), strict=True):
                parameter.grad = gradient
            callback.limit_gradients()
            rate, moments = traced.rates[id(callback)], traced.moments[id(callback)]
            moments.step(traced.of, [parameter.grad for parameter in callback.parameters], rate)
    return named


def _apart(gradients: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
    """Return gradients none of which lies where another does: of a sum, both parts have the same."""
    seen: set[int] = set()
    for gradient in gradients:
        place = None if gradient is None else gradient.untyped_storage()._cdata
        yield gradient.clone() if gradient is not None and place in seen else gradient
        seen |= set() if place is None else {place}


@torch.no_grad()
def _move(callback: TargetCallback) -> None:
    for slow, fast in zip(callback.target.parameters(), callback.network.parameters(), strict=True):
        slow.lerp_(fast, callback.tau) if callback.tau < 1.0 else slow.copy_(fast)
    for followed, leading in zip(callback.target.buffers(), callback.network.buffers(), strict=True):
        followed.copy_(leading)
