"""An agent that acts by tree search, and stores the results of its searches as targets of policy and value.

root:    the model's node of each observation
act:     a ~ policy ^ (1 / temperature); in evaluations the best action, by a search without noise
learn:   the search's policy, and the mean of all returns at the root
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from rlrun.algorithms.search.candidates import Candidates, chosen_candidates, is_single
from rlrun.algorithms.search.gumbel import Gumbel
from rlrun.algorithms.search.puct import Puct
from rlrun.algorithms.search.samplers import ActionSampler, Draw
from rlrun.algorithms.search.tree import Node, Search, SearchTrees, pick, shares
from rlrun.collect.agents import Acting, PolicyAgent, Preprocess, RandomAgent, Response, to_arrays, to_tensors
from rlrun.compile.calls import NoGrad
from rlrun.core.errors import ConfigError, SpaceError, is_number, shown
from rlrun.core.generators import Seeded
from rlrun.core.schedules import Schedule
from rlrun.core.spaces import Space, Spaces, describe, row_count
from rlrun.core.typing import Array, Tree
from rlrun.nn import ActionCodec

POLICY, VALUE, CANDIDATES = "search_policy", "search_value", "search_candidates"  # columns of the memory


class SearchModel(ABC):
    """A model for searches that start from observations.

    Attributes:
        preprocess: functions of observations, trees of tensors, applied before its networks; its agent sets them.
        device: of its networks, likewise.
        candidates: actions of each node, whose rows [n, K, W] are the part "candidates" of states; None = nodes have
            all actions of a single choice.
    """

    preprocess: tuple[Any, ...] = ()
    device: str = "cpu"
    candidates: Candidates | None = None

    @abstractmethod
    def root(self, observation: Tree, rng: np.random.Generator | None = None) -> Node:
        """Return the nodes of observations [N, …], trees of arrays; logits of forbidden actions are -inf.

        rng: of the model's draws; None = the same draws each time.
        """

    @abstractmethod
    def __call__(self, state: Tree, action: Array) -> Node:
        """Return the nodes that follow actions [n] in states [n, …]."""

    def text(self, state: Tree, row: int) -> str:
        """Return a text that shows one of the states [n, …]; "" if there is none."""
        return ""

    def action(self, state: Tree, row: int, number: int) -> str:
        """Return a text that shows an action: a candidate's numbers from -1 to 1, then choices; or its index."""
        if self.candidates is None:
            return f"{number}"
        values, numbers = state["candidates"][row, number], self.candidates.codec.continuous
        return " ".join(f"{value:+.2f}" if place < numbers else f"{value:.0f}" for place, value in enumerate(values))


