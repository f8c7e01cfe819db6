"""Targets, losses, optimizer steps and target networks that follow one another, as one compiled function."""

from __future__ import annotations

import logging
import os
import random
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.callbacks.loss import LossCallback, dead_units, weighted
from rlrun.callbacks.target import TargetCallback
from rlrun.compile import backend, graph, noise
from rlrun.compile.graph import Place, Untraceable, first_line, modules_of, parts_of, swapped
from rlrun.compile.optimizers import OptimizerRule, is_hooked, rule_of
from rlrun.core.errors import ConfigError, RlrunError, printable
from rlrun.core.typing import Groups
from rlrun.nn.overhead import NoGrad
from rlrun.runs import learners
from rlrun.training.metrics import detached
from rlrun.training.update import Checked, Function, Update, of_loss, of_target
from rlrun.training.wiring import HookCall, State

_messages = logging.getLogger("rlrun")

LIMIT = 16  # graphs of the same hooks
# Recurrent layers keep lists of their parameters; other generators draw numbers that a graph would repeat.
UNTRACEABLE = (nn.RNNBase, nn.RNNCellBase, np.random.Generator, np.random.RandomState, random.Random)


class FusedUpdate:
    """Compile hooks of an update that follow one another into one function.

    These are targets, losses that step Adam, AdamW or SGD, and moves of target networks. Others are called as they are,
    and so is a hook that no graph can be made of: one with a recurrent network, or one that reads numbers from tensors.
    The log names it. Results are the same up to rounding.

    Args:
        compile: false leaves all hooks as they are.
        device: of networks.

    Raises:
        ConfigError: a CPU's graph is compiled by a C++ compiler, and there is none.
    """

    def __init__(self, compile: bool, device: str) -> None:
        self.compile = compile
        self.device = device
        self.refused: set[tuple[int, str]] = set()  # callback and label of hooks that no graph can be made of
        self._rules: dict[int, OptimizerRule] = {}  # of optimizers, by the id of the callback
        compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # as torch has it
        if compile and device == "cpu" and not shutil.which(compiler):
            raise ConfigError(
                f"compile=true: updates on a CPU need a C++ compiler, and there is no '{compiler}' here; "
                "CXX may name another one, such as clang++; compile=false needs none"
            )
        if compile:
            backend.keep_compiled()

    def fits(self, step: HookCall) -> bool:
        """Return True if a hook can be compiled, as far as one sees before it is called."""
        callback = step.callback
        if not self.compile or learners.count() > 1 or (id(callback), step.label) in self.refused:
            return False
        if step.label == "move":
            return True
        if "batches" in step.asks:  # all groups, which are not the inputs of one region
            return False
        if step.label == "loss":
            assert isinstance(callback, LossCallback)
            if callback.veto is not None or any(map(is_hooked, callback.parameters)):
                return False
            if callback.optimizer is not None and rule_of(callback.optimizer) is None:
                return False
        elif step.label != "target":
            return False
        return not any(isinstance(part, UNTRACEABLE) for part in parts_of([callback]))

    def rule(self, step: HookCall) -> OptimizerRule:
        """Return the rule of a loss's optimizer, the same one for all graphs."""
        assert isinstance(step.callback, LossCallback)
        assert step.callback.optimizer is not None
        rule = self._rules.get(id(step.callback))
        if rule is None or not rule.is_current():
            rule = self._rules[id(step.callback)] = OptimizerRule(step.callback.optimizer)
        return rule

    def region(self, steps: Sequence[HookCall], due: Mapping[int, bool]) -> Function:
        """Return hooks as one function."""
        return Region(steps, due, self)


