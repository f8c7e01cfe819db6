"""The update: one generated function for each set of data groups and due callbacks.

It calls targets, losses, steps and target networks in the plan's order; `rlrun explain --update` prints it. Losses and
targets are functions of their arguments, so that they can be compiled.
"""

import itertools
import linecache
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from keyword import iskeyword
from typing import Any, NamedTuple, Protocol

import torch

from rlrun.core.errors import WiringError
from rlrun.core.typing import Groups
from rlrun.training.callback import Callback, trained_by
from rlrun.training.plan import HookCall, State

Function = Callable[[Groups, State], None]
RESERVED = {"groups", "state", "loss", "outputs", "metrics", "result", "update"}  # names of the generated function
_numbers = itertools.count(1)


class Compiler(Protocol):
    """Compiles successive hooks."""

    def fits(self, step: HookCall) -> bool:
        """Return True if a hook can be compiled."""

    def region(self, hooks: "Hooks") -> Function:
        """Return one compiled function of these hooks."""


class Hooks(NamedTuple):
    """Successive hooks, for a compiler.

    Attributes:
        steps: the hooks.
        due: id of a callback -> whether its loss learns or its target network moves.
    """

    steps: Sequence[HookCall]
    due: Mapping[int, bool]

    def one_by_one(self, compiler: Compiler) -> Function:
        """Return a function that calls them one by one, and compiles those that still fit a compiler."""
        return Update(self.steps, compiler, self.due)

    def writer(self, group: str) -> "Writer":
        """Return the writer of their function, for batches of a data group."""
        return Writer(self.steps, (group,), self.due, None)

    def checked(self, callback: Callback) -> Any:
        """Return a callback whose `loss` and `target` are refused if they assign an attribute."""
        return Checked(callback)


class Update:
    """Call the hooks of an update.

    Args:
        steps: hooks in calling order.
        compiler: compiles hooks; None = nothing is compiled.
        due: id of a callback -> whether its loss learns or its target network moves; None = by each one's `due()`.
    """

    def __init__(
        self, steps: Sequence[HookCall], compiler: Compiler | None = None, due: Mapping[int, bool] | None = None
    ) -> None:
        self.steps = list(steps)
        self.compiler = compiler
        self._due = due
        callbacks = {id(step.callback): step.callback for step in self.steps if due is None}
        self._paced = [callback for callback in callbacks.values() if getattr(callback, "every", 1) != 1]
        self._functions: dict[tuple[Any, ...], Function] = {}

    def __call__(self, groups: Groups, state: State) -> None:
        """Make one update with these data groups."""
        key = (*groups, *map(_is_due, self._paced))
        function = self._functions.get(key)
        if function is None:
            function = self._functions[key] = self._first(key, tuple(groups))
        function(groups, state)

    def source(self, groups: Sequence[str]) -> str:
        """Return the source of an update with these data groups, in which all callbacks are due."""
        due = {id(step.callback): True for step in self.steps}
        return Writer(self.steps, groups, due, None).source()

    def _first(self, key: tuple[Any, ...], groups: tuple[str, ...]) -> Function:
        """Return the first update of its kind as a function that refuses losses and targets that assign attributes."""
        due = self._due or {id(step.callback): _is_due(step.callback) for step in self.steps}
        writer = Writer(self.steps, groups, due, self.compiler)
        function = writer.function()

        def first(groups: Groups, state: State) -> None:
            writer.names.update({name: Checked(callback) for name, callback in writer.pure.items()})
            try:
                function(groups, state)
            finally:
                writer.names.update(writer.pure)
                self._functions[key] = function

        return first if writer.pure else function


