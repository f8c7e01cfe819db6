"""Acting at best, but for a share of the steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlrun import learners
from rlrun.collect.agents import (
    Acting,
    Agent,
    Preprocess,
    Response,
    acting,
    chain,
    lanes_of,
    to_arrays,
    to_tensors,
    where,
)
from rlrun.nn import ActionCodec
from rlrun.ops import gumbel_argmax
from rlrun.schedules import Schedule, as_schedule
from rlrun.spaces import Spaces
from rlrun.typing import Tree


class EpsilonGreedy(Agent):
    """Take a random action with probability epsilon, that of `at_random`, else the policy's best.

    Args:
        policy: the network.
        epsilon: a number or a schedule over environment steps, all lanes together.
        spaces: of the environment.
        seed: of the coin and of the random actions.
        device: where the policy lives.
        preprocess: what the memory does to observations, too, one function or several by name: normalisation.
    """

    outputs = ("action",)

    def __init__(
        self,
        policy: Acting,
        *,
        epsilon: float | Schedule,
        spaces: Spaces,
        seed: int,
        device: str = "cpu",
        preprocess: Preprocess | Mapping[str, Preprocess] | None = None,
    ) -> None:
        self.policy = policy
        self.epsilon = as_schedule(epsilon)
        self.device = device
        self.steps = 0  # environment steps acted in while exploring
        self.uniform = self.at_random(spaces.action, seed=seed)
        self.preprocess = chain(preprocess)
        self._act = acting(policy.act, self.preprocess)

    @torch.no_grad()
    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        if not explore:
            return {"action": self._greedy(observation)}
        lanes = lanes_of(observation)
        epsilon = self.epsilon(self.steps)
        self.steps += lanes * learners.count()
        if lanes == 1:  # a coin costs a tenth of an array of one
            random = self.uniform.rng.random() < epsilon
            return self.uniform(observation) if random else {"action": self._greedy(observation)}
        drawn = self.uniform.rng.random(lanes) < epsilon
        if drawn.all():
            return self.uniform(observation)
        if not drawn.any():
            return {"action": self._greedy(observation)}
        return {"action": where(drawn, self.uniform(observation)["action"], self._greedy(observation))}

    def _greedy(self, observation: Tree) -> Tree:
        return to_arrays(self._act(to_tensors(observation, self.device), False))

    def respond(self, observation: Tree, state: Tree | None, explore: bool) -> tuple[Tree, None]:
        """Return an action, from and to trees of tensors; what an export consists of.

        Exploring, the coin and the random action come out of Gumbel noise, as likely as those of a call.
        """
        greedy = self._act(observation, False)
        if not explore:
            return greedy, None
        epsilon = torch.tensor(self.epsilon(self.steps))
        lanes = lanes_of(observation)
        odds = torch.stack((1.0 - epsilon, epsilon)).log().expand(lanes, 2)
        codec = ActionCodec(self.uniform.space, joint_limit=0)
        random = codec.join(None, codec.sample(torch.zeros(lanes, codec.width)))
        return where(gumbel_argmax(odds) == 1, random, greedy), None

    @property
    def metrics(self) -> dict[str, float]:
        return {"explore/epsilon": self.epsilon(self.steps)}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "uniform": self.uniform.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.uniform.load_state_dict(state["uniform"])
