"""Agents: they map a batch of observations to a response.

An agent is called with trees of NumPy arrays [N, …]. It returns a dict of such trees: `action` (policy actions), and
any further column for the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import nn

from rlrun.collect.modes import evaluating, modal_parts
from rlrun.compile.calls import NoGrad
from rlrun.core import distributed
from rlrun.core.errors import BuildError, ConfigError, RequestError, RlrunError
from rlrun.core.schedules import Schedule, as_schedule
from rlrun.core.spaces import ACTION_MASK, Box, Composite, Space, Spaces, describe, leaves, leaves_of, row_count
from rlrun.core.typing import Array, Tree
from rlrun.env.spaces import empty
from rlrun.memory.adaptors.adaptor import VALUES
from rlrun.nn import ActionCodec
from rlrun.nn.mlp import as_numbers
from rlrun.nn.recurrent import with_state
from rlrun.nn.remembering import Remembering
from rlrun.ops import gumbel_argmax

Response = dict[str, Any]
Preprocess = Callable[[Tree], Tree]  # from observations to observations, trees of tensors


class Acting(Protocol):
    """A network that acts."""

    def act(self, observation: Tree, explore: bool) -> Tree:
        """Return an action for observations [N, …], trees of tensors."""


class RecurrentPolicy(Acting, Protocol):
    """A recurrent network; its state has `state_size` numbers."""

    state_size: int

    def advance(self, observation: Tree, state: Tree, explore: bool) -> tuple[Tree, Tree]:
        """Return an action for observations [N, …] and a state, and the state after them."""

    def initial_state(self, count: int) -> Tree:
        """Return the state of `count` fresh episodes."""

    def after(self, observation: Tree, state: Tree) -> Tree:
        """Return the state after observations [N, …] and a state; without this call, random actions keep a state.

        A policy whose state `follows_actions` gets the action that was taken, too, as a third argument.
        """


class Agent(Protocol):
    """Maps observations to responses; evaluations and exports use it, too.

    A recurrent agent gets the state before acting and returns the one after it, as `state`: trees of arrays [N, …].
    The caller keeps the state of each env, and starts episodes with `initial_state`. A subclass has no state and
    uniform random actions, unless it overrides these.
    """

    outputs: tuple[str, ...]  # names in a response

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        """Return a response for observations [N, …]; without `explore`, the best known action."""

    def initial_state(self, count: int) -> Tree | None:
        """Return the recurrent state of `count` fresh episodes; None without one."""
        return None

    def after(self, observation: Tree, state: Tree) -> Tree:
        """Return the recurrent state after observations [N, …], from the one before; it does not depend on actions."""
        return state

    def at_random(self, space: Space, *, seed: int) -> RandomAgent:
        """Return the random agent for warm-up: a `RandomAgent`, or a subclass.

        It gets observations [N, …], so that it can draw only actions that these allow.
        """
        return RandomAgent(space, seed=seed)


def to_tensors(tree: Tree, device: torch.device | str = "cpu") -> Tree:
    """Return a tree of arrays as tensors; on the CPU they share memory with the arrays."""
    if isinstance(tree, dict):
        return {name: to_tensors(part, device) for name, part in tree.items()}
    tensor = torch.from_numpy(tree)
    return tensor if device == "cpu" else tensor.to(device)


def to_arrays(tree: Tree) -> Tree:
    """Return a tree of tensors as arrays on the CPU."""
    if isinstance(tree, dict):
        return {name: to_arrays(part) for name, part in tree.items()}
    return tree.numpy() if tree.is_cpu else tree.cpu().numpy()


def chain(preprocess: Preprocess | Mapping[str, Preprocess] | None) -> tuple[Preprocess, ...]:
    """Return the functions that are applied to a policy's observations, in order, without None entries.

    An adaptor of the memory is replaced by its `preprocess`; its `tier` decides the order, as in memory.
    """
    functions = preprocess.values() if isinstance(preprocess, Mapping) else (preprocess,)
    ordered = sorted((fn for fn in functions if fn is not None), key=lambda fn: getattr(fn, "tier", VALUES))
    return tuple(getattr(function, "preprocess", function) for function in ordered)


def prepared(observation: Tree, preprocess: tuple[Preprocess, ...]) -> Tree:
    """Return observations after all of these functions."""
    for function in preprocess:
        observation = function(observation)
    return observation


def initial_state(agent: Agent, count: int) -> Tree | None:
    """Return the recurrent state of `count` fresh episodes; None for an agent without one."""
    make = getattr(agent, "initial_state", None)
    return None if make is None else make(count)


def alone(agent: Any) -> Any:
    """Return the agent to export: of an agent that searches, its policy without the search."""
    return getattr(agent, "exported", agent)


def restarted(state: Tree, initial: Tree, envs: Array) -> Tree:
    """Return the state [N, …] of all envs, with the initial one where `envs` [N] is True."""
    return state if state is None else where(envs, initial, state)


def state_after(agent: Any, observation: Tree, state: Tree, response: Response) -> Tree:
    """Return the recurrent state [N, …] after a response; `agent.after` computes it for random actions."""
    after = response.get("state")
    if after is None or (isinstance(after, dict) and len(after) < len(state)):
        state = {**state, **after} if after else state
        policy = getattr(agent, "policy", agent)
        taken = (response["action"],) if getattr(policy, "follows_actions", False) else ()
        after = agent.after(observation, state, *taken) if hasattr(policy, "after") else state
    return after


class PolicyAgent(Agent):
    """Acts by a policy's own distribution, recurrent policies (`state_size`) included.

    Args:
        policy: the network.
        critics: trained with it; the agent of a recurrent policy keeps their state, too.
        device: of the policy.
        preprocess: functions of observations that the memory applies, too: one, or several by name.
        log_prob: add the log probability of actions to responses.
    """

    outputs: tuple[str, ...]

    def __init__(
        self,
        policy: Acting | RecurrentPolicy,
        *,
        critics: nn.Module | None = None,
        device: str = "cpu",
        preprocess: Preprocess | Mapping[str, Preprocess] | None = None,
        log_prob: bool = False,
    ) -> None:
        self.policy = policy
        self.device = device
        self.preprocess = chain(preprocess)
        if critics is not None and isinstance(policy, Remembering):
            policy.keep_state_of(critics)
        self.recurrent = bool(getattr(policy, "state_size", 0))
        self.outputs = ("action", "state") if self.recurrent else ("action",)
        modal = modal_parts(policy)
        self.acting: Callable[[], Any] = partial(evaluating, modal) if modal else nullcontext  # a step's context
        self._gives_log_prob = False
        if log_prob:
            self.add_log_prob()

    def add_log_prob(self) -> None:
        """Add the log probability of each action to responses: off-policy corrections need it.

        Raises:
            ConfigError: the policy cannot compute it.
        """
        if not hasattr(self.policy, "evaluate_actions"):
            raise ConfigError(
                f"agent.log_prob: a {type(self.policy).__name__} has no evaluate_actions(observation, action)"
            )
        if not self._gives_log_prob:
            self.outputs, self._gives_log_prob = (*self.outputs, "log_prob"), True

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Metrics of the policy, if it has a mapping of them."""
        metrics = getattr(self.policy, "metrics", None)
        return metrics if isinstance(metrics, Mapping) else {}

    def respond(self, observation: Tree, state: Tree | None, explore: bool) -> tuple[Tree, Tree | None]:
        """Return an action and the state after it, all trees of tensors; exports contain this method."""
        if not self.recurrent:
            return self._act(observation, explore), None
        return self._act(observation, state, explore)  # type: ignore[no-any-return]

    def _act(self, observation: Tree, *more: Any) -> Any:
        policy: Any = self.policy
        return (policy.advance if self.recurrent else policy.act)(prepared(observation, self.preprocess), *more)

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        if self.recurrent and state is None:
            raise RequestError("agent: a recurrent policy acts on the state before each step; see `initial_state`")
        with NoGrad(), self.acting():
            return self._response(observation, state, explore)

    def _response(self, observation: Tree, state: Tree | None, explore: bool) -> Response:
        inputs = to_tensors(observation, self.device)
        before = to_tensors(state, self.device) if self.recurrent else None
        action, after = self.respond(inputs, before, explore)
        response = {"action": to_arrays(action)}
        if self.recurrent:
            response["state"] = to_arrays(after)
        if self._gives_log_prob and explore:
            policy: Any = self.policy
            states = (before,) if self.recurrent else ()
            log_prob = policy.evaluate_actions(prepared(inputs, self.preprocess), action, *states).log_prob
            response["log_prob"] = to_arrays(log_prob)
        return response

    def initial_state(self, count: int) -> Tree | None:
        return to_arrays(cast(RecurrentPolicy, self.policy).initial_state(count)) if self.recurrent else None

    @torch.no_grad()
    def after(self, observation: Tree, state: Tree, *action: Tree) -> Tree:
        inputs = prepared(to_tensors(observation, self.device), self.preprocess)
        others = (to_tensors(tree, self.device) for tree in (state, *action))
        with self.acting():
            return to_arrays(cast(RecurrentPolicy, self.policy).after(inputs, *others))