class Checked:
    """A callback whose `loss` and `target` are refused if they assign an attribute."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._callback, name)
        if name not in ("loss", "target"):
            return value

        terms = getattr(self._callback, "terms", {})  # losses that it adds up

        def call(*args: Any, **named: Any) -> Any:
            owners = {"": self._callback, **{f"{name}.": term for name, term in terms.items()}}
            kept = {name: dict(vars(owner)) for name, owner in owners.items()}  # so that no id is given twice
            before, gradients = _contents_of(kept), _gradients(self._callback)
            result = value(*args, **named)
            after = _contents_of({name: vars(owner) for name, owner in owners.items()})
            changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
            if _gradients(self._callback) != gradients:
                raise WiringError(
                    f"callbacks.{self._callback.name}.{name} calls backward(); a loss is returned, and rlrun takes "
                    "its gradients and the step"
                )
            if changed:
                raise WiringError(
                    f"callbacks.{self._callback.name}.{name} changes '{changed[0]}'; it may only read: return metrics, "
                    "outputs, or what lasts under 'updates', a dict of buffers"
                )
            try:
                (of_loss if name == "loss" else of_target)(result)
            except WiringError as error:
                raise WiringError(f"callbacks.{self._callback.name}.{name}: {error}") from None
            return result

        return call


def _is_due(callback: Callback) -> bool:
    """Return False if a loss does not learn in the current update, or a target network does not move."""
    return not hasattr(callback, "due") or callback.due()


def _gradients(callback: Callback) -> list[Any]:
    """Return a description of a callback's gradients that differs once one has changed."""
    gradients = [parameter.grad for parameter in trained_by(callback)]
    return [None if gradient is None else (id(gradient), gradient._version) for gradient in gradients]


