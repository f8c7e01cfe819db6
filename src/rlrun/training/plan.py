"""The plan of a run: the names that each hook reads and provides, and the order of calls.

It is made once, when the trainer is built, from the callbacks and from the names that the
loader declares. The update path looks up no names.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

from rlrun.core import distributed
from rlrun.core.errors import RlrunError, WiringError, did_you_mean
from rlrun.core.typing import Batch, Groups
from rlrun.training.callback import EVENTS, Callback, Hook, trained_by

OUTSIDE = ("restore_state", "begin_training", "end_training")  # events without a batch


class State(dict[str, Any]):
    """The run's state, by name; reading a name before its callback has returned it raises an error."""

    def __missing__(self, name: str) -> Any:
        owners = [owner for owner, callback in self.get("callbacks", {}).items() if name in callback.provides]
        if not owners:
            raise KeyError(name)
        place = ", ".join(f"callbacks.{owner}" for owner in owners)
        raise RlrunError(f"{place} provides '{name}' and has not returned it by update {self.get('update', 0)}")


Call = Callable[[Groups, State], None]


class DataGroup(dict[str, Any]):
    """A batch of one data group; a name it lacks is looked up in the run's state.

    `sample` is the batch as the loader gave it; a memory's sample takes priorities and new values for its rows.
    """

    __slots__ = ("sample", "state")

    def __init__(self, batch: Batch, state: State) -> None:
        super().__init__(batch)
        self.sample: Any = batch
        self.state = state

    def __missing__(self, name: str) -> Any:
        return self.state[name]


@dataclass
class HookCall:
    """One hook of one callback, with resolved names: `required` and `optional` map arguments to the names read."""

    callback: Callback
    event: str
    label: str
    required: Mapping[str, str]
    optional: Mapping[str, str]
    method: Callable[..., Any]
    framework: tuple[str, ...] = ()
    awaits: Mapping[str, Sequence["HookCall"]] = field(default_factory=dict)  # name -> losses that alone return it

    def runs(self, due: Mapping[int, bool]) -> bool:
        """Return True if all required names are there in an update.

        due: id of a callback -> whether it learns in this update.
        """
        if self.event == "backward" and not due[id(self.callback)]:
            return False
        return all(self.receives(name, due) for name in self.required.values())

    def receives(self, name: str, due: Mapping[int, bool]) -> bool:
        """Return True if a name that this hook reads is there in an update; due as of `runs`."""
        return name not in self.awaits or any(step.runs(due) for step in self.awaits[name])

    @property
    def asks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.required.values(), *self.optional.values(), *self.framework)))

    def call(self) -> Call:
        """Return the hook as a function of the data groups and the state.

        It is skipped if its group is missing, or if a loss that it reads did not learn in this update.
        """
        method, names = self.method, {**self.required, **self.optional}.items()
        key = self.callback.data_group or ""
        in_state = self.callback.data_group is None or self.event in OUTSIDE
        required = self.awaits.keys() & set(self.required.values())
        optional = self.awaits.keys() - required

        def call(groups: Groups, state: State) -> None:
            data = state if in_state else groups.get(key)
            if data is not None and (result := method(**{argument: data[name] for argument, name in names})):
                data.update(result)

        def call_if_learned(groups: Groups, state: State) -> None:
            data = groups.get(key)
            if data is None or not data.keys() >= required:
                return
            present = {argument: data[name] for argument, name in names if name not in optional or name in data}
            if result := method(**present):
                data.update(result)

        return call_if_learned if self.awaits else call


CYCLES = ("begin_cycle", "end_cycle")


