"""Successive hooks of an update as one compiled function, for one form of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.compile import backend, graph, noise
from rlrun.compile.calls import NoGrad
from rlrun.compile.graph import Untraceable, first_line, parts_of, places_of, swapped
from rlrun.compile.optimizers import OptimizerRule
from rlrun.core.errors import RlrunError

Record = Callable[..., Mapping[str, Any]]  # counts and stores a hook's results on the host, and returns its outputs


class CompiledGraph:
    """Successive hooks as one compiled function, for one form of their inputs.

    Args:
        steps: the hooks.
        names: of the values that they read.
        group: of data.
        hooks: a `rlrun.training.update.Hooks`.
        rule_of: returns the rule of a loss's optimizer.
        device: of the function.
        inputs, values, varying: the form.

    Raises:
        Untraceable: a hook does something that a graph cannot hold.
    """

    def __init__(
        self,
        steps: Sequence[Any],
        names: Sequence[str],
        group: str,
        hooks: Any,
        rule_of: Callable[[Any], OptimizerRule],
        device: str,
        inputs: graph.Inputs,
        values: Sequence[Any],
        varying: Sequence[Sequence[int]] | None,
    ) -> None:
        self.steps = steps
        self._names = names
        self._group = group
        self._hooks = hooks
        self._writer = hooks.writer(self._group)
        self._update = self._writer.function()
        self._trained = [step for step in self.steps if step.label == "loss" and step.callback.trained()]
        self._rules = {id(step.callback): rule_of(step.callback) for step in self._trained}
        parts = parts_of(step.callback for step in self.steps)
        self._modules = [part for part in parts if isinstance(part, nn.Module)]
        self._hook_dicts = [
            hooks for module in self._modules for hooks in (module._forward_hooks, module._forward_pre_hooks)
        ]
        self._places = places_of(parts)
        for step in self._trained:
            parameters: Any = step.callback.trained()
            self._places += [(parameters, number) for number in range(len(parameters))]
        self._rows: dict[int, slice] = {}  # of optimizer steps' sizes, one for each group of a loss's optimizer
        for key, rule in self._rules.items():
            first_row = sum(rows.stop - rows.start for rows in self._rows.values())
            self._rows[key] = slice(first_row, first_row + len(rule.groups))
        rows = max((rows.stop for rows in self._rows.values()), default=1)
        double = any(p.dtype == torch.float64 for step in self._trained for p in step.callback.trained())
        self._sizes = torch.zeros(rows, 3, dtype=torch.float64 if double else torch.float32)  # made on the host
        self._array = self._sizes.numpy()
        self._device = device
        self._results: list[tuple[Any, graph.Result]] = []
        try:
            self._compile(inputs, values, varying)
        except (Untraceable, RlrunError):
            raise
        except Exception as error:  # torch's compiler raises many types
            raise Untraceable(None, f"torch's compiler fails: {first_line(error)}") from error
        finally:
            for rule in self._rules.values():
                rule.settle()
        self._states = self._module_states()

    def _compile(self, inputs: graph.Inputs, values: Sequence[Any], varying: Sequence[Sequence[int]] | None) -> None:
        """Trace and compile the hooks, and note the assumptions of the graph."""
        own = self._own()
        first = {id(tensor): number for number, tensor in reversed(list(enumerate(own)))}
        numbers = sorted(first.values())
        self._strides = [None if varying or 0 in tensor.stride() else tensor.stride() for tensor in inputs.tensors]
        tensors = [*[own[number] for number in numbers], self._sizes.to(self._device)]
        tensors += graph.laid_out(inputs.tensors, self._strides)
        if any(id(tensor) in first for tensor in inputs.tensors):
            raise Untraceable(None, "they read a tensor from the batch that a module also holds")
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
        """Return the current tensors of modules and optimizers."""
        tensors = [holder[name] for holder, name in self._places]
        return tensors + [tensor for rule in self._rules.values() for tensor in rule.tensors()]

    def allows(self, inputs: graph.Inputs) -> bool:
        """Return True if the graph accepts inputs of these sizes."""
        shapes = (*self._shapes, *(tensor.shape for tensor in inputs.tensors))
        return self._free is not None and self._free.allow(shapes)

    def is_current(self) -> bool:
        """Return True if the assumptions of the graph still hold.

        Raises:
            Untraceable: a hook reads a tensor that changes without being a buffer of a module.
        """
        if [tensor._version for tensor in self._constants] != self._versions:
            raise Untraceable(None, "they read a tensor that changes without being a buffer of a module")
        if self._module_states() != self._states or not all(rule.is_current() for rule in self._rules.values()):
            return False
        return all(map(is_, self._own(), self._kept)) and self._has_strides()

    def _module_states(self) -> list[int]:
        return [*map(len, self._hook_dicts), *[module.training for module in self._modules]]

    def __call__(self, batch: dict[str, Any], inputs: graph.Inputs) -> None:
        """Execute the hooks on a batch."""
        for step in self._trained:
            loss: Any = step.callback
            loss.set_rate(batch["learning_rate"] if "learning_rate" in step.framework else None)
            self._array[self._rows[id(loss)]] = self._rules[id(loss)].sizes()
        read = [*self._tensors, self._sizes.to(self._device)] if self._sizes_used else self._tensors
        arguments = graph.laid_out(inputs.tensors, self._strides)
        arguments += [draw.function() for draw in self._draws]
        torch.set_flush_denormal(True)  # with denormal averages an Adam step takes 1.5 times as long
        try:
            with NoGrad():
                outputs = self._run(*read, *[arguments[number] for number in self._inputs_used])
        finally:
            torch.set_flush_denormal(False)
        for record, result in self._results:
            batch.update(record(*result(outputs, inputs.tensors)))

    def _has_strides(self) -> bool:
        """Return True if the tensors have the graph's strides; note tensors that have moved to new addresses."""
        pointers = list(map(Tensor.data_ptr, self._read_tensors))
        if pointers != self._pointers:
            tensors = [tensor.detach() for tensor in self._read_tensors]
            if list(map(Tensor.stride, tensors)) != list(map(Tensor.stride, self._tensors)):
                return False
            self._pointers, self._tensors = pointers, tensors
        return True

    def _trace(self, own: Sequence[Tensor], now: Sequence[Tensor], before: Sequence[Any]) -> list[Tensor]:
        """Run the update with stand-ins; return the tensors that the host needs from its hooks."""
        stand_in = dict(zip(map(id, own), now, strict=False))
        sizes, inputs = now[len(own)], now[len(own) + 1 :]
        remaining, results = iter(inputs), graph.Results(inputs)
        batch: dict[str, Any] = {"learning_rate": None}  # it makes sizes of steps, on the host
        batch |= {name: graph.rebuilt(value, remaining) for name, value in zip(self._names, before, strict=True)}
        left: list[tuple[Record, Any]] = []
        for name, callback in self._writer.callbacks.items():
            numbers = {step.label: number for number, step in enumerate(self.steps) if step.callback is callback}
            rule = self._rules.get(id(callback))
            steps = None if rule is None else GraphSteps(rule, stand_in, sizes[self._rows[id(callback)]])
            self._writer.names[name] = Traced(callback, self._hooks.checked(callback), numbers, steps, now, left)
        with swapped(self._places, stand_in), torch.enable_grad():
            self._update({self._group: batch}, {})
        self._results = [(record, results.of(result)) for record, result in left]
        return results.tensors


