"""A policy as one function of arrays, from the environment's observations to its actions.

Inputs and outputs are in the environment's own numbers: choices count from `start`, actions are within the bounds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.compile.graph import modules_of
from rlrun.core import spaces
from rlrun.core.errors import RequestError
from rlrun.core.spaces import RULES_STATE, Space, leaves, leaves_of, tree_of
from rlrun.core.typing import Array, Tree
from rlrun.env.descriptions import describe_leaf, walk
from rlrun.env.spaces import from_gymnasium
from rlrun.ops import distributions

Role = Literal["observation", "state", "epsilon", "action", "next_state"]
Convert = Callable[[Tensor], Tensor]
TINY = 1e-7  # 1 - TINY is below 1 in float32
UNKNOWN = ("uint16", "uint32", "uint64")  # types that torch's exporter does not support


@dataclass(frozen=True)
class Port:
    """An input or output of an exported file.

    Attributes:
        name: in the file; parts of a composite space are named after a dot.
        role: its meaning.
        shape: of one env; the file has the number of envs as the first dimension.
        dtype: numpy's name of the type.
        space: properties of the numbers: kind, bounds, number of choices, first choice.
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    dtype: str
    space: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return its entry in FILE.json."""
        return {"name": self.name, "role": self.role, "shape": list(self.shape), "dtype": self.dtype, **self.space}


class Outer(NamedTuple):
    """The Gymnasium spaces of one env, in the environment's own form."""

    observation: gymnasium.Space[Any]
    action: gymnasium.Space[Any]

    @classmethod
    def of(cls, spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]]) -> "Outer":
        """Return the spaces without the state of a game's rules, which no policy reads."""
        observation, action = spaces
        if isinstance(observation, gymnasium.spaces.Dict) and RULES_STATE in observation.spaces:
            parts = {name: part for name, part in observation.spaces.items() if name != RULES_STATE}
            observation = gymnasium.spaces.Dict(parts)
        return cls(observation, action)


