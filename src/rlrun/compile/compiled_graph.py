"""Hooks of an update as one compiled function, for one form of their inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlrun.callbacks.loss import LossCallback, weighted
from rlrun.callbacks.target import TargetCallback
from rlrun.compile import backend, graph, noise
from rlrun.compile.graph import Place, Untraceable, first_line, modules_of, swapped
from rlrun.core.errors import RlrunError
from rlrun.nn.overhead import NoGrad
from rlrun.training.metrics import detached
from rlrun.training.update import Checked, of_loss, of_target
from rlrun.training.wiring import HookCall

if TYPE_CHECKING:
    from rlrun.compile.update import Region


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
        self._device = region.compiler.device
        self._results: list[tuple[Any, list[graph.Result]]] = []
        try:
            self._compile(inputs, values, varying)
        except (Untraceable, RlrunError):
            raise
        except Exception as error:  # of torch's compiler, which has many
            raise Untraceable(None, f"torch's compiler fails: {first_line(error)}") from error
        finally:
            for rule in self._rules.values():
                rule.settle()
        self._states = self._module_states()

    def _compile(self, inputs: graph.Inputs, values: Sequence[Any], varying: Sequence[Sequence[int]] | None) -> None:
        """Trace and compile the hooks, and note what the graph takes for granted."""
        own = self._own()
        first = {id(tensor): number for number, tensor in reversed(list(enumerate(own)))}
        numbers = sorted(first.values())
        self._strides = [None if varying or 0 in tensor.stride() else tensor.stride() for tensor in inputs.tensors]
        tensors = [*[own[number] for number in numbers], self._sizes.to(self._device)]
        tensors += graph.laid_out(inputs.tensors, self._strides)
        if any(id(tensor) in first for tensor in inputs.tensors):
            raise Untraceable(None, "they are given a tensor that they hold")
        count = len(numbers)
        self._free = None if varying is None else graph.Sizes(tensors, [*[()] * (count + 1), *varying])
        module = graph.traced(lambda *now: self._trace(tensors[:count], now, values), tensors, self._free)
        self._constants = graph.constants(module)
        self._versions = [tensor._version for tensor in self._constants]
        self._draws = noise.draws(module)
        tensors += [draw.like for draw in self._draws]
        used = graph.used(module)
        self._sizes_used, self._inputs_used = count in used, [number - count - 1 for number in used if number > count]
        self._kept, self._read_tensors = own, [own[numbers[number]] for number in used if number < count]
        self._tensors = [tensor.detach() for tensor in self._read_tensors]
        self._pointers: list[int] = []
        self._shapes = tuple(tensor.shape for tensor in tensors[: count + 1])
        read = [tensors[number].detach() for number in used]
        fixed = len(self._tensors)
        self._run = backend.compiled(module, read, self._device, sized=varying is None, own=fixed)

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
            loss, callback.norm, callback.gradients, callback.elements = learned
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
            rule = self._rules[id(callback)]
            rows = sizes[self._rows[id(callback)]]
            rule.step(stand_in, [by_id[id(parameter)] for parameter in rule.parameters], rows)
            hidden = _of_hidden(callback, by_id, stand_in)
        return outputs, metrics, loss.detach(), norm, hidden, errors

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


def _of_hidden(loss: LossCallback, gradients: Mapping[int, Tensor | None], stand_in: Mapping[int, Tensor]) -> Any:
    """Return the gradients of hidden layers' weights, of which metrics tell the share of dead units."""
    by_weight = {id(stand_in[key]): gradient for key, gradient in gradients.items()}
    return [by_weight.get(id(layer.weight)) for layer in loss.hidden] if not loss.by_turns else None


def _move(callback: TargetCallback) -> None:
    for slow, fast in zip(callback.target_network.parameters(), callback.network.parameters(), strict=True):
        slow.lerp_(fast, callback.tau) if callback.tau < 1.0 else slow.copy_(fast)
    for buffer, source in zip(callback.target_network.buffers(), callback.network.buffers(), strict=True):
        buffer.copy_(source)