@dataclass
class Plan:
    """Resolved hooks by event, in calling order."""

    names: dict[str, tuple[str, ...]]
    rates: Mapping[str, str] = field(default_factory=dict)  # data group -> rate at which a loader serves it, in words
    steps: dict[str, list[HookCall]] = field(default_factory=dict)

    def calls(self, *events: str) -> list[Call]:
        return [step.call() for event in events for step in self.steps[event]]

    def cycles(self, event: str) -> list[tuple[str, int, Call]]:
        """Return the hooks of `begin_cycle` or `end_cycle` with their callbacks' names and cycles."""
        return [(step.callback.name, step.callback.cycle, step.call()) for step in self.steps[event]]

    def verify(self, groups: Groups) -> None:
        """Compare a real batch with the names that the loader declared; a batch may lack some groups.

        Raises:
            WiringError: it is empty, has an undeclared group, or lacks a declared name.
        """
        for group in groups if groups or not self.names else ("",):
            if group not in self.names:
                raise WiringError(f"loader promised the data groups {_list(self.names)} and delivered '{group}'")
        for group, names in self.names.items():
            missing = [name for name in names if group in groups and name not in groups[group]]
            if missing:
                raise WiringError(f"loader promised {_list(missing)} in data group '{group}' and did not deliver")


def plan(callbacks: Mapping[str, Callback], names: Mapping[str, Iterable[str]], state: Iterable[str]) -> Plan:
    """Resolve every argument of every hook, and order the `begin_batch` hooks.

    Args:
        callbacks: by name, in the order of the config; ties keep it.
        names: data group -> the names a batch of it holds.
        state: names that the run's state holds before the first hook.

    Raises:
        WiringError: a hook requests a name that nobody provides, a group is unknown, or hooks wait for each other.
    """
    plan = Plan({group: tuple(fields) for group, fields in names.items()})
    for name, callback in callbacks.items():
        callback.name = name
        if callback.data_group is not None and callback.data_group not in plan.names:
            hint = did_you_mean(callback.data_group, plan.names)
            raise WiringError(
                f"callbacks.{name}: data group '{callback.data_group}' does not exist; "
                f"the loader has {_list(plan.names)}{hint}"
            )
    known_state = set(state)
    for name, callback in callbacks.items():
        callback.require_peers(callbacks)
        if own := sorted(known_state & {*callback.provides, *callback.inputs}):
            raise WiringError(f"callbacks.{name}: '{own[0]}' is the run's own name; no callback gives or replaces it")
    for event in EVENTS:
        members = [(owner, hook) for owner in callbacks.values() if (hook := _hook(owner, event)) is not None]
        plan.steps[event] = [_resolve(plan, event, *member, callbacks, known_state) for member in members]
    known = known_state.union(*plan.names.values(), *(callback.provides for callback in callbacks.values()))
    for callback in callbacks.values():
        if callback.inputs:
            _check_inputs(plan, callback, known)
    plan.steps["begin_batch"] = _ordered(plan, plan.steps["begin_batch"])
    plan.steps["end_cycle"].sort(key=lambda step: getattr(step.callback, "ends", False))  # may end training: last
    _set_awaited(plan, {name for peer in callbacks.values() if peer.data_group is None for name in peer.provides})
    requests = {name for steps in plan.steps.values() for step in steps for name in step.asks}
    for callback in callbacks.values():
        if hasattr(callback, "requested_names"):
            callback.requested_names = frozenset(requests.intersection(callback.provides))
        if getattr(callback, "only_provides", False) and requests.isdisjoint(callback.provides):
            unread = _list(callback.provides)
            raise WiringError(f"callbacks.{callback.name}: nobody asks for '{unread}'{did_you_mean(unread, requests)}")
    plan.steps["begin_batch"] = [
        step
        for step in plan.steps["begin_batch"]
        if not (getattr(step.callback, "on_request", False) and requests.isdisjoint(step.callback.provides))
    ]
    _check_trained(callbacks)
    if distributed.rank() > 0:  # after sorting, so that all ranks compute in the same order
        plan.steps = {
            event: [step for step in steps if not getattr(step.callback, "leads", False)]
            for event, steps in plan.steps.items()
        }
    return plan


