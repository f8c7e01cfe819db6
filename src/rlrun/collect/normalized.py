"""Policies that include the normalization of the environment's wrappers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import wrappers
from torch import Tensor, nn

from rlrun.collect.agents import Agent, Response, initial_state
from rlrun.collect.evaluate import restored_generators
from rlrun.core.errors import RequestError, RlrunError
from rlrun.core.spaces import map_tree
from rlrun.core.typing import Array, Tree
from rlrun.env import Env
from rlrun.env.raw_return import REWARD_WRAPPERS
from rlrun.env.sync import SyncEnv
from rlrun.env.wrapper_state import Layer, States, are_learning, has_moments, layers_of, offers_state
from rlrun.env.wrappers import ActionMask, FrameStack, RandomGoal

TRIED = 64  # steps in which both forms of observations are compared
TOLERANCE = 1e-4  # relative, or absolute for numbers below 1: single precision of one form, double of the other
WAY_OUT = "normalize by +with=observation_norm, which is part of the policy"


class Constants(NamedTuple):
    """The constants of (x - mean) / deviation, for a part of an observation or all of it."""

    mean: Array
    deviation: Array

    def normalize(self, value: Array) -> Array:
        return np.asarray((value - self.mean) / self.deviation, np.float32)


class Normalization(nn.Module):
    """Normalizes parts of observations [N, …] by constants.

    constants: path of a part -> its constants, the innermost first.
    """

    def __init__(self, constants: Mapping[str, Sequence[Constants]]) -> None:
        super().__init__()
        self.constants = {path: list(parts) for path, parts in constants.items()}
        for number, (mean, deviation) in enumerate(part for parts in constants.values() for part in parts):
            self.register_buffer(f"mean_{number}", torch.as_tensor(mean))
            self.register_buffer(f"deviation_{number}", torch.as_tensor(deviation))

    def forward(self, observation: Tree) -> Tree:
        buffers = iter(self.buffers())
        for path, parts in self.constants.items():
            for _ in parts:
                observation = _changed(observation, path, _tensor_by(next(buffers), next(buffers)))
        return observation

    def of_arrays(self, observation: Tree) -> Tree:
        """Return observations of arrays, normalized."""
        for path, parts in self.constants.items():
            for constants in parts:
                observation = _changed(observation, path, constants.normalize)
        return observation


def _tensor_by(mean: Tensor, deviation: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda value: ((value - mean) / deviation).float()


def _changed(tree: Tree, path: str, change: Callable[[Any], Any]) -> Tree:
    if not path:
        return change(tree)
    key, _, rest = path.partition(".")
    return {**tree, key: _changed(tree[key], rest, change)}


class UnwrappedAgent(Agent):
    """An agent for observations before wrappers.

    Args:
        agent: for observations after wrappers; its modules become this one's.
        wrapped: a function from observations [N, …] before wrappers to those after them.
        traced: the same as a module for tensors; None if there is none.
    """

    def __init__(self, agent: Any, wrapped: Callable[[Tree], Tree], traced: nn.Module | None = None) -> None:
        vars(self).update(vars(agent))
        self.agent, self.outputs = agent, agent.outputs
        self.wrapped, self.traced = wrapped, traced

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        response: Response = self.agent(self.wrapped(observation), state, explore=explore)
        return response

    def respond(self, observation: Tree, state: Tree | None, explore: bool) -> Any:
        """Return the action and the state after it, as tensors."""
        assert self.traced is not None
        return self.agent.respond(self.traced(observation), state, explore)

    def initial_state(self, count: int) -> Tree | None:
        return initial_state(self.agent, count)


class Unwrapper:
    """Makes policies for observations before NormalizeObservation; it compares two envs, which it keeps until `close`.

    env: to copy.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._wrapped: Env | None = None
        self._bare: Env | None = None

    def __call__(self, agent: Agent, states: States) -> tuple[Agent, Env]:
        """Return the policy, and an env with the observations that it reads.

        Args:
            agent: for observations after all wrappers.
            states: of the env's wrappers.

        Raises:
            RequestError: another wrapper learns from observations, or one outside of NormalizeObservation changes them.
            RlrunError: normalized observations differ from those of the wrappers.
        """
        wrapped = self._wrapped = self._wrapped or self._first_copy()
        constants = _constants(wrapped.envs[0], states) if wrapped.envs else {}
        outermost = wrapped.envs[0] if wrapped.envs else getattr(wrapped, "vector", None)
        if not constants and not any(_learns(layer) for layer in layers_of(outermost)):
            return agent, wrapped
        bare = self._bare = self._bare or self._env.copy_bare()
        if not constants or any(isinstance(x, wrappers.NormalizeObservation) for x in layers_of(bare.envs[0])):
            raise RequestError(f"{bare.name}: NormalizeObservation belongs into env.wrappers, or {WAY_OUT}")
        for env in (wrapped, bare):
            env.renew()
        wrapped.freeze_wrappers(states)
        normalization = Normalization(constants)
        with restored_generators():
            _require_equal(agent, wrapped, bare, normalization)
        return UnwrappedAgent(agent, normalization.of_arrays, normalization), bare

    def _first_copy(self) -> Env:
        """Return a copy of the env.

        Raises:
            RequestError: a wrapper that offers no state learns from observations.
        """
        wrapped, unseen = self._env.copy(), self._env.learns_unseen()
        with restored_generators():
            learning = are_learning(wrapped, unseen) if unseen and wrapped.envs else []
            unkept = wrapped.remembers(rewards=False) if isinstance(wrapped, SyncEnv) else None
        refused = [name for name in learning if unseen[name] == "observation_norm"]
        if refused := [*refused, *([unkept] if unkept else [])]:
            wrapped.close()
            raise RequestError(f"env.wrappers: {refused[0]} learns from observations; {WAY_OUT}")
        return wrapped

    def close(self) -> None:
        """Close both envs."""
        for env in (self._wrapped, self._bare):
            if env is not None:
                env.close()