class Region:
    """Hooks that follow one another, as one compiled function for each form of their inputs.

    Args:
        steps: the hooks.
        due: by the id of a callback, whether its loss learns or its target network moves.
        compiler: makes functions of parts, where no graph can be made of the whole.
    """

    def __init__(self, steps: Sequence[HookCall], due: Mapping[int, bool], compiler: FusedUpdate) -> None:
        self.steps = steps
        self.compiler = compiler
        self.group = steps[0].callback.data_group or ""
        self.active = [step for step in steps if step.label == "target" or due[id(step.callback)]]
        self.passed = [step.callback for step in steps if step.label != "target"]
        provided: set[str] = set()
        self.names: list[str] = []  # that are read, and that no hook of the region provides
        for step in self.active:
            wanted = [name for name in step.asks if name != "learning_rate" and name not in (*provided, *self.names)]
            self.names += wanted
            provided |= set(step.callback.provides)
        self._keys = {(id(step.callback), step.label) for step in steps}
        self._graphs: dict[Any, CompiledGraph] = {}
        self._shapes: dict[Any, list[list[torch.Size]]] = {}  # of inputs that were seen, by their pattern
        self._any_size: dict[Any, CompiledGraph] = {}  # graphs that take more than one size
        self._plain: Callable[[Groups, State], None] | None = None
        self._as_is = False  # a hook needs whole numbers, such as sizes and indices, as constants

    def __call__(self, groups: Groups, state: State) -> None:
        """Do what the hooks do."""
        if self._plain is None and not self.compiler.refused.isdisjoint(self._keys):
            self._plain = Update(self.steps, self.compiler)
        if self._plain is None:
            batch = groups[self.group]
            values = self._values(batch)
            try:
                inputs = graph.Inputs(values, self.compiler.device)
                compiled = self._graphs.get(inputs.form)
                if compiled is None or not compiled.is_current():
                    compiled = self._graphs[inputs.form] = self._new(inputs, values)
            except Untraceable as error:
                if not self._graphs and not self._as_is and any(type(batch[name]) is int for name in self.names):
                    self._as_is = True
                    self(groups, state)
                    return
                self._refuse(error)
            else:
                compiled(batch, inputs)
                for callback in self.passed:
                    callback.passed()
                return
        assert self._plain is not None
        self._plain(groups, state)

    def _values(self, batch: Mapping[str, Any]) -> list[Any]:
        """Return what hooks read; counts as tensors, so that each has not a graph of its own."""
        values = [batch[name] for name in self.names]
        if self._as_is:
            return values
        kind: dict[str, Any] = {"dtype": torch.float64, "device": self.compiler.device}
        return [torch.tensor(value, **kind) if type(value) is int else value for value in values]

    def _new(self, inputs: graph.Inputs, values: Sequence[Any]) -> CompiledGraph:
        """Return a graph; one for any size of what comes in more than one size."""
        general = self._any_size.get(inputs.pattern)
        if general is not None and general.allows(inputs) and general.is_current():
            return general
        seen = self._shapes.setdefault(inputs.pattern, [])
        if sum(map(len, self._shapes.values())) >= LIMIT:
            raise Untraceable(None, f"{LIMIT} graphs of them were not enough")
        seen.append([tensor.shape for tensor in inputs.tensors])
        varying = graph.varying(seen)
        small = any(t.shape[axis] < 2 for t, axes in zip(inputs.tensors, varying, strict=True) for axis in axes)
        if small or not any(varying):  # one row or none is not what several are
            return CompiledGraph(self, inputs, values, None)
        self._any_size[inputs.pattern] = CompiledGraph(self, inputs, values, varying)
        return self._any_size[inputs.pattern]

    def _refuse(self, error: Untraceable) -> None:
        """Call a hook as it is that no graph can be made of, or all of them."""
        steps = self.steps if error.step is None else [self.active[error.step]]
        names = ", ".join(f"callbacks.{step.callback.name}.{step.label}" for step in steps)
        _messages.warning("compile: not %s: %s", printable(names), error)
        self.compiler.refused |= {(id(step.callback), step.label) for step in steps}
        self._plain = Update(self.steps, self.compiler)  # which other regions find out for themselves


