"""A policy's file as an agent, which acts through onnxruntime alone."""

from collections.abc import Mapping
from typing import Any

import torch

from rlrun.collect.agents import Agent, Response
from rlrun.core.errors import RlrunError, RunDirError, SpaceError
from rlrun.core.spaces import row_count
from rlrun.core.typing import Array, Tree
from rlrun.env.descriptions import containers
from rlrun.export.checking import columns
from rlrun.export.graph import Outer, Port, actions, observations
from rlrun.export.play_onnx import Policy, nested

ALIKE = ("shape", "kind", "n", "start")  # what a space says that has to be the same in a file and an environment
BOUNDS = ("low", "high")  # … and of actions, too: the file scales to them


class FileAgent(Agent):
    """The policy of a file; its actions have the form that the environment takes.

    Args:
        session: of onnxruntime.
        about: the content of FILE.json.
        outer: the spaces of the environment.
        place: what messages call the file.

    Raises:
        SpaceError: its inputs or outputs do not fit the environment.
        RunDirError: FILE.json does not describe it.
    """

    outputs: tuple[str, ...] = ("action",)

    def __init__(self, session: Any, about: Mapping[str, Any], outer: Outer, place: str) -> None:
        self.place, self._containers = place, containers(outer.action)
        self._read = [port for port, _ in observations(outer.observation)]
        self._written = [port for port, _ in actions(outer.action)]
        try:
            self._file = Policy(session, about)
            _require_fit(self._read, self._file.inputs["observation"], place)
            _require_fit(self._written, self._file.actions, place)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise RunDirError(f"{place}.json is damaged: it does not describe inputs and outputs") from error
        self._file.draw = torch.randn  # by the generator that others use

    @property
    def stochastic(self) -> bool:
        """Whether actions are drawn."""
        return bool(self._file.inputs["epsilon"])

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        """Act on observations [N, …]; whether it explores is fixed in the file.

        Raises:
            RlrunError: it fails.
        """
        self._file.state = state or {}
        try:
            outputs = self._file.run(columns(self._read, observation))
        except Exception as error:
            raise RlrunError(f"{self.place} cannot act: {cause(error)}") from error
        envs = row_count(observation)
        action = {port.name: self._own(port, outputs[port.name], envs) for port in self._written}
        response: Response = {"action": nested(self._containers, action, "action")}
        if self._file.state:
            response["state"] = self._file.state
        return response

    def initial_state(self, count: int) -> Tree | None:
        """Return the state of `count` new episodes, by the names of the inputs; None without a state."""
        self._file.reset(count)
        return self._file.state or None

    def _own(self, port: Port, value: Array, envs: int) -> Array:
        if value.shape != (envs, *port.shape):
            raise RlrunError(f"{self.place}: '{port.name}' is {list(value.shape)}, wanted {[envs, *port.shape]}")
        return value.astype(port.space["env_dtype"])


def cause(error: Exception) -> str:
    """Return the message of onnxruntime in one line, without its codes."""
    lines = str(error).strip().splitlines()
    return lines[0].split(" : ", 3)[-1] if lines else type(error).__name__


def _require_fit(ports: list[Port], entries: list[dict[str, Any]], place: str) -> None:
    """Refuse a file, whose entries FILE.json has, for another space than that of an environment.

    Raises:
        SpaceError: with what both are.
    """
    by_name = {entry["name"]: entry for entry in entries}
    own, theirs = ([f"'{name}'" for name in names] for names in (by_name, (port.name for port in ports)))
    if sorted(own) != sorted(theirs):
        raise SpaceError(f"{place} is for {', '.join(own)}; the environment has {', '.join(theirs)}")
    for port in ports:
        wanted = port.to_json()
        for key in (*ALIKE, *(BOUNDS if port.role == "action" else ())):
            if (value := by_name[port.name].get(key)) != wanted.get(key):
                raise SpaceError(
                    f"{place}: '{port.name}' was made for {key} {repr(value)[:200]}, "
                    f"but {_space(port)} of the environment has {wanted.get(key)!r}"
                )


def _space(port: Port) -> str:
    part = port.name.partition(".")[2]
    return f"the {port.role} space" + (f"'s part '{part}'" if part else "")
