"""Successive targets, losses, optimizer steps and target networks as one compiled function."""

from __future__ import annotations

import logging
import os
import random
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from rlrun.compile import backend, graph
from rlrun.compile.compiled_graph import CompiledGraph
from rlrun.compile.graph import Untraceable, parts_of
from rlrun.compile.optimizers import OptimizerRule, is_hooked, rule_of
from rlrun.core import distributed
from rlrun.core.errors import ConfigError, printable
from rlrun.core.typing import Groups

_messages = logging.getLogger("rlrun")

Function = Callable[[Groups, Any], None]  # of data groups and the run's state
LIMIT = 16  # graphs of the same hooks
# Recurrent layers keep lists of their parameters; other generators draw numbers that a graph would repeat.
UNTRACEABLE = (nn.RNNBase, nn.RNNCellBase, np.random.Generator, np.random.RandomState, random.Random)


class FusedUpdate:
    """Compiles successive hooks of an update into one function.

    These are targets, losses that step Adam, AdamW or SGD, and moves of target networks. Other hooks are called
    uncompiled, and so are hooks that cannot be traced, such as those with a recurrent network or that read numbers from
    tensors; the log names these. Results are the same up to rounding.

    Args:
        compile: False = all hooks are called uncompiled.
        device: of networks.

    Raises:
        ConfigError: a C++ compiler is missing, which graphs on a CPU need.
    """

    def __init__(self, compile: bool, device: str) -> None:
        self.compile = compile
        self.device = device
        self.refused: set[tuple[int, str]] = set()  # callback and label of hooks that cannot be traced
        self._rules: dict[int, OptimizerRule] = {}  # of optimizers, by the id of the callback
        self._named: set[str] = set()  # hooks that the log has named
        compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # as torch has it
        if compile and device == "cpu" and not shutil.which(compiler):
            raise ConfigError(
                f"compile=true: updates on a CPU need a C++ compiler, and there is no '{compiler}' here; "
                "CXX may name another one, such as clang++; compile=false needs none"
            )
        if compile:
            backend.keep_compiled()

    def fits(self, step: Any) -> bool:
        """Return True if a hook may be compiled; only tracing shows whether it can.

        The log names losses and targets that cannot, once.
        """
        if not self.compile or distributed.world_size() > 1 or (id(step.callback), step.label) in self.refused:
            return False
        obstacle = _obstacle(step) if step.label in ("loss", "target", "backward") else ""
        if obstacle:
            self.name([step], obstacle)
        return step.label in ("loss", "target", "move") and not obstacle

    def name(self, steps: Sequence[Any], reason: object) -> None:
        """Log once why hooks stay as they are."""
        names = ", ".join(f"callbacks.{step.callback.name}.{step.label}" for step in steps)
        if names not in self._named:
            self._named.add(names)
            _messages.warning("compile: not %s: %s", printable(names), reason)

    def rule(self, loss: Any) -> OptimizerRule:
        """Return the rule of a loss's optimizer, shared by all graphs."""
        rule = self._rules.get(id(loss))
        if rule is None or not rule.is_current():
            rule = self._rules[id(loss)] = OptimizerRule(loss.optimizer)
        return rule

    def region(self, hooks: Any) -> Function:
        """Return hooks as one function; hooks: a `rlrun.training.update.Hooks`."""
        return Region(hooks, self)


def _obstacle(step: Any) -> str:
    """Return why a loss or target cannot be compiled, as far as its objects show; "" if nothing does."""
    callback = step.callback
    if "batches" in step.asks:  # which are not the inputs of one region
        return "it reads the batches of all data groups"
    if step.label == "backward":
        return "it is no `loss`, which leaves gradients and steps to its base class"
    if step.label == "loss":
        if getattr(callback, "veto", None) is not None:
            return "its step may be vetoed"
        if any(map(is_hooked, callback.parameters)):
            return "one of its parameters has hooks"
        if callback.optimizer is not None and rule_of(callback.optimizer) is None:
            return f"its {type(callback.optimizer).__name__} is not compiled with these options"
    parts = [type(part).__name__ for part in parts_of([callback]) if isinstance(part, UNTRACEABLE)]
    return f"no graph can hold its {parts[0]}" if parts else ""