class RandomAgent(Agent):
    """Acts uniformly at random over the action space; unbounded parts get standard normal actions.

    Only choices that the observation's action mask allows are drawn.
    """

    outputs: tuple[str, ...] = ("action",)

    def __init__(self, space: Space, *, seed: int) -> None:
        self.space = space
        self.rng = np.random.default_rng(seed)

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        action_mask = observation.get(ACTION_MASK) if isinstance(observation, dict) else None
        return self.draw(row_count(observation)) if action_mask is None else self._allowed(action_mask)

    def draw(self, count: int) -> Response:
        """Draw actions for `count` envs."""
        return {"action": self._draw(self.space, count, None)}

    def _allowed(self, action_mask: Array) -> Response:
        """Draw actions with choices that flags [N, …] allow; all choices if a decision has none."""
        flags = action_mask.reshape(len(action_mask), -1) != 0
        sizes = [n for _, leaf in leaves(self.space) if not isinstance(leaf, Box) for n in leaf.choices]
        return {
            "action": self._draw(self.space, len(action_mask), iter(np.split(flags, np.cumsum(sizes)[:-1], axis=1)))
        }

    def _draw(self, space: Space, count: int, allowed: Iterator[Array] | None) -> Tree:
        if isinstance(space, Composite):
            return {name: self._draw(part, count, allowed) for name, part in space.parts.items()}
        if not isinstance(space, Box):
            choices = np.array(space.choices)
            if allowed is not None:
                decisions = [next(allowed) for _ in choices]  # [N, choices] each
                draws = [self.rng.random(flags.shape) + (flags | ~flags.any(1, keepdims=True)) for flags in decisions]
                return np.stack([draw.argmax(1) for draw in draws], 1).reshape((count, *space.shape))
            return self.rng.integers(0, choices, size=(count, len(choices))).reshape((count, *space.shape))
        shape = (count, *space.shape)
        values = self.rng.uniform(-1.0, 1.0, shape) if space.bounded else self.rng.standard_normal(shape)
        return values.astype(np.float32)

    def act_for(self, agent: Any) -> None:
        """Replace this agent in the next steps; a subclass may use its noise."""

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]