class CompiledGraph:
    """A region as one compiled function, for one form of its inputs.

    Raises:
        Untraceable: a hook does what no graph can.
    """

    def __init__(
        self,
        region: Region,
        inputs: graph.Inputs,
        values: Sequence[Any],
        varying: Sequence[Sequence[int]] | None,
    ) -> None:
        self.steps = region.active
        self._names = region.names  # of values that hooks read
        self._trained = [step for step in self.steps if step.label == "loss" and step.callback.trained()]
        self._rules = {id(step.callback): region.compiler.rule(step) for step in self._trained}
        self._modules = modules_of(step.callback for step in self.steps)
        self._hook_dicts = [
            hooks for module in self._modules for hooks in (module._forward_hooks, module._forward_pre_hooks)
        ]
        self._places: list[Place] = [
            (holder, name)
            for module in self._modules
            for holder in (module._parameters, module._buffers)
            for name, tensor in holder.items()
            if tensor is not None
        ]
        self._rows: dict[int, slice] = {}  # of optimizer steps' sizes, one for each group of a loss's optimizer
        for key, rule in self._rules.items():
            first_row = sum(rows.stop - rows.start for rows in self._rows.values())
            self._rows[key] = slice(first_row, first_row + len(rule.groups))
        self._sizes = torch.zeros(max((rows.stop for rows in self._rows.values()), default=1), 3)  # made on the host
        self._array = self._sizes.numpy()
        own = self._own()
        first = {id(tensor): number for number, tensor in reversed(list(enumerate(own)))}
        numbers = sorted(first.values())
        self._device = region.compiler.device
        self._strides = [None if varying or 0 in tensor.stride() else tensor.stride() for tensor in inputs.tensors]
        tensors = [*[own[number] for number in numbers], self._sizes.to(self._device)]
        tensors += graph.laid_out(inputs.tensors, self._strides)
        if any(id(tensor) in first for tensor in inputs.tensors):
            raise Untraceable(None, "they are given a tensor that they hold")
        count = len(numbers)
        self._results: list[tuple[Any, list[graph.Result]]] = []
        try:
            free = None if varying is None else graph.Sizes(tensors, [*[()] * (count + 1), *varying])
            module = graph.traced(lambda *now: self._trace(tensors[:count], now, values), tensors, free)
            self._constants = graph.constants(module)
            self._draws = noise.draws(module)
            tensors += [draw.like for draw in self._draws]
            used = graph.used(module)
            read = [tensors[number].detach() for number in used]
            fixed = sum(number < count for number in used)
            self._run = backend.compiled(module, read, self._device, sized=varying is None, own=fixed)
        except (Untraceable, RlrunError):
            raise
        except Exception as error:  # of torch's compiler, which has many
            raise Untraceable(None, f"torch's compiler fails: {first_line(error)}") from error
        finally:
            for rule in self._rules.values():
                rule.settle()
        self._free, self._kept = free, own
        self._read_tensors = [own[numbers[number]] for number in used if number < count]
        self._pointers: list[int] = []
        self._tensors = read[:fixed]
        self._states = self._module_states()
        self._versions = [tensor._version for tensor in self._constants]
        self._sizes_used, self._inputs_used = count in used, [number - count - 1 for number in used if number > count]
        self._shapes = tuple(tensor.shape for tensor in tensors[: count + 1])

    def _own(self) -> list[Tensor]:
        """Return the tensors that modules and optimizers hold now."""
        tensors = [holder[name] for holder, name in self._places]
        return tensors + [tensor for rule in self._rules.values() for tensor in rule.tensors()]

    def allows(self, inputs: graph.Inputs) -> bool:
        """Return True if inputs of these sizes can go through the graph."""
        shapes = (*self._shapes, *(tensor.shape for tensor in inputs.tensors))
        return self._free is not None and self._free.allow(shapes)

    def is_current(self) -> bool:
        """Return True if the graph still stands for the hooks.

        Raises:
            Untraceable: a hook reads a tensor that changes and that is no buffer of a module.
        """
        if [tensor._version for tensor in self._constants] != self._versions:
            raise Untraceable(None, "they read a tensor that changes, and that is no buffer of a module")
        if self._module_states() != self._states or not all(rule.is_current() for rule in self._rules.values()):
            return False
        return all(map(is_, self._own(), self._kept)) and self._has_strides()

    def _module_states(self) -> list[int]:
        return [*map(len, self._hook_dicts), *[module.training for module in self._modules]]

    def __call__(self, batch: dict[str, Any], inputs: graph.Inputs) -> None:
        """Do what the hooks do."""
        for step in self._trained:
            loss: Any = step.callback
            loss.set_rate(batch["learning_rate"] if "learning_rate" in step.framework else None)
            self._array[self._rows[id(loss)]] = self._rules[id(loss)].sizes()
        read = [*self._tensors, self._sizes.to(self._device)] if self._sizes_used else self._tensors
        arguments = graph.laid_out(inputs.tensors, self._strides)
        arguments += [draw.function() for draw in self._draws]
        torch.set_flush_denormal(True)  # an Adam step takes half as long again where averages have become that small
        try:
            with NoGrad():
                outputs = self._run(*read, *[arguments[number] for number in self._inputs_used])
        finally:
            torch.set_flush_denormal(False)
        for callback, results in self._results:
            named, metrics, *learned = [result(outputs, inputs.tensors) for result in results]
            if not learned:
                batch.update(named)
                callback.store.put(metrics)
                continue
            loss, callback.norm, callback.dead, callback.elements = learned
            batch.update(callback.learned(loss, named, metrics))

    def _has_strides(self) -> bool:
        """Return True if modules' and optimizers' tensors have the graph's strides; read them at their addresses."""
        pointers = list(map(Tensor.data_ptr, self._read_tensors))
        if pointers != self._pointers:
            tensors = [tensor.detach() for tensor in self._read_tensors]
            if list(map(Tensor.stride, tensors)) != list(map(Tensor.stride, self._tensors)):
                return False
            self._pointers, self._tensors = pointers, tensors
        return True

    def _trace(self, own: Sequence[Tensor], now: Sequence[Tensor], before: Sequence[Any]) -> list[Tensor]:
        """Call the hooks with stand-ins; return the tensors that they leave."""
        stand_in = dict(zip(map(id, own), now, strict=False))
        sizes, inputs = now[len(own)], now[len(own) + 1 :]
        remaining, results = iter(inputs), graph.Results(inputs)
        values = {name: graph.rebuilt(value, remaining) for name, value in zip(self._names, before, strict=True)}
        with swapped(self._places, stand_in):
            for number, step in enumerate(self.steps):
                try:
                    result = self._call(step, values, stand_in, sizes)
                except RlrunError:
                    raise
                except Exception as error:
                    raise Untraceable(number, first_line(error)) from error
                if result is None:
                    continue
                if any(isinstance(value, Tensor) and value.requires_grad for value in result[0].values()):
                    raise Untraceable(number, "it passes on a gradient, which ends where a graph does")
                values.update(result[0])
                self._results.append((step.callback, [results.of(tree) for tree in result]))
        return results.tensors

    @noise.repeatable()
    def _call(self, step: HookCall, values: Mapping[str, Any], stand_in: Mapping[int, Tensor], sizes: Tensor) -> Any:
        """Return a hook's outputs, its metrics, and for a loss what its step leaves; None for a target network."""
        callback: Any = step.callback
        if step.label == "move":
            with torch.no_grad():
                _move(callback)
            return None
        hook = getattr(Checked(callback), step.label)
        required = [values[name] for name in step.required.values()]
        optional = {argument: values[name] for argument, name in step.optional.items()}
        if step.label == "target":
            with torch.no_grad():
                return of_target(hook(*required, **optional))
        with torch.set_grad_enabled(bool(callback.trained())):
            elements, outputs, metrics = of_loss(hook(*required, **optional))
            weight = values["weight"] if "weight" in step.framework else None
            loss = elements.mean() if weight is None else weighted(elements, weight)
        metrics = {name: detached(value) for name, value in metrics.items()}
        errors = callback.error(elements.detach(), outputs) if callback.watched else None
        if id(callback) not in self._rules:
            return outputs, callback.evaluated(loss, metrics), None, None, None, errors
        by_id = self._gradients(callback, loss, stand_in)
        with torch.no_grad():
            present = {key: gradient for key, gradient in by_id.items() if gradient is not None}
            norm = callback.clipped(list(present.values()), [stand_in[key] for key in present])
            dead = _dead_units(callback, by_id, stand_in)
            rule = self._rules[id(callback)]
            rows = sizes[self._rows[id(callback)]]
            rule.step(stand_in, [by_id[id(parameter)] for parameter in rule.parameters], rows)
        return outputs, metrics, loss.detach(), norm, dead, errors

    def _gradients(self, loss: LossCallback, value: Tensor, stand_in: Mapping[int, Tensor]) -> dict[int, Tensor | None]:
        """Return the gradient of each parameter, by the parameter's id; no two share their numbers."""
        gradients = torch.autograd.grad(value, [stand_in[id(p)] for p in loss.parameters], allow_unused=True)
        seen: set[int] = set()
        result: dict[int, Tensor | None] = {}
        for parameter, gradient in zip(loss.parameters, gradients, strict=True):
            storage = None if gradient is None else gradient.untyped_storage()._cdata
            result[id(parameter)] = gradient.clone() if gradient is not None and storage in seen else gradient
            seen |= set() if storage is None else {storage}
        return result


def _dead_units(loss: LossCallback, gradients: Mapping[int, Tensor | None], stand_in: Mapping[int, Tensor]) -> Any:
    """Return the share of hidden units that no gradient reached, where it is logged."""
    if loss.by_turns:
        return None
    for key, gradient in gradients.items():
        stand_in[key].grad = gradient
    share = dead_units(loss.hidden)
    for key in gradients:
        stand_in[key].grad = None
    return share


def _move(callback: TargetCallback) -> None:
    for slow, fast in zip(callback.target_network.parameters(), callback.network.parameters(), strict=True):
        slow.lerp_(fast, callback.tau) if callback.tau < 1.0 else slow.copy_(fast)
    for buffer, source in zip(callback.target_network.buffers(), callback.network.buffers(), strict=True):
        buffer.copy_(source)
