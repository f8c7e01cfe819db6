"""Agents whose policy may repeat its last action."""

from typing import Any, Protocol

import torch
from torch import Tensor

from rlrun.collect.agents import PolicyAgent, RandomAgent, Response, to_arrays, to_tensors
from rlrun.core.spaces import Space
from rlrun.core.typing import Array, Tree

RATE = 0.001  # of the mean over steps: about the newest thousand count


class RepeatingPolicy(Protocol):
    """Repeats the last choice; its state [N, S] ends with the number of repetitions."""

    def follow(self, state: Tensor, action: Tree, switch: Tensor) -> tuple[Tree, Tensor]:
        """Return the actions, and the state after them, where envs switch [N] to an action or repeat the last one."""


class Counting(PolicyAgent):
    """An agent that logs the share of steps with a new choice, and the mean steps of one; a subclass counts.

    Args:
        policy: the network.
        options: of `PolicyAgent`.
    """

    def __init__(self, policy: Any, **options: Any) -> None:
        super().__init__(policy, **options)
        self._mean, self._mass = 0.0, 0.0  # over steps, and how much of it is data

    def count(self, chosen: Array) -> None:
        """Add a step of envs [N], of which some made a new choice."""
        self._mean += RATE * (float(chosen.mean()) - self._mean)
        self._mass += RATE * (1.0 - self._mass)

    @property
    def metrics(self) -> dict[str, float]:
        if not self._mean:
            return {}
        return {"repeat/switched": self._mean / self._mass, "repeat/steps": self._mass / self._mean}

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self._mean, "mass": self._mass}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._mean, self._mass = state["mean"], state["mass"]


class Repeating(Counting):
    """Act by a policy that switches to another action or repeats the last one, and log how often it switches.

    Responses have `next_state`, too, so that a memory can store the states before and after each step.

    Args:
        policy: the network.
        options: of `PolicyAgent`.
    """

    def __init__(self, policy: Any, **options: Any) -> None:
        super().__init__(policy, **options)
        self.outputs = (*self.outputs, "next_state")
        self.keeping = policy.keeping

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        response = super().__call__(observation, state, explore=explore)
        if explore:
            self.count(response["state"][:, -1] == 0.0)
        return response | {"next_state": response["state"]}

    def at_random(self, space: Space, *, seed: int) -> RandomAgent:
        """Return a random agent with the same outputs."""
        return RandomRepeating(space, keeping=self.keeping, seed=seed)


class RandomRepeating(RandomAgent):
    """Switch at every second step on average, to a uniformly random action."""

    outputs = ("action", "state", "next_state")

    def __init__(self, space: Space, *, keeping: RepeatingPolicy, seed: int) -> None:
        super().__init__(space, seed=seed)
        self.keeping = keeping

    @torch.no_grad()
    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        assert state is not None
        switch = self.rng.integers(0, 2, len(state)).astype(bool)
        random_action = to_tensors(self.draw(len(state))["action"])
        action, after = self.keeping.follow(to_tensors(state), random_action, torch.from_numpy(switch))
        next_state = to_arrays(after)
        return {"action": to_arrays(action), "state": next_state, "next_state": next_state}