class GraphSteps:
    """Gradients and steps of one loss's parameters within a graph.

    Args:
        rule: of the optimizer.
        stand_in: for each tensor of modules and optimizers, by its id.
        sizes: of the step [G, 3], by group.
    """

    def __init__(self, rule: OptimizerRule, stand_in: Mapping[int, Tensor], sizes: Tensor) -> None:
        self.rule = rule
        self._stand_in = stand_in
        self._sizes = sizes
        self._of: dict[int, Tensor | None] = {}  # by the id of a parameter's stand-in

    def gradients(self, loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradient of each parameter; gradients do not share memory."""
        seen: set[int] = set()
        result: list[Tensor | None] = []
        for gradient in torch.autograd.grad(loss, parameters, allow_unused=True):
            storage = None if gradient is None else gradient.untyped_storage()._cdata
            result.append(gradient.clone() if gradient is not None and storage in seen else gradient)
            seen |= set() if storage is None else {storage}
        self._of = dict(zip(map(id, parameters), result, strict=True))
        return result

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Step the parameters by their gradients."""
        in_order = [self.of(self._stand_in[id(parameter)]) for parameter in self.rule.parameters]
        self.rule.step(self._stand_in, in_order, self._sizes)

    def of(self, parameter: object) -> Tensor | None:
        """Return the gradient of a parameter."""
        return self._of.get(id(parameter))


class Traced:
    """Stands in for a callback of an update while its graph is traced.

    Args:
        callback: has the hooks.
        checked: the callback, with `loss` and `target` that are refused if they assign an attribute.
        numbers: of its hooks in the region, by label.
        steps: of its loss; None = nothing is trained.
        tensors: inputs of the graph, to which it may write.
        left: list of the results that each hook passes to the host in every call of the graph.
    """

    def __init__(
        self,
        callback: Any,
        checked: Any,
        numbers: Mapping[str, int],
        steps: GraphSteps | None,
        tensors: Sequence[Tensor],
        left: list[tuple[Record, Any]],
    ) -> None:
        self.callback = callback
        self._checked = checked
        self._outputs: Mapping[str, Any] = {}  # of the target
        self.store = self
        self._numbers = numbers
        self._steps = steps
        self._tensors = set(map(id, tensors))
        self._left = left

    def target(self, *required: Any, **optional: Any) -> Any:
        """Return outputs and metrics of a target."""
        with self._hook("target"):
            self._outputs, metrics = self._checked.target(*required, **optional)
            self._require_no_gradient(self._outputs)
        return self._outputs, metrics

    def loss(self, *required: Any, **optional: Any) -> Any:
        """Return the result of the loss."""
        with self._hook("loss"):
            return self._checked.loss(*required, **optional)

    def step(
        self,
        elements: Tensor,
        outputs: Mapping[str, Any],
        metrics: Mapping[str, Any],
        *,
        weight: Tensor | None = None,
        learning_rate: None = None,
    ) -> dict[str, Any]:
        """Run the phases of the loss: weights, gradients, clipping, step, buffers; return its outputs."""
        with self._hook("loss"):
            for path in outputs.get("updates", {}):
                if id(self.callback.buffer(path)) not in self._tensors:
                    raise Untraceable(None, f"it updates '{path}', which is not a buffer of a module")
            result = self.callback.phases(elements, outputs, metrics, weight, self._steps)
            self._require_no_gradient(result.outputs)
            hidden = None
            if self._steps is not None:
                hidden = [self._steps.of(layer.weight) for layer in self.callback.diagnostics.layers]
        self._left.append((self.callback.record, (result, hidden)))
        return dict(result.outputs)

    def move(self) -> None:
        """Move a target network."""
        with self._hook("move"):
            self.callback.move()

    def put(self, metrics: Mapping[str, Any]) -> None:
        """Pass the metrics and outputs of a target to the host."""

        def record(outputs: Mapping[str, Any], metrics: Mapping[str, Any]) -> Mapping[str, Any]:
            self.callback.store.put(metrics)
            return outputs

        self._left.append((record, (dict(self._outputs), metrics)))

    def passed(self) -> None:
        """Do nothing, as the host counts."""

    @contextmanager
    def _hook(self, label: str) -> Iterator[None]:
        """Raise errors of a hook as `Untraceable`, with the number of the hook."""
        try:
            with noise.repeatable():
                yield
        except RlrunError:
            raise
        except Exception as error:
            raise Untraceable(self._numbers[label], first_line(error)) from error

    def _require_no_gradient(self, outputs: Mapping[str, Any]) -> None:
        if any(isinstance(value, Tensor) and value.requires_grad for value in outputs.values()):
            raise Untraceable(None, "its outputs carry gradients, which end at the border of a graph")