class Graph(nn.Module):
    """An agent as a module for export: tensors [N, …] in the order of `inputs` -> tensors in the order of `outputs`.

    Args:
        agent: with `respond`, already on the CPU.
        outer: the environment's own spaces.
        stochastic: sample actions, by normal noise that is an input.

    Raises:
        RequestError: the agent cannot be exported.
    """

    def __init__(self, agent: Any, outer: Outer, *, stochastic: bool = False) -> None:
        super().__init__()
        if not hasattr(agent, "respond"):
            raise RequestError(
                f"a {type(agent).__name__} cannot be exported: it has no respond(observation, state, explore), "
                "from tensors to tensors, as rlrun.collect.PolicyAgent has"
            )
        self.agent = agent
        self.outer = outer
        self.stochastic = stochastic
        self.spaces: tuple[Space, Space] = (
            from_gymnasium(outer.observation, "the observation space"),
            from_gymnasium(outer.action, "the action space", action=True),
        )
        self.held = nn.ModuleList(_modules(agent))  # registered, so that their weights are in the file
        read, written = observations(outer.observation), actions(outer.action)
        self._readers = [convert for _, convert in read]
        self._writers = [convert for _, convert in written]
        self._state = flat(agent.initial_state(1))
        self.inputs = [port for port, _ in read]
        self.outputs = [port for port, _ in written]
        for path, value in self._state:
            shape, dtype = tuple(value.shape[1:]), value.dtype.name
            alike = value.size and (value[0] == value.flat[0]).all()  # if so, one number describes the initial state
            initial = float(value.flat[0]) if alike else value[0].tolist()
            self.inputs.append(Port(named("state", path), "state", shape, dtype, {"initial": initial}))
            self.outputs.append(Port(named("next_state", path), "next_state", shape, dtype, {}))
        self.eval()
        self.width = self._measure() if stochastic else 0
        if self.width:
            self.inputs.append(Port("epsilon", "epsilon", (self.width,), "float32", {"drawn": "standard normal"}))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the actions, followed by the next recurrent state, if any."""
        return self._respond(inputs, dealing(inputs[-1] if self.width else None))

    def _respond(self, inputs: Sequence[Tensor], noise: distributions.Source) -> tuple[Tensor, ...]:
        count = len(self._readers)
        values = [read(value) for read, value in zip(self._readers, inputs[:count], strict=True)]
        state = nested([path for path, _ in self._state], inputs[count : count + len(self._state)])
        with distributions.given(noise):
            action, after = self.agent.respond(tree_of(self.spaces[0], values), state, self.stochastic)
        leaves = leaves_of(self.spaces[1], action)
        written = [write(value) for write, value in zip(self._writers, leaves, strict=True)]
        return (*written, *(value for _, value in flat(after)))

    def blank(self, envs: int) -> list[Tensor]:
        """Return inputs [N, …] of zeros, or of the first choice."""
        inputs = []
        for port in self.inputs:
            value = torch.zeros((envs, *port.shape), dtype=getattr(torch, port.dtype))
            inputs.append(value + torch.as_tensor(port.space.get("start", 0)).to(value.dtype))
        return inputs

    def _measure(self) -> int:
        """Return the number of random numbers that an action needs."""
        width = 0

        def count(kind: distributions.Kind, like: Tensor) -> Tensor:
            nonlocal width
            width += math.prod(like.shape[1:])
            return torch.zeros_like(like)

        with torch.no_grad():
            self._respond(self.blank(1), count)
        return width


def dealing(epsilon: Tensor | None) -> distributions.Source:
    """Return a source of random numbers that hands out the columns of standard normal noise [N, W] in turn.

    Gumbel noise is computed from it: -log(-log u), where u is the normal distribution function of a number.
    """
    dealt = 0

    def deal(kind: distributions.Kind, like: Tensor) -> Tensor:
        nonlocal dealt
        if epsilon is None:
            raise RequestError("the policy draws random numbers even where it is asked for its best action")
        begin, dealt = dealt, dealt + math.prod(like.shape[1:])
        normal = epsilon[:, begin:dealt].reshape(like.shape)
        if kind == "normal":
            return normal
        share = (0.5 + 0.5 * torch.erf(normal * math.sqrt(0.5))).clamp(TINY, 1.0 - TINY)
        return -(-share.log()).log()

    return deal


def _modules(agent: Any) -> list[nn.Module]:
    """Return the outermost modules of an agent, including those that networks refer to without owning them."""
    modules = modules_of(vars(agent).values())
    inner = {id(part) for module in modules for part in module.modules() if part is not module}
    return [module for module in modules if id(module) not in inner]


def flat(tree: Tree) -> list[tuple[str, Any]]:
    """Return the leaves of a tree of arrays with their paths; None has no leaves."""
    return [] if tree is None else list(spaces.flat(tree).items())


def nested(paths: Sequence[str], values: Sequence[Any]) -> Tree:
    """Return the tree with values at paths; None without paths."""
    if not paths:
        return None
    return values[0] if list(paths) == [""] else spaces.nest(dict(zip(paths, values, strict=False)))


def named(role: str, path: str) -> str:
    """Return the name of a part in a file, such as `observation.camera`."""
    return f"{role}.{path}" if path else role


def observations(space: gymnasium.Space[Any]) -> list[tuple[Port, Convert]]:
    """Return the inputs for an observation, each with the conversion to the numbers that networks read."""
    pairs = []
    ours = dict(leaves(from_gymnasium(space, "the observation space")))
    for path, leaf in walk(space):
        inside = getattr(torch, ours[path].dtype)
        dtype = ours[path].dtype if leaf.dtype.name in UNKNOWN else leaf.dtype.name
        port = Port(named("observation", path), "observation", tuple(leaf.shape), dtype, describe_leaf(leaf))
        pairs.append((port, _reader(inside, np.asarray(getattr(leaf, "start", 0)))))
    return pairs


def _reader(dtype: torch.dtype, start: Array) -> Convert:
    first = torch.as_tensor(start)
    return (lambda value: (value - first).to(dtype)) if start.any() else lambda value: value.to(dtype)


def actions(space: gymnasium.Space[Any]) -> list[tuple[Port, Convert]]:
    """Return the outputs of an action, each with the conversion from a policy's own action."""
    pairs = []
    for path, leaf in walk(space):
        whole = not isinstance(leaf, gymnasium.spaces.Box) or leaf.dtype.kind != "f"
        dtype = "int64" if whole else leaf.dtype.name
        port = Port(named("action", path), "action", tuple(leaf.shape), dtype, describe_leaf(leaf))
        pairs.append((port, _box_writer(leaf) if isinstance(leaf, gymnasium.spaces.Box) else _choice_writer(leaf)))
    return pairs


def _choice_writer(space: Any) -> Convert:
    start = torch.as_tensor(np.asarray(getattr(space, "start", 0)), dtype=torch.int64)
    return lambda action: action.to(torch.int64) + start


def _box_writer(space: gymnasium.spaces.Box) -> Convert:
    """Return a function from [-1, 1] to the bounds; rounding never exceeds them."""
    whole = space.dtype.kind != "f"  # type: ignore[union-attr]
    dtype = torch.float64 if whole else getattr(torch, space.dtype.name)  # type: ignore[union-attr]
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        return lambda action: action.to(torch.int64 if whole else dtype)
    low, high = (torch.as_tensor(bound.astype(np.float64)) for bound in (space.low, space.high))
    half, middle = 0.5 * high - 0.5 * low, 0.5 * high + 0.5 * low  # halved first: huge bounds do not overflow
    low, high, half, middle = (bound.to(dtype) for bound in (low, high, half, middle))
    if whole:
        return lambda action: ((action * half + middle).round().clamp(low, high)).to(torch.int64)
    return lambda action: torch.minimum(torch.maximum(action.to(dtype) * half + middle, low), high)