class SearchAgent(Seeded, PolicyAgent):
    """Act by a tree search from each observation. Exported files act by the policy alone.

    Responses also have `search_policy` [N, A] and `search_value` [N] for the memory, and `search_candidates` [N, A, W],
    rows of the actions, if the model has candidates.

    Args:
        policy: the network; the model uses its policy and value.
        model: to search.
        search: how trees grow, and which policies are read from them.
        spaces: of the environment; actions are a single choice, unless the model has candidates.
        temperature: of actions while exploring: a number, or a schedule over the moves searched so far in the episode,
            such as `rlrun.core.schedules.Step`; an `OverBudget` depends on the budget instead.
        sampler: draws actions while exploring; None = `Draw`.
        seed: of the noise at the root and of actions.
        device: of the policy.
        preprocess: functions of observations that the memory applies, too: one, or several by name.

    Raises:
        SpaceError: actions are not a single choice, and the model has no candidates.
        ConfigError: the temperature is negative.
    """

    outputs: tuple[str, ...]

    def __init__(
        self,
        policy: Acting,
        *,
        model: SearchModel,
        search: Search,
        spaces: Spaces,
        temperature: float | Schedule = 1.0,
        sampler: ActionSampler | None = None,
        seed: int = 0,
        device: str = "cpu",
        preprocess: Preprocess | Mapping[str, Preprocess] | None = None,
    ) -> None:
        PolicyAgent.__init__(self, policy, device=device, preprocess=preprocess)
        Seeded.__init__(self, seed)
        codec = ActionCodec(spaces)
        if model.candidates is None and not is_single(codec):
            raise SpaceError(
                f"a search without candidates takes one choice of a few; the action space is "
                f"{describe(spaces.action)}: algorithm=muzero, algorithm=ppo, algorithm=sac"
            )
        self.candidates = model.candidates or Candidates(codec)
        if not callable(temperature) and not (is_number(temperature) and temperature >= 0):
            raise ConfigError(f"temperature: wanted a number from 0, or a schedule, got {shown(temperature)}")
        if sampler is not None and not callable(sampler):
            some = "{_target_: rlrun.algorithms.search.Draw}"
            raise ConfigError(f"sampler: wanted a sampler, such as {some}, or null, got {shown(sampler)}")
        self.model, self.search, self.temperature = model, search, temperature
        model.preprocess = self.preprocess
        self.counts = callable(temperature)  # moves of the episode
        self.sampler: ActionSampler = Draw() if sampler is None else sampler
        self.outputs = ("action", *(("state",) if self.initial_state(1) else ()), *_columns(self.candidates))
        self._metrics: dict[str, float] = {}  # of the newest step while exploring

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the newest step: the search policy's entropy in nats, the search's change of the value, and its size."""
        return self._metrics

    @property
    def exported(self) -> PolicyAgent:
        """The agent of the policy alone."""
        alone = PolicyAgent(self.policy, device=self.device)
        alone.preprocess = self.preprocess
        return alone

    def respond(self, observation: Tree, state: Tree | None, explore: bool) -> tuple[Tree, Tree | None]:
        """Return an action of the policy alone, without a search."""
        return self.exported.respond(observation, None, explore)

    def grow(self, observation: Tree, rng: np.random.Generator | None = None) -> SearchTrees:
        """Return the trees of searches from observations [N, …]; with a generator they explore, as in training."""
        self.model.device = self.device  # the agent may have moved to a worker's CPU
        with NoGrad(), self.acting():
            return self.search.grow(self.model, self.model.root(observation, rng), rng)

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        trees = self.grow(observation, self.generator if explore else None)
        policy, value = self.search.policy(trees), trees.root_value
        if explore:
            probabilities = self.search.acting(trees, self._temperature(state))
            memory = (state or self.initial_state(len(value)) or {}).get("drawn")
            action, memory = self.sampler(probabilities, memory, self.generator)
            state = state if memory is None or state is None else {**state, "drawn": memory}
            self._metrics = _measured(trees, policy)
        else:
            action = pick(self.search.acting(trees, 0.0), np.zeros(len(value)))
        response = {POLICY: policy.astype(np.float32), VALUE: value.astype(np.float32)}
        if self.candidates.drawn:
            response[CANDIDATES] = trees.state["candidates"][trees.roots]
            rows = chosen_candidates(response[CANDIDATES], action)
        else:
            rows = action[:, None]
        response["action"] = to_arrays(self.candidates.codec.from_rows(torch.from_numpy(rows)))
        return response if state is None else {**response, "state": self.after(observation, state)}

    def _temperature(self, state: Tree | None) -> float | Array:
        """Return the temperature, one number or [N]."""
        if not callable(self.temperature):
            return self.temperature
        moves = np.zeros(1, np.int64) if state is None else state["moves"]
        return np.array([self.temperature(move) for move in moves.tolist()])

    def initial_state(self, count: int) -> Tree | None:
        """Return the moves so far [count], if the temperature depends on them, and the sampler's memory; or None."""
        memory = self.sampler.initial(count, self.candidates.actions)
        moves = {"moves": np.zeros(count, np.int64)} if self.counts else {}
        return {**moves, **({} if memory is None else {"drawn": memory})} or None

    def after(self, observation: Tree, state: Tree, *action: Tree) -> Tree:
        return {**state, "moves": state["moves"] + 1} if self.counts else state

    def at_random(self, space: Space, *, seed: int) -> RandomAgent:
        return RandomSearches(self.candidates, space, seed=seed)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "metrics": dict(self._metrics)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._metrics = dict(state["metrics"])


