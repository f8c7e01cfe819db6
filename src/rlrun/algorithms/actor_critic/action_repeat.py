"""An algorithm that chooses with each action for how many steps it is repeated (as arXiv 1702.06054).

A decision is an action a and a number of steps k, at most K; the next one follows after k steps, or with the next
episode. Policies, critics and temperatures are over decisions: k is a discrete choice next to the action of the
environment (`conf/algorithm/action_repeat.yaml`, soft actor-critic), or one more number, from -1 to 1 in K equal
parts, for algorithms whose actions are numbers (`conf/with/action_repeat.yaml`, any algorithm that replays steps).

    y = Σ_{i < k} γ^i r_{t+i} + γ^k (1 - terminated) V̄(s_{t+k})

Memory has a row a step, with the number of steps that its action still lasts. Rows during a repeat are learned from,
too: each counts as a decision to do a for the remaining steps. An episode may be truncated during a repeat, or its next
rows may be missing. Then the sum ends after the stored steps, and V̄ stands for the rest. Such a row keeps the number
of steps that the policy chose. A smaller number would make short repeats look better than they are, because such rows
never contain a termination.

Recurrent networks see every step of the environment, also those during a repeat. So windows consist of steps, and the
state after a decision is reached step by step.

Differences from the paper: its repeats have two lengths, and its learners are DQN and A3C. Memory, counters, logs and
evaluations are in environment steps; decisions are joined when a batch is made.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from rlrun.collect.agents import Acting, EpsilonGreedy, PolicyAgent, RandomAgent, Response, where
from rlrun.collect.noisy import Noisy
from rlrun.collect.repeating import Counting
from rlrun.core import distributed
from rlrun.core.errors import ConfigError, RequestError, RlrunError
from rlrun.core.spaces import Box, Composite, Discrete, Space, Spaces, leaves
from rlrun.core.typing import Array, Batch, Tree
from rlrun.env import spaces_of
from rlrun.memory import NStep
from rlrun.memory.table.samplers import Rows

OUTPUTS = ("action", "state", "lasts")
AGENTS = {"epsilon": EpsilonGreedy, "deviation": Noisy}  # by an option that no other agent has


def decisions(spaces: Spaces, *, most: int, number: bool = False) -> Spaces:
    """Return the spaces of decisions: an action of these spaces, and its number of steps.

    most: largest number of steps. number: it is a continuous number, not a choice.

    Raises:
        ConfigError: `most` is below 1.
    """
    if most < 1:
        raise ConfigError(f"algorithm.most_steps must be at least 1, not {most}")
    repeats = Box((1,), np.full(1, -1.0, np.float32), np.full(1, 1.0, np.float32)) if number else Discrete(most)
    action = Composite({"action": spaces.action, "repeats": repeats})
    return Spaces(spaces.observation, action, spaces.rewards)


def decisions_in(env: Any, *, most: int, number: bool | None = None) -> Spaces:
    """Return `decisions` of an environment; number: None = if all its actions are continuous."""
    spaces = spaces_of(env)
    continuous = all(isinstance(leaf, Box) for _, leaf in leaves(spaces.action))
    return decisions(spaces, most=most, number=continuous if number is None else number)


def is_number(space: Space) -> bool:
    """Return True if decisions of this space have the number of steps as a continuous number."""
    return isinstance(cast(Composite, space).parts["repeats"], Box)


def follow(decision: Tree, state: Tree, most: int | None) -> tuple[Tree, Any]:
    """Return the actions of envs, and the steps they last from now on [N]; all arrays, or all tensors.

    decision: for envs whose repeat is over. state: current action, and its remaining steps. most: largest number of
    steps, if decisions have it as a continuous number.
    """
    free, repeats = state["left"] == 0, decision["repeats"]
    action = where(free, decision["action"], state["action"])
    if most is not None:
        part = ((repeats[:, 0] + 1.0) * (0.5 * most)).clip(0, most - 1)
        repeats = part.long() if isinstance(part, torch.Tensor) else part.astype(np.int64)
    return action, where(free, repeats + 1, state["left"])


def persistent(policy: Acting, *, spaces: Spaces, most: int, **options: Any) -> "Persistent":
    """Return a `Persistent` around the agent that takes these options: EpsilonGreedy, Noisy or PolicyAgent.

    spaces: of decisions. most: largest number of steps.

    Raises:
        ConfigError: none of them takes these options.
    """
    kind: Any = next((kind for option, kind in AGENTS.items() if option in options), None)
    try:
        agent = PolicyAgent(policy, **options) if kind is None else kind(policy, spaces=spaces, **options)
    except TypeError as error:
        kinds = "a PolicyAgent, EpsilonGreedy or Noisy"
        raise ConfigError(f"agent: action_repeat wants {kinds}: {error}") from error
    action = cast(Composite, spaces.action).parts["action"]
    return Persistent(policy, spaces=replace(spaces, action=action), agent=agent, most=most, device=agent.device)


class Persistent(Counting):
    """Repeat each action for as many steps as an agent decides.

    Args:
        policy: the network, over `decisions`.
        spaces: of the environment.
        agent: acts by the policy; None = a `PolicyAgent` of the options.
        most: largest number of steps, if decisions have it as a continuous number.
        options: of `rlrun.collect.PolicyAgent`.
    """

    outputs = OUTPUTS

    def __init__(
        self, policy: Acting, *, spaces: Spaces, agent: Any = None, most: int | None = None, **options: Any
    ) -> None:
        self.agent: Any = PolicyAgent(policy, **options) if agent is None else agent
        super().__init__(policy, **options)
        self.outputs = OUTPUTS
        self.space = spaces.action
        self.decided: Space = policy.codec.space  # type: ignore[attr-defined]
        self.most = most if is_number(self.decided) else None

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "device":
            self.agent.device = value

    def respond(self, observation: Tree, state: Tree | None, explore: bool) -> tuple[Tree, Tree]:
        assert state is not None
        decision, after = self.agent.respond(observation, state.get("recurrent"), explore)
        action, lasts = follow(decision, state, self.most)
        return action, {"action": action, "left": lasts - 1, **({} if after is None else {"recurrent": after})}

    @torch.no_grad()
    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        if state is None:
            raise RequestError("agent: repeated actions need the state before each step; see `initial_state`")
        free = state["left"] == 0
        if explore:
            self.count(free)
        action, lasts, recurrent = state["action"], state["left"], {}
        if self.recurrent or free.any():
            response = self.agent(observation, state.get("recurrent"), explore=explore)
            action, lasts = follow(response["action"], state, self.most)
            recurrent = {"recurrent": response["state"]} if self.recurrent else {}
        elif explore and hasattr(self.agent, "steps"):  # schedules count steps of the environment
            self.agent.steps += len(free) * distributed.world_size()
        return {"action": action, "state": {"action": action, "left": lasts - 1, **recurrent}, "lasts": lasts}

    def initial_state(self, count: int) -> Tree:
        """Return the state of new episodes: no action to repeat, and an empty recurrent state."""
        recurrent = {"recurrent": self.agent.initial_state(count)} if self.recurrent else {}
        return {"action": _zeros(self.space, count), "left": np.zeros(count, np.int64), **recurrent}

    def after(self, observation: Tree, state: Tree) -> Tree:
        """Return the state after observations, without a new action."""
        return {**state, "recurrent": self.agent.after(observation, state["recurrent"])}

    def at_random(self, space: Space, *, seed: int) -> RandomAgent:
        """Return an agent of random decisions."""
        return RandomPersistent(self.decided, seed=seed, most=self.most)

    @property
    def metrics(self) -> dict[str, float]:
        return {**super().metrics, **getattr(self.agent, "metrics", {})}

    def state_dict(self) -> dict[str, Any]:
        inner = {"agent": self.agent.state_dict()} if hasattr(self.agent, "state_dict") else {}
        return {**super().state_dict(), **inner}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if "agent" in state:
            self.agent.load_state_dict(state["agent"])


class RandomPersistent(RandomAgent):
    """Repeat uniformly random actions for uniformly random numbers of steps."""

    outputs = OUTPUTS

    def __init__(self, space: Space, *, seed: int, most: int | None) -> None:
        super().__init__(space, seed=seed)
        self.most = most

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        assert state is not None
        action, lasts = follow(self.draw(len(state["left"]))["action"], state, self.most)
        return {"action": action, "state": {"action": action, "left": lasts - 1}, "lasts": lasts}


class Repeats(NStep):
    """Join to each row the steps that its action lasts, and replace the action by the decision.

    Args:
        steps: largest number of steps that an action lasts.
        most: the same, of decisions.
        discount: γ a step, or one for each reward.
        spaces: of decisions, if the number of steps may be continuous.

    Raises:
        ConfigError: the two differ, so that longer decisions would never be learned, or the algorithm sums no rewards.
    """

    def __init__(
        self,
        *,
        most: int,
        steps: int | None = None,
        discount: float | Sequence[float] = 1.0,
        spaces: Spaces | None = None,
    ) -> None:
        if steps is None:
            raise ConfigError("+with=action_repeat is for algorithms that sum rewards by algorithm.n_step, as SAC does")
        if steps != most:
            raise ConfigError(f"algorithm.n_step is {steps} and algorithm.most_steps {most}: give the latter alone")
        super().__init__(steps=steps, discount=discount)
        joined = ("reward", "next_observation", "terminated", "truncated")
        self.requires = (*joined, "action", "lasts")
        self.provides = (*joined, "discount", "action")
        self.replaces = joined
        self.number = spaces is not None and is_number(spaces.action)

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if rows is None:
            raise RlrunError("memory.adaptors: Repeats looks ahead in a table, and this batch is not of one")
        lasts: Array = batch["lasts"].numpy()
        outcome, _ = self.ahead(rows, lasts)
        repeats = torch.from_numpy(np.minimum(lasts, self.steps) - 1)
        if self.number:
            repeats = ((2.0 * repeats + 1.0) / self.steps - 1.0).unsqueeze(-1)
        decision = {"action": batch["action"], "repeats": repeats}
        if "next_previous" in batch:  # the action before the step after the last one is this very action
            known = torch.ones_like(batch["next_previous"]["known"])
            outcome = {**outcome, "next_previous": {"value": batch["action"], "known": known}}
        return batch | outcome | {"action": decision}


def _zeros(space: Space, count: int) -> Tree:
    if isinstance(space, Composite):
        return {name: _zeros(part, count) for name, part in space.parts.items()}
    return np.zeros((count, *space.shape), np.float32 if isinstance(space, Box) else np.int64)