def _set_awaited(plan: Plan, lasting: Iterable[str]) -> None:
    """Set `awaits` of each hook: those of its names that are missing in updates in which a loss does not learn.

    Args:
        plan: with all hooks.
        lasting: names that the run's state keeps from one update to the next.

    Raises:
        WiringError: the pace of a loss is neither 1 nor a multiple of that of a loss that it reads.
    """
    givers: dict[tuple[str, str], list[HookCall]] = {}  # by data group and name
    for event in ("begin_batch", "backward", "end_batch"):
        for step in plan.steps[event]:
            if step.callback.data_group is not None and _provided_in(step.callback) == event:
                for name in step.callback.provides:
                    givers.setdefault((step.callback.data_group, name), []).append(step)
    for step in (step for event in ("backward", "end_batch", "end_cycle") for step in plan.steps[event]):
        group = step.callback.data_group
        if group is None:
            continue
        fleeting = {*step.asks}.difference(plan.names[group], lasting)
        awaits = {name: givers.get((group, name), []) for name in step.asks if name in fleeting}
        step.awaits = {name: steps for name, steps in awaits.items() if steps and all(map(_delayed, steps))}
        for name, steps in step.awaits.items():
            paces = {giver.callback.name: getattr(giver.callback, "every", 1) for giver in steps}
            own = getattr(step.callback, "every", 1) if step.event == "backward" else 1
            if name in step.required.values() and own != 1 and all(own % pace for pace in paces.values()):
                giver, pace = next(iter(paces.items()))
                key = step.callback.config_keys.get("every", f"callbacks.{step.callback.name}.every")
                raise WiringError(
                    f"{key}={own}: it reads '{name}', which callbacks.{giver} returns in every {pace} updates; wanted "
                    f"a multiple of {pace}, or 1 for whenever that learns"
                )


def _delayed(step: HookCall) -> bool:
    """Return True if a hook does not return its names in every update of its data group."""
    return bool(step.awaits) or (step.event == "backward" and getattr(step.callback, "every", 1) != 1)


def _check_inputs(plan: Plan, callback: Callback, known: set[str]) -> None:
    """Refuse `_inputs_` of arguments that no hook has, or with names that nobody provides."""
    hooks = [hook for event in EVENTS if (hook := callback.hook(event)) is not None]
    arguments = {argument for hook in hooks for argument in hook.arguments}
    for unknown in callback.inputs.keys() - arguments:
        hint = did_you_mean(unknown, arguments)
        raise WiringError(f"callbacks.{callback.name}._inputs_: no hook has an argument '{unknown}'{hint}")
    read = {name for steps in plan.steps.values() for step in steps if step.callback is callback for name in step.asks}
    for missing in {*callback.inputs.values()} - read:
        hint = did_you_mean(missing, known)
        raise WiringError(f"callbacks.{callback.name}._inputs_: nobody provides '{missing}'{hint}")


def _check_trained(callbacks: Mapping[str, Callback]) -> None:
    """Refuse parameters that two callbacks train with separate optimizers, and groups without any parameter."""
    trains: dict[int, Callback] = {}
    optimizers = {name: getattr(callback, "optimizer", None) for name, callback in callbacks.items()}
    patterns = {name: getattr(optimizer, "matches", {}) for name, optimizer in optimizers.items()}
    choices = [item for own in patterns.values() for item in own.items()]
    matched = {place for place, choice in choices if choice.matches}
    known = sorted({path for _, choice in choices for path in choice.known})
    for name, callback in callbacks.items():
        own = patterns[name]
        if unmatched := [place for place in own if place not in matched]:
            place = min(unmatched, key=lambda place: ":" not in place)  # prefers a pattern to its whole group
            near = (did_you_mean(text, known) for text in own[place].texts)
            hint = next(filter(None, near), f"; their paths have {_list(known[:20])}")
            raise WiringError(f"callbacks.{callback.name}.optimizer.{place} matches no parameter of any loss{hint}")
        for parameter in trained_by(callback):
            before = trains.setdefault(id(parameter), callback)
            if before is not callback and not all(getattr(one, "by_turns", False) for one in (before, callback)):
                raise WiringError(
                    f"callbacks.{before.name} and callbacks.{callback.name} train the same parameters, each by an "
                    "optimizer of its own; remove one of them, or add their losses up in one callback"
                )


