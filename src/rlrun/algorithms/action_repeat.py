"""Soft actor-critic that chooses with each action for how many steps it is repeated (as arXiv 1702.06054).

A decision is an action a and a number of steps k, at most K; the next one follows when a was done k times, or with the
next episode. Decisions are what the policy, critics and temperatures of soft actor-critic are over: k is a discrete
choice next to the action of the environment.

    y = Σ_{i < k} γ^i r_{t+i} + γ^k (1 - terminated) V̄(s_{t+k})

Memory has a row a step, with how many steps its action lasts from there on. Every row is learned from, those during a
repeat, too: to do a for the steps that are left is what could have been decided there. An episode may be truncated
during a repeat, or its next rows may be missing. Then the sum ends after the steps that were made, and V̄ stands for
the rest. Such a row keeps the number of steps that the policy chose. A smaller number would make short repeats look
better than they are, because such rows never contain a termination.

Differences from the paper: its repeats are of two lengths, and its learners DQN and A3C. Environment steps are what is
stored, counted, logged and evaluated; decisions are joined when a batch is made.
"""

from typing import Any

import numpy as np
import torch

from rlrun.collect.agents import Acting, RandomAgent, Response, to_arrays, to_tensors, where
from rlrun.collect.repeating import Counting
from rlrun.core.errors import ConfigError, RequestError, RlrunError
from rlrun.core.spaces import Box, Composite, Discrete, Space, Spaces
from rlrun.core.typing import Array, Batch, Tree
from rlrun.memory import NStep
from rlrun.memory.samplers import Rows

OUTPUTS = ("action", "state", "lasts")


def decisions(spaces: Spaces, *, most: int) -> Spaces:
    """Return the spaces of who decides on an action of these, and on how often it is repeated.

    most: steps that an action is done for, at most.

    Raises:
        ConfigError: no action could be done.
    """
    if most < 1:
        raise ConfigError(f"algorithm.most_steps must be at least 1, not {most}")
    action = Composite({"action": spaces.action, "repeats": Discrete(most)})
    return Spaces(spaces.observation, action, spaces.rewards)


def follow(decision: Tree, state: Tree) -> tuple[Tree, Any]:
    """Return what envs do, and for how many steps from now on [N]; all arrays, or all tensors.

    decision: of envs that have nothing left to do. state: what was done, and for how many steps it still is.
    """
    free = state["left"] == 0
    action = where(free, decision["action"], state["action"])
    return action, where(free, decision["repeats"] + 1, state["left"])


class Persistent(Counting):
    """Do what the policy decided on for as many steps as it decided.

    Args:
        policy: the network, over `decisions`.
        spaces: of the environment.
        options: of `rlrun.collect.PolicyAgent`.
    """

    outputs = OUTPUTS

    def __init__(self, policy: Acting, *, spaces: Spaces, **options: Any) -> None:
        super().__init__(policy, **options)
        self.outputs = OUTPUTS
        self.space = spaces.action
        self.decided = policy.codec.space  # type: ignore[attr-defined]

    def respond(self, observation: Tree, state: Tree | None, explore: bool) -> tuple[Tree, Tree]:
        assert state is not None
        action, lasts = follow(self._act(observation, explore), state)
        return action, {"action": action, "left": lasts - 1}

    @torch.no_grad()
    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        if state is None:
            raise RequestError("agent: repeated actions want the state before each step; see `initial_state`")
        free = state["left"] == 0
        if explore:
            self.count(free)
        action, lasts = state["action"], state["left"]
        if free.any():
            decision = to_arrays(self._act(to_tensors(observation, self.device), explore))
            action, lasts = follow(decision, state)
        return {"action": action, "state": {"action": action, "left": lasts - 1}, "lasts": lasts}

    def initial_state(self, count: int) -> Tree:
        """Return the state of fresh episodes: nothing is left to do."""
        return {"action": _zeros(self.space, count), "left": np.zeros(count, np.int64)}

    def at_random(self, space: Space, *, seed: int) -> RandomAgent:
        """Return what acts at random in this one's place: by decisions, too."""
        return RandomPersistent(self.decided, seed=seed)


class RandomPersistent(RandomAgent):
    """Do uniformly random actions for uniformly random numbers of steps."""

    outputs = OUTPUTS

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        assert state is not None
        action, lasts = follow(self.draw(len(state["left"]))["action"], state)
        return {"action": action, "state": {"action": action, "left": lasts - 1}, "lasts": lasts}


class Repeats(NStep):
    """Join to each row the steps that its action lasts, and make the action the decision to do so.

    Args:
        steps: that an action lasts, at most.
        most: the same, as decisions know it.
        discount: from step to step.

    Raises:
        ConfigError: the two differ, so that longer decisions would never be learned.
    """

    def __init__(self, *, steps: int, most: int, discount: float) -> None:
        if steps != most:
            raise ConfigError(f"algorithm.n_step is {steps} and algorithm.most_steps {most}: give the latter alone")
        super().__init__(steps=steps, discount=discount)
        joined = ("reward", "next_observation", "terminated", "truncated")
        self.requires = (*joined, "action", "lasts")
        self.provides = (*joined, "discount", "action")
        self.replaces = joined

    def __call__(self, batch: Batch, rows: Rows | None) -> Batch:
        if rows is None:
            raise RlrunError("memory.adaptors: Repeats looks ahead in a table, and this batch comes from none")
        lasts: Array = batch["lasts"].numpy()
        outcome, _ = self.ahead(rows, lasts)
        decision = {"action": batch["action"], "repeats": torch.from_numpy(np.minimum(lasts, self.steps) - 1)}
        if "next_previous" in batch:  # what was done up to the step after the last one is this very action
            known = torch.ones_like(batch["next_previous"]["known"])
            outcome = {**outcome, "next_previous": {"value": batch["action"], "known": known}}
        return batch | outcome | {"action": decision}


def _zeros(space: Space, count: int) -> Tree:
    if isinstance(space, Composite):
        return {name: _zeros(part, count) for name, part in space.parts.items()}
    return np.zeros((count, *space.shape), np.float32 if isinstance(space, Box) else np.int64)