def random_agent(agent: Agent, space: Space, *, seed: int) -> Any:
    """Return the random agent that an agent defines, or else a `RandomAgent`."""
    make = getattr(agent, "at_random", None)
    return RandomAgent(space, seed=seed) if make is None else make(space, seed=seed)


def require_actions(agent: Agent, spaces: Spaces, place: str) -> None:
    """Act once; refuse actions outside their space, and outputs without one value for each choice.

    Raises:
        BuildError: naming `place`, the network.
    """
    try:
        part: Any
        observation = empty(spaces.observation, 2)
        policy, values = getattr(agent, "policy", None), getattr(agent, "values", None)
        called = getattr(type(policy), "forward", None) not in (None, nn.Module.forward)  # some policies only act
        codec = getattr(policy, "codec", None) if called else None
        if values and codec and (shape := list(values(observation).shape))[-1] != codec.width:
            wanted = f"wanted {[*shape[:-1], codec.width]}, one for each choice of {describe(spaces.action)}"
            raise ValueError(f"it gives values of shape {shape}; {wanted}")
        action = agent(observation, initial_state(agent, 2), explore=False)["action"]
        for (path, leaf), part in zip(leaves(spaces.action), leaves_of(spaces.action, action), strict=True):
            if part.shape != (2, *leaf.shape) or (part.dtype.kind == "f") != isinstance(leaf, Box):
                wanted = f"the action space wants {[2, *leaf.shape]} {leaf.dtype} for {describe(leaf)}"
                raise ValueError(f"it makes {path or 'actions'} of shape {list(part.shape)} {part.dtype}; {wanted}")
            if not isinstance(leaf, Box) and ((part < 0) | (part >= np.reshape(leaf.choices, leaf.shape))).any():
                wanted = f"the action space wants choices from 0 for {describe(leaf)}"
                raise ValueError(f"it makes {path or 'actions'} from {part.min()} to {part.max()}; {wanted}")
    except RlrunError:
        raise
    except Exception as error:
        hint = as_numbers(str(error), [(leaf.dtype, leaf.shape) for _, leaf in leaves(spaces.observation)])
        raise BuildError(f"{place}: acting on 2 observations: {type(error).__name__}: {error}{hint}") from error