def _contents_of(owners: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return descriptions of several owners' attributes; keys begin with the owner's prefix."""
    return {prefix + key: entry for prefix, own in owners.items() for key, entry in _contents(own).items()}


def _contents(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description of attributes that differs once one, its tensor or its container has changed."""
    contents: dict[str, Any] = {}
    for key, value in attributes.items():
        detail: Any = None
        if isinstance(value, torch.Tensor):
            detail = value._version
        elif isinstance(value, Mapping):
            detail = [(name, id(entry)) for name, entry in value.items()]
        elif isinstance(value, Sequence | deque | set) and not isinstance(value, str):
            detail = list(map(id, value))
        contents[key] = (id(value), detail)
    return contents


class Writer:
    """Writes the source of an update.

    Attributes:
        names: name in the source -> its object.
        callbacks: name in the source -> callback that it calls.
        pure: likewise, callbacks whose `loss` or `target` it calls.
    """

    def __init__(
        self, steps: Sequence[HookCall], groups: Sequence[str], due: Mapping[int, bool], compiler: Compiler | None
    ) -> None:
        present = [step for step in steps if step.callback.data_group is None or step.callback.data_group in groups]
        idle = [step.callback for step in present if step.event == "backward" and not step.runs(due)]
        self.steps = [_received(step, due) for step in present if step.event == "backward" or step.runs(due)]
        self.due = {**due, **dict.fromkeys(map(id, idle), False)}
        self.compiler = compiler
        self.names: dict[str, Any] = {"no_grad": torch.no_grad, "of_loss": of_loss, "of_target": of_target}
        self.batches: dict[str, str] = {}
        for group in groups:
            alone = group == "default" or len(groups) == 1
            self.batches[group] = self._free_name("batch" if alone else f"{group}_batch")
        self.pure: dict[str, Callback] = {}
        self.callbacks: dict[str, Callback] = {}
        self._callback_names: dict[int, str] = {}

    def function(self) -> Function:
        """Return the update as a function."""
        source = self.source()
        file = f"<update {next(_numbers)}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for tracebacks
        exec(compile(source, file, "exec"), self.names)
        function: Function = self.names["update"]
        return function

    def source(self) -> str:
        """Return the source of the update."""
        used = {step.callback.data_group for step in self.steps}
        lines = ["def update(groups, state):"]
        lines += [f"    {name} = groups[{group!r}]" for group, name in self.batches.items() if group in used]
        for fits, run in itertools.groupby(self.steps, self._fits):
            steps = list(run)
            if fits and self.compiler is not None and any(step.label in ("target", "loss") for step in steps):
                name = self._free_name("compiled")
                self.names[name] = self.compiler.region(Hooks(steps, self.due))
                lines.append(f"    {name}(groups, state)")
                continue
            for step in steps:
                lines += ["    " + line for line in self._lines(step)]
        return "\n".join([*lines, ""]) if len(lines) > 1 else lines[0] + "\n    pass\n"

    def _fits(self, step: HookCall) -> Any:
        """Return a key of steps that may share a region: their data group; False if one cannot be compiled."""
        if self.compiler is None or not self.compiler.fits(step):
            return False
        return step.callback.data_group

    def _lines(self, step: HookCall) -> list[str]:
        callback, due = step.callback, self.due[id(step.callback)]
        name = self._name_of(callback)
        batch = "state" if callback.data_group is None else self.batches[callback.data_group]
        if step.label == "target":
            self.pure[name] = callback
            return [
                "with no_grad():",
                f"    outputs, metrics = of_target({name}.target({_arguments(step, batch)}))",
                f"{batch}.update(outputs)",
                f"{name}.store.put(metrics)",
            ]
        if not due and step.event == "backward":
            return [f"{name}.passed()"]
        if step.label == "loss":
            self.pure[name] = callback
            own = [f"{key}={batch}[{key!r}]" for key in step.framework]
            call = f"loss, outputs, metrics = of_loss({name}.loss({_arguments(step, batch)}))"
            trains = bool(trained_by(callback))
            return [
                *([call] if trains else ["with no_grad():", f"    {call}"]),
                f"{batch}.update({name}.step({', '.join(('loss', 'outputs', 'metrics', *own))}))",
            ]
        if step.label == "move":
            return [*([f"{name}.move()"] if due else []), f"{name}.passed()"]
        call = f"{name}.{step.label}({_arguments(step, batch)})"
        if not callback.provides:
            return [call]
        return [f"result = {call}", f"{batch}.update(result or {{}})"]

    def _name_of(self, callback: Callback) -> str:
        """Return the name of a callback in the source: its own, unless it is taken."""
        if id(callback) not in self._callback_names:
            self._callback_names[id(callback)] = name = self._free_name(callback.name)
            self.names[name] = self.callbacks[name] = callback
        return self._callback_names[id(callback)]

    def _free_name(self, text: str) -> str:
        """Return a free identifier similar to any text of a config."""
        name = re.sub("[^A-Za-z0-9_]", "_", text)
        if not name[:1].isalpha():
            name = f"name_{name}"
        while name in RESERVED or name in self.names or name in self.batches.values() or iskeyword(name):
            name += "_"
        return name


def _received(step: HookCall, due: Mapping[int, bool]) -> HookCall:
    """Return a hook without the optional names that nobody provides in an update in which these callbacks are due."""
    if all(step.receives(name, due) for name in step.asks):
        return step
    optional = {argument: name for argument, name in step.optional.items() if step.receives(name, due)}
    return replace(step, optional=optional, framework=tuple(n for n in step.framework if step.receives(n, due)))


def of_loss(result: Any) -> tuple[Any, Mapping[str, Any], Mapping[str, Any]]:
    """Return the result of a `loss` hook as a loss of each element, outputs and metrics.

    Raises:
        WiringError: it is neither a tensor nor these three.
    """
    if isinstance(result, tuple) and len(result) == 3 and isinstance(result[1], dict) and isinstance(result[2], dict):
        return result
    if isinstance(result, torch.Tensor):
        return result, {}, {}
    raise WiringError(
        "a loss returns the loss of each element, or that, outputs and metrics (return loss, {}, {}); "
        f"got {_kind(result)}"
    )


def of_target(result: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the result of a `target` hook as outputs and metrics.

    Raises:
        WiringError: it is something else.
    """
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], dict) and isinstance(result[1], dict):
        return result
    raise WiringError(f"a target returns outputs and metrics, two dicts; got {_kind(result)}")


def _kind(result: Any) -> str:
    """Return the type of a hook's result, in words."""
    if result is None:
        return "None, as without a return"
    parts = result if isinstance(result, tuple) else (result,)
    return ", ".join(type(part).__name__ for part in parts)


def _arguments(step: HookCall, batch: str) -> str:
    required = [f"{batch}[{name!r}]" for name in step.required.values()]
    return ", ".join(required + [f"{argument}={batch}[{name!r}]" for argument, name in step.optional.items()])