def _constants(env: Layer, states: States) -> dict[str, list[Constants]]:
    """Return the constants of NormalizeObservation for the parts of the outermost observation."""
    constants: dict[str, list[Constants]] = {}
    for number, layer in reversed([*enumerate(layers_of(env))]):
        name, space = type(layer).__name__, layer.observation_space
        if type(layer) is wrappers.NormalizeObservation:
            if (saved := states.get(f"{number}.{name}")) is None:
                raise RequestError(f"env.wrappers: the checkpoint holds no statistics of {name}")
            mean, variance = (np.asarray(saved["obs_rms"][key]) for key in ("mean", "var"))
            constants.setdefault("", []).append(Constants(mean, np.sqrt(variance + layer.epsilon)))
        elif _learns(layer):
            raise RequestError(f"env.wrappers: {name} learns from observations; {WAY_OUT}")
        elif not constants or (_keeps_observations(layer) and space == layer.env.observation_space):
            continue
        elif type(layer) is wrappers.FrameStackObservation and layer.padding_type == "reset":
            constants = _stacked(constants, partial(_repeated, count=layer.stack_size))
        elif type(layer) is FrameStack and layer.keys is None:
            constants = _stacked(constants, layer.stacked)
        elif type(layer) is RandomGoal or (
            type(layer) is ActionMask and not isinstance(layer.env.observation_space, gymnasium.spaces.Dict)
        ):
            constants = {f"observation.{path}".rstrip("."): parts for path, parts in constants.items()}
        else:
            inside = f"{name} changes what NormalizeObservation gives; put it inside"
            raise RequestError(f"env.wrappers: {inside}, or {WAY_OUT}")
    return constants


def _repeated(part: Array, count: int) -> Array:
    return np.stack([part] * count)


def _stacked(constants: dict[str, list[Constants]], stack: Callable[[Array], Array]) -> dict[str, list[Constants]]:
    return {
        path: [Constants(stack(mean), stack(deviation)) for mean, deviation in parts]
        for path, parts in constants.items()
    }


def _keeps_observations(layer: Layer) -> bool:
    return not isinstance(layer, gymnasium.ObservationWrapper)


def _learns(layer: Layer) -> bool:
    """Return True if a layer with a state seems to learn from observations."""
    if not offers_state(layer) or isinstance(layer, REWARD_WRAPPERS):
        return False
    return isinstance(layer, gymnasium.ObservationWrapper) or has_moments(layer)


def _require_equal(agent: Agent, wrapped: Env, bare: Env, normalization: Normalization) -> None:
    """Play the same actions in both environments, and compare the policy's observations.

    Raises:
        RlrunError: they differ.
    """
    seen, raw = wrapped.reset(0), bare.reset(0)
    state = initial_state(agent, 1)
    for seed in range(1, TRIED):
        map_tree(_require_close, normalization.of_arrays(raw), seen)
        response = agent(seen, state, explore=False)
        steps = [env.step(response["action"]) for env in (wrapped, bare)]
        if (over := steps[0].terminated | steps[0].truncated).any():
            seen, raw = (env.restart(over, [seed]) for env in (wrapped, bare))
            state = initial_state(agent, 1)
        else:
            (seen, *_), (raw, *_) = steps
            state = response.get("state")


def _require_close(value: Array, wanted: Array) -> None:
    if not np.allclose(value, wanted, TOLERANCE, TOLERANCE):
        raise RlrunError(f"env.wrappers: constant statistics give other observations than the wrappers; {WAY_OUT}")
