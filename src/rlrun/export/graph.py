"""A policy as one function of arrays, from the environment's observations to its actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import torch
from torch import Tensor, nn

from rlrun.env.spaces import from_gymnasium
from rlrun.errors import RequestError
from rlrun.export import ports
from rlrun.export.ports import Port
from rlrun.memory.episodes import nest
from rlrun.ops import leaves_of, noise, tree_of
from rlrun.spaces import Space
from rlrun.typing import Tree

NAMES: dict[noise.Kind, ports.Role] = {"normal": "epsilon", "gumbel": "gumbel"}


class Outer(NamedTuple):
    """The spaces of an environment, one lane, as its own clients see them."""

    observation: gymnasium.Space[Any]
    action: gymnasium.Space[Any]


class Graph(nn.Module):
    """An agent as a client meets it: tensors [N, …] in the order of `inputs`, and as many as `outputs` come out.

    Args:
        agent: with `respond`; moved to the CPU before.
        outer: the environment's own spaces.
        stochastic: whether actions are drawn, by noise that the client gives.

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
        self.held = nn.ModuleList(_modules(agent))  # so that their weights become the file's
        read, written = ports.observations(outer.observation), ports.actions(outer.action)
        self._readers = [convert for _, convert in read]
        self._writers = [convert for _, convert in written]
        self._state = flat(agent.initial_state(1))
        self.inputs = [port for port, _ in read]
        self.outputs = [port for port, _ in written]
        for path, value in self._state:
            shape, dtype = tuple(value.shape[1:]), value.dtype.name
            self.inputs.append(Port(ports.named("state", path), "state", shape, dtype, {"initial": _brief(value[0])}))
            self.outputs.append(Port(ports.named("next_state", path), "next_state", shape, dtype, {}))
        self.eval()
        self.widths = self._measure() if stochastic else {}
        about = {"epsilon": "standard normal", "gumbel": "standard Gumbel: -log(-log(uniform))"}
        for kind, width in self.widths.items():
            self.inputs.append(Port(kind, kind, (width,), "float32", {"drawn": about[kind]}))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return actions, and the state after them where there is one."""
        count, states = len(self._readers), len(self._state)
        values = [read(value) for read, value in zip(self._readers, inputs[:count], strict=True)]
        state = nested([path for path, _ in self._state], inputs[count : count + states])
        noises = dict(zip(self.widths, inputs[count + states :], strict=True))
        with noise.given(Dealer(noises)):
            action, after = self.agent.respond(tree_of(self.spaces[0], values), state, self.stochastic)
        leaves = leaves_of(self.spaces[1], action)
        written = [write(value) for write, value in zip(self._writers, leaves, strict=True)]
        return (*written, *(value for _, value in flat(after)))

    def blank(self, lanes: int) -> list[Tensor]:
        """Return inputs of zeros; choices are at their first."""
        inputs = []
        for port in self.inputs:
            value = torch.zeros((lanes, *port.shape), dtype=getattr(torch, port.dtype))
            inputs.append(value + torch.as_tensor(port.space.get("start", 0)).to(value.dtype))
        return inputs

    def _measure(self) -> dict[ports.Role, int]:
        """Return how many numbers of each kind an action takes."""
        widths: dict[ports.Role, int] = {}

        def count(kind: noise.Kind, like: Tensor) -> Tensor:
            name: ports.Role = NAMES[kind]
            widths[name] = widths.get(name, 0) + math.prod(like.shape[1:])
            return torch.zeros_like(like)

        blank = self.blank(1)
        values = [read(value) for read, value in zip(self._readers, blank, strict=False)]
        state = nested([path for path, _ in self._state], blank[len(values) :])
        with torch.no_grad(), noise.given(count):
            self.agent.respond(tree_of(self.spaces[0], values), state, True)
        return dict(sorted(widths.items()))


class Dealer:
    """Deals out the columns of given noise, in the order in which a policy asks for them."""

    def __init__(self, noises: dict[ports.Role, Tensor]) -> None:
        self.noises = noises
        self.dealt = dict.fromkeys(noises, 0)

    def __call__(self, kind: noise.Kind, like: Tensor) -> Tensor:
        name = NAMES[kind]
        if name not in self.noises:
            raise RequestError("the policy draws random numbers even where it is asked for its best action")
        width = math.prod(like.shape[1:])
        begin = self.dealt[name]
        self.dealt[name] = begin + width
        return self.noises[name][:, begin : begin + width].reshape(like.shape)


def _modules(agent: Any) -> list[nn.Module]:
    """Return the modules that an agent holds, those that networks only borrow among them, each once."""
    modules: dict[int, nn.Module] = {}
    waiting: list[Any] = list(vars(agent).values())
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            modules[id(value)] = value
            for module in value.modules():
                waiting += [part for part in vars(module).values() if isinstance(part, tuple | list)]
        elif isinstance(value, tuple | list):
            waiting += value
        elif hasattr(value, "__self__"):  # a method of a module
            waiting.append(value.__self__)
    return list(modules.values())


def _brief(value: Any) -> Any:
    """Return an array as one number where it is the same everywhere, else as a list."""
    listed = value.tolist()
    return float(value.flat[0]) if value.size and (value == value.flat[0]).all() else listed


def flat(tree: Tree, path: str = "") -> list[tuple[str, Any]]:
    """Return the leaves of a tree of arrays with their paths; none of None."""
    if tree is None:
        return []
    if isinstance(tree, dict):
        return [leaf for name, part in tree.items() for leaf in flat(part, f"{path}.{name}" if path else name)]
    return [(path, tree)]


def nested(paths: Sequence[str], values: Sequence[Any]) -> Tree:
    """Return the tree whose leaves lie at some paths; None where there are none."""
    if not paths:
        return None
    return values[0] if list(paths) == [""] else nest(dict(zip(paths, values, strict=False)))