class Region:
    """Successive hooks, with one compiled function for each form of their inputs.

    Args:
        hooks: a `rlrun.training.update.Hooks`.
        compiler: compiles parts of the hooks if they cannot be traced as a whole.
    """

    def __init__(self, hooks: Any, compiler: FusedUpdate) -> None:
        self.hooks = hooks
        self.steps = steps = hooks.steps
        self.compiler = compiler
        self.group = steps[0].callback.data_group or ""
        self.active = [step for step in steps if step.label == "target" or hooks.due[id(step.callback)]]
        self.passed = [step.callback for step in steps if step.label != "target"]
        provided: set[str] = set()
        self.names: list[str] = []  # names read from outside of the region
        for step in self.active:
            asked = [name for name in step.asks if name not in step.framework or name == "weight"]
            self.names += [name for name in asked if name not in (*provided, *self.names)]
            provided |= set(step.callback.provides)
        self._keys = {(id(step.callback), step.label) for step in steps}
        self._graphs: dict[Any, CompiledGraph] = {}
        self._shapes: dict[Any, list[list[torch.Size]]] = {}  # of all inputs so far, by their pattern
        self._any_size: dict[Any, CompiledGraph] = {}  # graphs for more than one size, by pattern of inputs
        self._plain: Function | None = None
        self._as_is = False  # True if a hook needs whole numbers, such as sizes and indices, as constants

    def __call__(self, groups: Groups, state: Any) -> None:
        """Execute the hooks."""
        if self._plain is None and not self.compiler.refused.isdisjoint(self._keys):
            self._plain = self.hooks.one_by_one(self.compiler)
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
                for callback in self.passed:  # first, as this drops the errors of an earlier batch
                    callback.passed()
                compiled(batch, inputs)
                return
        assert self._plain is not None
        self._plain(groups, state)

    def _values(self, batch: Mapping[str, Any]) -> list[Any]:
        """Return the values that hooks read, with whole numbers as tensors, so that they share a graph."""
        values = [batch[name] for name in self.names]
        if self._as_is:
            return values
        device = self.compiler.device
        kind = torch.float32 if device.startswith("mps") else torch.float64  # the former has no doubles
        return [torch.tensor(value, dtype=kind, device=device) if type(value) is int else value for value in values]

    def _new(self, inputs: graph.Inputs, values: Sequence[Any]) -> CompiledGraph:
        """Return a graph for these inputs; sizes that have varied are free in it."""
        general = self._any_size.get(inputs.pattern)
        if general is not None and general.allows(inputs) and general.is_current():
            return general
        seen = self._shapes.setdefault(inputs.pattern, [])
        if sum(map(len, self._shapes.values())) >= LIMIT:
            raise Untraceable(None, f"{LIMIT} graphs of them were not enough")
        seen.append([tensor.shape for tensor in inputs.tensors])
        varying = graph.varying(seen)
        small = any(t.shape[axis] < 2 for t, axes in zip(inputs.tensors, varying, strict=True) for axis in axes)
        if small or not any(varying):  # sizes of 0 and 1 need graphs of their own
            return self._graph(inputs, values, None)
        self._any_size[inputs.pattern] = self._graph(inputs, values, varying)
        return self._any_size[inputs.pattern]

    def _graph(
        self, inputs: graph.Inputs, values: Sequence[Any], varying: Sequence[Sequence[int]] | None
    ) -> CompiledGraph:
        compiler = self.compiler
        return CompiledGraph(
            self.active, self.names, self.group, self.hooks, compiler.rule, compiler.device, inputs, values, varying
        )

    def _refuse(self, error: Untraceable) -> None:
        """Call a hook that cannot be traced uncompiled, or all hooks; warn about it."""
        steps = self.steps if error.step is None else [self.active[error.step]]
        self.compiler.name(steps, error)
        self.compiler.refused |= {(id(step.callback), step.label) for step in steps}
        self._plain = self.hooks.one_by_one(self.compiler)  # other regions notice it by themselves