def where(condition: Any, chosen: Tree, default: Tree) -> Tree:
    """Choose row by row between two trees [N, …], by a condition [N]; all arrays, or all tensors."""
    if isinstance(chosen, dict):
        return {name: where(condition, chosen[name], default[name]) for name in chosen}
    choose: Any = torch.where if isinstance(chosen, torch.Tensor) else np.where
    return choose(condition.reshape((-1,) + (1,) * (chosen.ndim - 1)), chosen, default)


class EpsilonGreedy(PolicyAgent):
    """Takes a random action of `at_random` with probability epsilon, else the policy's best.

    Args:
        policy: the network.
        epsilon: a number or a schedule over environment steps, all envs together.
        spaces: of the environment.
        seed: of random actions and of the choice between these and the policy's.
        device: of the policy.
        preprocess: functions of observations that the memory applies, too: one, or several by name.
    """

    def __init__(
        self,
        policy: Acting | RecurrentPolicy,
        *,
        epsilon: float | Schedule,
        spaces: Spaces,
        seed: int,
        device: str = "cpu",
        preprocess: Preprocess | Mapping[str, Preprocess] | None = None,
    ) -> None:
        super().__init__(policy, device=device, preprocess=preprocess)
        self.epsilon = as_schedule(epsilon)
        self.steps = 0  # environment steps while exploring
        self.uniform = self.at_random(spaces.action, seed=seed)
        self._codec = ActionCodec(spaces, joint_limit=0)

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        if not explore:
            return super().__call__(observation, state, explore=False)
        envs, epsilon = row_count(observation), self.epsilon(self.steps)
        self.steps += envs * distributed.world_size()
        if envs == 1 and not self.recurrent:  # a float costs a tenth of an array with one element
            explores = self.uniform.rng.random() < epsilon
            return self.uniform(observation) if explores else super().__call__(observation, explore=False)
        exploring = self.uniform.rng.random(envs) < epsilon
        if exploring.all() and not self.recurrent:
            return self.uniform(observation)
        # random actions are drawn before the network's call, as networks may draw, too
        random = self.uniform(observation)["action"] if exploring.any() else None
        response = super().__call__(observation, state, explore=False)
        return response if random is None else response | {"action": where(exploring, random, response["action"])}

    @torch.no_grad()
    def values(self, observation: Tree) -> Any:
        """Return the value of every choice [..., K], in the order of the policy's `codec`."""
        inputs = prepared(to_tensors(observation, self.device), self.preprocess)
        policy: Any = self.policy
        return policy(with_state(inputs, policy.initial_state(row_count(inputs))) if self.recurrent else inputs)

    def respond(self, observation: Tree, state: Tree | None, explore: bool) -> tuple[Tree, Tree | None]:
        """Return an action and the state after it, all trees of tensors; exports contain this method.

        With `explore`, Gumbel noise chooses between both actions and draws the random one, with equal probabilities.
        """
        greedy, after = super().respond(observation, state, False)
        if not explore:
            return greedy, after
        epsilon = torch.tensor(self.epsilon(self.steps))
        envs = row_count(observation)
        odds = torch.stack((1.0 - epsilon, epsilon)).log().expand(envs, 2)
        even = self._codec.restrict(torch.zeros(envs, self._codec.width), observation)
        random = self._codec.join(None, self._codec.sample(even))
        return where(gumbel_argmax(odds) == 1, random, greedy), after

    @property
    def metrics(self) -> dict[str, float]:
        return {"explore/epsilon": self.epsilon(self.steps)}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "uniform": self.uniform.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.uniform.load_state_dict(state["uniform"])
