"""A policy's file as an agent, which acts through onnxruntime alone."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rlrun.collect.agents import Agent, Response
from rlrun.core.errors import RequestError, RlrunError, SpaceError
from rlrun.core.spaces import row_count
from rlrun.core.typing import Array, Tree
from rlrun.env.descriptions import containers
from rlrun.export.checking import columns
from rlrun.export.graph import Outer, Port, actions, observations
from rlrun.export.play_onnx import nested
from rlrun.ops.distributions import gumbel_like, normal_like

NOISE = {"epsilon": normal_like, "gumbel": gumbel_like}
TYPES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(bool)": "bool"}
ALIKE = ("kind", "n", "start")  # what a space says that has to be the same in a file and an environment
BOUNDS = ("low", "high")  # … and of actions, too: the file scales to them


class Slot(NamedTuple):
    """An input or output of a file; the first axis of its shape is the number of envs."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]

    def __str__(self) -> str:
        return _shown(self.shape[1:], self.dtype)


class FileAgent(Agent):
    """The policy of a file; its actions have the form that the environment takes.

    Args:
        session: of onnxruntime.
        about: the content of FILE.json; empty without one.
        outer: the spaces of the environment.
        place: what messages call the file.

    Raises:
        SpaceError: its inputs or outputs do not fit the environment.
        RequestError: it has unknown inputs, or takes one number of envs only.
    """

    outputs: tuple[str, ...] = ("action",)

    def __init__(self, session: Any, about: Mapping[str, Any], outer: Outer, place: str) -> None:
        self.session, self.place, self._containers = session, place, containers(outer.action)
        inputs, outputs = (_slots(nodes, place) for nodes in (session.get_inputs(), session.get_outputs()))
        entries = {port["name"]: port for key in ("inputs", "outputs") for port in read_ports(about, key)}
        self._noise = {name: _width(inputs.pop(name), place) for name in NOISE if name in inputs}
        states = [inputs.pop(name) for name in list(inputs) if name.partition(".")[0] == "state"]
        self._initial = {slot.name: _initial(slot, entries, place) for slot in states}
        after = [f"next_{name}" for name in self._initial]
        rest = {name: slot for name, slot in outputs.items() if name not in after}
        self._read = _pairs([port for port, _ in observations(outer.observation)], inputs, place)
        self._written = _pairs([port for port, _ in actions(outer.action)], rest, place, surplus=True)
        if unwanted := [name for name in inputs if name not in [slot.name for _, slot in self._read]]:
            raise SpaceError(f"{place} takes '{unwanted[0]}', which the environment does not give")
        if missing := [name for name in after if name not in outputs]:
            raise RequestError(f"{place} gives no '{missing[0]}', so its state cannot be kept")
        for port, slot in (*self._read, *self._written):
            _require_fit(port, slot, entries.get(slot.name, {}), place)
        self._names = [*(slot.name for _, slot in self._written), *after]

    @property
    def stochastic(self) -> bool:
        """Whether actions are drawn."""
        return bool(self._noise)

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        """Act on observations [N, …]; whether it explores is fixed in the file.

        Raises:
            RlrunError: it fails.
        """
        envs = row_count(observation)
        own = columns([port for port, _ in self._read], observation)
        inputs = {slot.name: own[port.name].astype(slot.dtype) for port, slot in self._read}
        outputs = self._run({**inputs, **(state or {})}, envs)
        action = {port.name: self._own(port, outputs[slot.name], envs) for port, slot in self._written}
        response: Response = {"action": nested(self._containers, action, "action")}
        if self._initial:
            response["state"] = {name: outputs[f"next_{name}"] for name in self._initial}
        return response

    def initial_state(self, count: int) -> Tree | None:
        """Return the state of `count` new episodes, by the names of the inputs; None without a state."""
        begun = {name: np.broadcast_to(value, (count, *value.shape)) for name, value in self._initial.items()}
        return begun or None

    def _run(self, inputs: dict[str, Array], envs: int) -> dict[str, Array]:
        try:
            noise = {name: NOISE[name](torch.zeros(envs, width)).numpy() for name, width in self._noise.items()}
            return dict(zip(self._names, self.session.run(self._names, inputs | noise), strict=True))
        except Exception as error:
            raise RlrunError(f"{self.place} cannot act: {cause(error)}") from error

    def _own(self, port: Port, value: Array, envs: int) -> Array:
        if value.shape != (envs, *port.shape):
            raise RlrunError(f"{self.place}: '{port.name}' is {list(value.shape)}, wanted {[envs, *port.shape]}")
        return value.astype(port.space["env_dtype"])


