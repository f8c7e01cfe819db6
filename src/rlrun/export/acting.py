"""An exported policy as an agent that acts by onnxruntime, without the networks of the run."""

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

ALIKE = ("shape", "kind", "n", "start")  # properties of a space that must be the same in a file and an environment
BOUNDS = ("low", "high")  # of actions these must be the same, too: the file scales to them


class FileAgent(Agent):
    """The policy in a file as an agent; its actions are in the environment's own form.

    Args:
        session: of onnxruntime.
        about: the content of FILE.json.
        outer: the spaces of the environment.
        place: name of the file in messages.

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
        self._file.draw = torch.randn  # uses torch's global generator, which runs seed

    @property
    def stochastic(self) -> bool:
        """Whether actions are sampled."""
        return bool(self._file.inputs["epsilon"])

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        """Act on observations [N, …]; `explore` has no effect, as the file fixes it.

        Raises:
            RlrunError: onnxruntime fails.
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
        """Return the recurrent state of `count` new episodes by names of inputs; None without a state."""
        self._file.reset(count)
        return self._file.state or None

    def _own(self, port: Port, value: Array, envs: int) -> Array:
        if value.shape != (envs, *port.shape):
            raise RlrunError(f"{self.place}: '{port.name}' is {list(value.shape)}, wanted {[envs, *port.shape]}")
        return value.astype(port.space["env_dtype"])


def cause(error: Exception) -> str:
    """Return an error of onnxruntime as one line, without codes."""
    lines = str(error).strip().splitlines()
    return lines[0].split(" : ", 3)[-1] if lines else type(error).__name__


def _require_fit(ports: list[Port], entries: list[dict[str, Any]], place: str) -> None:
    """Refuse a file whose entries in FILE.json do not fit the space of an environment.

    Raises:
        SpaceError: naming both.
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
