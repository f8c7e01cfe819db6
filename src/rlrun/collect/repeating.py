"""Agents whose policy may repeat its last action."""

from typing import Any, Protocol

import torch
from torch import Tensor

from rlrun.collect.agents import PolicyAgent, RandomAgent, Response, to_arrays, to_tensors
from rlrun.core.spaces import Space
from rlrun.core.typing import Array, Tree

OUTPUTS = ("action", "state", "trajectory", "next_trajectory")
RATE = 0.001  # of the mean over steps: about the newest thousand count


class RepeatingPolicy(Protocol):
    """A policy that can repeat its last choice; its trajectories [N, S] end with the number of repetitions."""

    def follow(self, state: Tensor, action: Tree, switch: Tensor) -> tuple[Tree, Tensor]:
        """Return actions and their trajectories; envs with `switch` [N] take `action`, others repeat the last one."""


class Counting(PolicyAgent):
    """An agent that logs the share of steps with a new choice, and the mean steps of one; a subclass counts.

    Args:
        policy: the network.
        options: of `PolicyAgent`.
    """

    def __init__(self, policy: Any, **options: Any) -> None:
        super().__init__(policy, **options)
        self._mean, self._mass = 0.0, 0.0  # share of new choices, over steps, and the weight of data in it

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
    """Acts by a policy that switches to another action or repeats the last one, and logs how often it switches.

    Its state is a dict of the current `trajectory` and the networks' state (`recurrent`). Responses also have
    `trajectory` and `next_trajectory`, so that a memory can store those before and during each step.

    Args:
        policy: the network.
        options: of `PolicyAgent`.
    """

    def __init__(self, policy: Any, **options: Any) -> None:
        super().__init__(policy, **options)
        self.recurrent = True
        self.outputs = OUTPUTS
        self.keeping = policy.keeping

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        response = super().__call__(observation, state, explore=explore)
        assert state is not None
        trajectory = response["state"]["trajectory"]
        if explore:
            self.count(trajectory[:, -1] == 0.0)
        return response | {"trajectory": state["trajectory"], "next_trajectory": trajectory}

    def at_random(self, space: Space, *, seed: int) -> RandomAgent:
        """Return a random agent with the same outputs."""
        return RandomRepeating(space, keeping=self.keeping, seed=seed)


class RandomRepeating(RandomAgent):
    """Switches at every second step on average, to a uniformly random action."""

    outputs = OUTPUTS

    def __init__(self, space: Space, *, keeping: RepeatingPolicy, seed: int) -> None:
        super().__init__(space, seed=seed)
        self.keeping = keeping

    @torch.no_grad()
    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        assert state is not None
        before = state["trajectory"]
        switch = self.rng.integers(0, 2, len(before)).astype(bool)
        random_action = to_tensors(self.draw(len(before))["action"])
        followed = self.keeping.follow(to_tensors(before), random_action, torch.from_numpy(switch))
        action, during = map(to_arrays, followed)
        return {"action": action, "state": {"trajectory": during}, "trajectory": before, "next_trajectory": during}