class RandomSearches(RandomAgent):
    """Act at random, and return uninformed results of a search: equal probabilities of all actions, and value 0.

    With candidates, both they and their probabilities are 0, so that the policy learns nothing from them.
    """

    outputs: tuple[str, ...]

    def __init__(self, candidates: Candidates, space: Space, *, seed: int) -> None:
        super().__init__(space, seed=seed)
        self.candidates, self.outputs = candidates, ("action", *_columns(candidates))

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        count, codec = row_count(observation), self.candidates.codec
        response = super().__call__(observation, state, explore=explore)
        response[VALUE] = np.zeros(count, np.float32)
        if self.candidates.drawn:
            blank = np.zeros((count, self.candidates.actions, self.candidates.width), np.float32)
            return {**response, POLICY: blank[..., 0], CANDIDATES: blank}
        allowed = np.ones((count, self.candidates.actions), np.float32)
        if codec.masked:
            allowed[:] = to_arrays(codec.allowed(to_tensors(observation)))
        return {**response, POLICY: shares(allowed)}


def _columns(candidates: Candidates) -> tuple[str, ...]:
    return (POLICY, VALUE, *((CANDIDATES,) if candidates.drawn else ()))


def search_of(
    *,
    gumbel: bool = False,
    simulations: int = 50,
    noise: float | None = None,
    unexpanded: float | str | None = None,
    depth: int | None = None,
    parallel: int = 1,
    considered: int = 16,
    c_visit: float = 50.0,
    c_scale: float = 0.1,
    **options: Any,
) -> Search:
    """Return Gumbel MuZero's search, or MuZero's.

    Args:
        gumbel: return Gumbel MuZero's.
        noise: at the root; None: 1 with `gumbel`, otherwise 0.25.
        unexpanded: of `Puct`; None: 0.5.
        simulations, depth, parallel: of both.
        considered, c_visit, c_scale: of `Gumbel` alone.
        options: of `Puct` alone.

    Raises:
        ConfigError: a number is out of range, or `gumbel` comes with an option of `Puct` other than `bounds`.
    """
    size: dict[str, Any] = {"simulations": simulations, "depth": depth, "parallel": parallel}
    at_root: dict[str, Any] = {"considered": considered, "c_visit": c_visit, "c_scale": c_scale}
    scores: dict[str, Any] = {"unexpanded": 0.5 if unexpanded is None else unexpanded, **options}
    Gumbel(**at_root)  # checks these also for `Puct`, as presets may set them
    if not gumbel:
        return Puct(**size, **scores, noise=0.25 if noise is None else noise)
    Puct(**scores)
    _require_unset(scores)
    return Gumbel(**size, **at_root, noise=1.0 if noise is None else noise)


def _require_unset(options: dict[str, Any]) -> None:
    """Raise a ConfigError for options that `Gumbel` does not read, except bounds, which are the game's."""
    defaults = {field.name: field.default for field in fields(Puct)} | {"regularized": []}
    for name, value in options.items():
        own = [*value] if name == "regularized" else value
        if name != "bounds" and own != defaults[name]:
            raise ConfigError(
                f"{name}: wanted {shown(defaults[name])} with gumbel=true, which does not read it, got {shown(own)}"
            )


def _measured(trees: SearchTrees, policy: Array) -> dict[str, float]:
    entropy = -(policy * np.log(np.where(policy > 0, policy, 1.0))).sum(1)
    moved = np.abs(trees.root_value - trees.raw[trees.roots])
    values = np.abs(np.column_stack((trees.root_value, trees.edges(trees.roots)[1])))
    numbers = {"entropy": entropy, "value_moved": moved, "value_size": values.max(1)}
    return {f"search/{name}": float(number.mean()) for name, number in numbers.items()}