def _hook(callback: Callback, event: str) -> Hook | None:
    """Return a hook that will be called; None if it is not overridden, or its class sets a cycle of 0."""
    hook = callback.hook(event)
    if hook is None or event not in CYCLES or callback.cycle > 0:
        return hook
    if any("cycle" in vars(owner) for owner in (callback, *type(callback).__mro__) if owner is not Callback):
        return None
    raise WiringError(
        f"callbacks.{callback.name}.{event} would never be called: {type(callback).__name__} sets no cycle; "
        "cycle = 1 calls it every update, cycle = 0 never calls it"
    )


def _provided_in(callback: Callback) -> str | None:
    """Return the event whose hook returns a callback's `provides`."""
    events = ("begin_batch", "backward", "end_batch", "begin_training")
    return next((event for event in events if callback.hook(event) is not None), None)


def _in_time(provider: Callback, event: str, *, first_called: bool) -> bool:
    """Return True if a callback provides its names before a reader's hook of this event first runs.

    first_called: the provider is before the reader in the config.
    """
    begins = provider.data_group is None and provider.hook("begin_training") is not None
    first = "begin_training" if begins else _provided_in(provider)
    if first is None or EVENTS.index(first) > EVENTS.index(event):
        return False
    # the plan sorts begin_batch hooks; other hooks run in the config's order
    return first != event or event == "begin_batch" or first_called


def _resolve(
    plan: Plan, event: str, callback: Callback, hook: Hook, callbacks: Mapping[str, Callback], state: set[str]
) -> HookCall:
    """Divide a hook's arguments into required and optional ones."""
    group = callback.data_group
    in_batch = event not in OUTSIDE
    peers = [peer for peer in callbacks.values() if peer.data_group is None or (in_batch and peer.data_group == group)]
    order = [*callbacks]
    before = {*order[: order.index(callback.name)]}
    known = set(state).union(
        *(peer.provides for peer in peers if _in_time(peer, event, first_called=peer.name in before))
    )
    if group is not None and in_batch:
        known |= set(plan.names[group])
    required: dict[str, str] = {}
    optional: dict[str, str] = {}
    for argument, parameter in hook.arguments.items():
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        name = callback.inputs.get(argument, argument)
        needed = parameter.default is inspect.Parameter.empty
        later = [peer.name for peer in peers if name in peer.provides and _provided_in(peer) == event == "backward"]
        if name in known:
            (required if needed else optional)[argument] = name
        elif needed or later:
            holding = [key for key, names in plan.names.items() if name in names and in_batch and group is None]
            hint = f": set data_group = '{holding[0]}' in its class" if holding else did_you_mean(name, known)
            hint = f"; callbacks.{later[0]} provides it only later: put '{later[0]}' first" if later else hint
            withheld = (getattr(peer, "withheld", {}).get(name) for peer in peers)
            hint = next((f"; {why}" for why in withheld if why), hint)
            raise WiringError(_unknown(callback, hook, name, known, group if in_batch else None) + hint)
    framework = tuple(name for name in hook.framework if name in known)
    return HookCall(callback, event, hook.label, required, optional, hook.method, framework)


def _unknown(callback: Callback, hook: Hook, name: str, known: set[str], group: str | None) -> str:
    place = f"data group '{group}' has" if group is not None else "the run's state has"
    names = sorted(known - {"callbacks", "config", "loader", "parts", "run_dir", "spent"})
    return f"callbacks.{callback.name}.{hook.label} asks for '{name}'; {place} {_list(names)} then"