def cause(error: Exception) -> str:
    """Return the message of onnxruntime in one line, without its codes."""
    lines = str(error).strip().splitlines()
    return lines[0].split(" : ", 3)[-1] if lines else type(error).__name__


def read_ports(about: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the well-formed inputs or outputs that FILE.json lists."""
    value = about.get(key)
    entries = value if isinstance(value, list) else []
    return [port for port in entries if isinstance(port, dict) and isinstance(port.get("name"), str)]


def _slots(nodes: Sequence[Any], place: str) -> dict[str, Slot]:
    slots = {}
    for node in nodes:
        dtype = TYPES.get(node.type, node.type.removeprefix("tensor(").removesuffix(")"))
        try:
            np.dtype(dtype)
        except TypeError:
            raise RequestError(f"{place}: '{node.name}' is a {node.type}; wanted a tensor of numbers") from None
        slots[node.name] = Slot(node.name, dtype, tuple(node.shape))
    return slots


def _width(slot: Slot, place: str) -> int:
    if len(slot.shape) != 2 or not isinstance(slot.shape[1], int) or slot.dtype != "float32":
        raise RequestError(f"{place}: '{slot.name}' is {slot}; wanted so many float32 numbers an environment")
    return slot.shape[1]


def _initial(slot: Slot, entries: Mapping[str, Any], place: str) -> Array:
    try:
        value = np.asarray(entries[slot.name]["initial"], slot.dtype)
        return np.broadcast_to(value, slot.shape[1:])  # type: ignore[arg-type]  # a name fails, too
    except (KeyError, TypeError, ValueError, OverflowError):
        raise RequestError(f"{place}.json does not say how '{slot.name}' begins, which {place} takes") from None


def _pairs(
    wanted: Sequence[Port], slots: Mapping[str, Slot], place: str, *, surplus: bool = False
) -> list[tuple[Port, Slot]]:
    """Pair ports with slots by name, or a single one with a single one. surplus: whether a file may have more."""
    if len(wanted) == len(slots) == 1:
        return [(wanted[0], next(iter(slots.values())))]
    for port in wanted:
        if port.name not in slots:
            has = ", ".join(f"'{name}'" for name in slots) or "nothing"
            raise SpaceError(f"{place} has no {'output' if surplus else 'input'} '{port.name}', it has {has}")
    return [(port, slots[port.name]) for port in wanted]


def _require_fit(port: Port, slot: Slot, entry: Mapping[str, Any], place: str) -> None:
    """Refuse a file for another space.

    Raises:
        SpaceError: with what both are.
    """
    if not slot.shape or isinstance(slot.shape[0], int):
        made_for = f"for {slot.shape[0]} envs only" if slot.shape else slot
        raise RequestError(f"{place}: '{slot.name}' is {made_for}; its first axis has to be open, for environments")
    fits = len(slot.shape) == 1 + len(port.shape) and all(
        not isinstance(size, int) or size == wanted for size, wanted in zip(slot.shape[1:], port.shape, strict=True)
    )
    wanted = _shown(port.shape, port.dtype)
    if not fits or _sort(slot.dtype) != _sort(port.dtype):
        raise SpaceError(f"{place}: '{slot.name}' is {slot}, but {_space(port)} of the environment is {wanted}")
    for key in (*ALIKE, *(BOUNDS if port.role == "action" else ())):
        if key in entry and entry[key] != port.space.get(key):
            raise SpaceError(
                f"{place}: '{slot.name}' was made for {key} {repr(entry[key])[:200]}, "
                f"but {_space(port)} of the environment has {port.space.get(key)!r}"
            )


def _space(port: Port) -> str:
    part = port.name.partition(".")[2]
    return f"the {port.role} space" + (f"'s part '{part}'" if part else "")


def _sort(dtype: str) -> str:
    kind = np.dtype(dtype).kind
    return "whole" if kind in "iu" else kind


def _shown(shape: Sequence[Any], dtype: str) -> str:
    return f"[{', '.join(map(str, shape))}] {dtype}"
