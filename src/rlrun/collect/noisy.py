"""Acting by a policy that is sure of itself, with noise around it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rlrun import learners
from rlrun.collect.agents import Acting, PolicyAgent, Preprocess, RandomAgent, Remembering, Response, lanes_of
from rlrun.errors import ConfigError, SpaceError
from rlrun.generators import put_back
from rlrun.memory.episodes import map_tree
from rlrun.ops.noise import is_given, normal_like
from rlrun.schedules import Schedule, as_schedule
from rlrun.spaces import Box, Space, Spaces, describe, leaves
from rlrun.typing import Array, Tree


class Noisy(PolicyAgent):
    """Add noise to what a policy does, and keep within the bounds.

    Noise is that of Ornstein and Uhlenbeck, as in arXiv 1509.02971: each step's is `1 - damping` of the one before in
    its lane and a draw from a normal distribution. With damping 1 each step's is its own. It goes on over the ends of
    episodes, and lies around the random actions of a warm-up, too.

    Args:
        policy: the network.
        deviation: of the normal distribution, where actions reach from -1 to 1; a number or a schedule over
            environment steps, all lanes together.
        damping: share of the noise that is lost from step to step, above 0.
        spaces: of the environment.
        seed: of the noise.
        device: where the policy lives.
        preprocess: what the memory does to observations, too, one function or several by name: normalisation.

    Raises:
        SpaceError: part of the action is a choice.
        ConfigError: the damping is no share.
    """

    def __init__(
        self,
        policy: Acting | Remembering,
        *,
        deviation: float | Schedule,
        damping: float = 1.0,
        spaces: Spaces,
        seed: int,
        device: str = "cpu",
        preprocess: Preprocess | Mapping[str, Preprocess] | None = None,
    ) -> None:
        if not all(isinstance(leaf, Box) for _, leaf in leaves(spaces.action)):
            raise SpaceError(f"agent: noise is for actions that are numbers; here they are {describe(spaces.action)}")
        if not 0.0 < damping <= 1.0:
            raise ConfigError(f"agent.damping: wanted a share above 0 and at most 1, got {damping}")
        super().__init__(policy, device=device, preprocess=preprocess)
        self.deviation = as_schedule(deviation)
        self.damping = damping
        self.steps = 0  # environment steps acted in while exploring
        self.rng = np.random.default_rng(seed)
        self._noise: list[Array] = []  # [N, …] of each leaf, where it goes on from step to step

    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        response = super().__call__(observation, state, explore=False)
        if explore:
            response["action"] = self.blurred(response["action"])
            self.steps += lanes_of(response["action"]) * learners.count()
        return response

    def blurred(self, action: Tree) -> Tree:
        """Return actions [N, …] with the noise of a step around them, within the bounds."""
        leaf = iter(self._draw(_leaves(action)))
        return map_tree(lambda part: np.clip(part + next(leaf), -1.0, 1.0), action)

    def at_random(self, space: Space, *, seed: int) -> RandomAgent:
        """Return what acts at random in this one's place: uniformly, with the noise around that, too.

        Some of these actions lie on a bound, as those of a good policy often do.
        """
        return _BlurredRandom(space, seed=seed, noisy=self)

    def _draw(self, action: list[Array]) -> list[Array]:
        """Return the noise of this step, in the shapes of an action's leaves [N, …]."""
        deviation = self.deviation(self.steps)
        if is_given():  # noise that goes on in its own way
            return [normal_like(torch.from_numpy(part)).numpy() * np.float32(deviation) for part in action]
        drawn = [self._normal(part.shape, deviation) for part in action]
        if self.damping == 1.0:
            return drawn
        if [part.shape for part in self._noise] == [part.shape for part in action]:
            decay = np.float32(1.0 - self.damping)
            drawn = [decay * before + new for before, new in zip(self._noise, drawn, strict=True)]
        self._noise = drawn
        return drawn

    def _normal(self, shape: tuple[int, ...], deviation: float) -> Array:
        return self.rng.standard_normal(shape, np.float32) * np.float32(deviation)

    def respond(self, observation: Tree, state: Tree | None, explore: bool) -> tuple[Tree, Tree | None]:
        """Return an action and the state after it, all trees of tensors; what an export consists of.

        Exploring, each step has a noise of its own, as large as that of a call becomes.
        """
        action, after = super().respond(observation, state, False)
        if not explore:
            return action, after
        size = self.deviation(self.steps) / math.sqrt(1.0 - (1.0 - self.damping) ** 2)
        return map_tree(lambda part: (part + size * normal_like(part)).clamp(-1.0, 1.0), action), after

    @property
    def metrics(self) -> dict[str, float]:
        return {"explore/deviation": self.deviation(self.steps)}

    def state_dict(self) -> dict[str, Any]:
        noise = [torch.from_numpy(part.copy()) for part in self._noise]
        return {"steps": self.steps, "rng": self.rng.bit_generator.state, "noise": noise}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        put_back(self.rng, state["rng"])
        self._noise = [part.numpy().copy() for part in state["noise"]]


class _BlurredRandom(RandomAgent):
    """Act uniformly at random, with an agent's noise around that; a copy has no agent until it is told of one."""

    def __init__(self, space: Space, *, seed: int, noisy: Noisy) -> None:
        super().__init__(space, seed=seed)
        self._noisy = noisy

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_noisy": None}

    def stand_in_for(self, agent: Any) -> None:
        self._noisy = agent

    def draw(self, count: int) -> Response:
        return {"action": self._noisy.blurred(super().draw(count)["action"])}


def _leaves(tree: Tree) -> list[Array]:
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in _leaves(part)]
    return [tree]