def _ordered(plan: Plan, steps: list[HookCall]) -> list[HookCall]:
    """Sort `begin_batch` hooks: first those that provide a name, then those that rewrite it, then its readers."""
    graph: dict[int, set[int]] = {index: set() for index in range(len(steps))}
    providers = [(i, name) for i, step in enumerate(steps) for name in step.callback.provides]
    for name in {name for _, name in providers}:
        sources = [i for i, provided in providers if provided == name and name not in steps[i].asks]
        rewriters = [i for i, provided in providers if provided == name and name in steps[i].asks]
        chain = sources + rewriters
        for before, after in pairwise(chain):
            graph[after].add(before)
        for index, step in enumerate(steps):
            if name in step.asks and index not in chain:
                graph[index] |= {i for i in chain if steps[i].callback.data_group in (None, step.callback.data_group)}
        for step in [] if sources else [steps[i] for i in rewriters]:
            if name in step.required.values() and name not in plan.names.get(step.callback.data_group or "", ()):
                raise WiringError(
                    f"callbacks.{step.callback.name}.{step.label} rewrites '{name}', but nobody provides it first"
                )
    return [steps[index] for index in _sort(graph, steps)]


def _sort(graph: dict[int, set[int]], steps: list[HookCall]) -> list[int]:
    """Return the topological order; independent hooks keep the config's order."""
    sorter = TopologicalSorter(graph)
    try:
        sorter.prepare()
    except CycleError as error:
        circle = " -> ".join(f"callbacks.{steps[index].callback.name}" for index in error.args[1])
        raise WiringError(f"begin_batch hooks wait for each other: {circle}") from None
    order: list[int] = []
    ready: list[int] = []
    while sorter.is_active():
        ready += sorter.get_ready()
        ready.sort()
        order.append(ready.pop(0))
        sorter.done(order[-1])
    return order


def explain(plan: Plan, path_of: Callable[[object], str] = lambda part: type(part).__name__) -> str:
    """Return the data flow of one update as text, one line a hook."""
    rows = [
        (event, name, " ".join(reads) or "—", f"-> {' '.join(provides)}" if provides else "", note)
        for event, name, reads, provides, note in (hook.values() for hook in data_flow(plan, path_of))
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    lines = [
        f"{'loader'.ljust(max(widths[0], 6))}  {group}: {' '.join(names)}"
        + (f" ({plan.rates[group]})" if group in plan.rates else "")
        for group, names in plan.names.items()
    ]
    last = ""
    for head, *rest in rows:
        shown = head if head != last else ""
        last = head
        cells = [cell.ljust(width) for cell, width in zip((shown, *rest), (*widths, 0), strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def data_flow(plan: Plan, path_of: Callable[[object], str] = lambda part: type(part).__name__) -> list[dict[str, Any]]:
    """Return the hooks of one update in the order of their calls: event, callback, names read and provided, note."""
    events = ("begin_cycle", "begin_batch", "backward", "end_batch", "end_cycle")
    several = len(plan.names) > 1
    rows = [_described(plan, step, event, path_of, several) for event in events for step in plan.steps[event]]
    if not any("step" in row["reads"] for row in rows):  # nothing is collected, so intervals count updates
        rows = [{**row, "note": row["note"].replace(" steps", " updates")} for row in rows]
    return rows


def _described(
    plan: Plan, step: HookCall, event: str, path_of: Callable[[object], str], several: bool
) -> dict[str, Any]:
    callback = step.callback
    provides = callback.provides if _provided_in(callback) == event else ()
    order = ("backward", "begin_batch", "end_batch", "end_cycle", "begin_cycle")
    first = next(e for e in order if any(other.callback is callback for other in plan.steps[e]))
    note = callback.note(path_of) if event == first else ""
    if note and several and callback.data_group not in (None, "default"):
        note = f"{note}; data group {callback.data_group}"
    required = [steps for name, steps in step.awaits.items() if name in step.required.values()]
    if required:
        givers = dict.fromkeys(giver.callback.name for steps in required for giver in steps)
        note = "; ".join(filter(None, (note, f"in updates in which {' and '.join(givers)} learns")))
    return {"event": event, "callback": callback.name, "reads": step.asks, "provides": provides, "note": note}


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
