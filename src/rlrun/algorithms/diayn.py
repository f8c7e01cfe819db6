"""Diversity is all you need (Eysenbach et al. 2018, arXiv 1802.06070): skills that differ in where they lead.

Each episode has a skill z, drawn by `rlrun.env.wrappers.RandomGoal`, which the policy sees. A network that does not
see it tells it from each observation; the bonus is log q(z | s') - log p(z) (eq. 3), at the observation s' that a
transition leads to, for a uniform p. So it is 0 where nothing can be told, and log K at most.

Differences from the paper: policy and entropy are those of whatever algorithm it is added to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from rlrun.callbacks.intrinsic import BonusLoss
from rlrun.errors import SpaceError
from rlrun.memory import Bonus
from rlrun.nn import MLP, Encoder
from rlrun.nn.init import Initialiser
from rlrun.nn.mlp import Activation
from rlrun.spaces import Composite, Discrete, Spaces, describe
from rlrun.typing import Batch, Tree


class Discriminator(nn.Module):
    """Tell the skill of an episode from one of its observations.

    Args:
        spaces: of the environment; its observation is a dict.
        skill: name of the part that is the skill; the network sees all others.
        hidden: widths of the layers.

    Raises:
        SpaceError: there is no such part, or nothing beside it.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        skill: str = "goal",
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "relu",
        init: str | Initialiser = "orthogonal",
    ) -> None:
        super().__init__()
        parts = spaces.observation.parts if isinstance(spaces.observation, Composite) else {}
        space = parts.get(skill)
        if not isinstance(space, Discrete) or len(parts) < 2:
            raise SpaceError(
                f"Discriminator wants an observation with a choice '{skill}' and something beside it, which env.around "
                f"with rlrun.env.wrappers.RandomGoal gives; here it is {describe(spaces.observation)}"
            )
        self.skill = skill
        self.skills = space.n
        rest = Composite({name: part for name, part in parts.items() if name != skill})
        self.encoder = Encoder(rest, activation=activation, init=init)
        self.layers = MLP(
            self.encoder.size, self.skills, hidden=hidden, activation=activation, init=init, output_gain=0.0
        )

    def rest(self, observation: Tree) -> Tree:
        """Return observations without the skill."""
        return {name: part for name, part in observation.items() if name != self.skill}

    def log_prob(self, observation: Tree) -> Tensor:
        """Return log q(z | s) [..., K] of observations without the skill."""
        found: Tensor = self.layers(self.encoder(observation)).log_softmax(-1)
        return found


class Diversity(Bonus):
    """How well the skill can be told from the observation that a transition leads to."""

    requires = ("observation", "next_observation")
    network: Discriminator

    def view(self, step: Batch) -> Batch:
        rest = self.network.rest(self.seen(step["next_observation"]))
        return {"observation": rest, "skill": step["observation"][self.network.skill]}

    def measure(self, view: Batch) -> Tensor:
        log_prob = self.network.log_prob(view["observation"])
        return log_prob.gather(-1, view["skill"].unsqueeze(-1)).squeeze(-1) + math.log(self.network.skills)


class DiscriminatorLoss(BonusLoss):
    """Cross-entropy of the skill."""

    network: Discriminator

    def loss(self, diayn: Batch, valid: Tensor | None = None) -> Tensor:
        log_prob, skill = self.network.log_prob(diayn["observation"]), diayn["skill"]
        right = log_prob.argmax(-1) == skill
        elements = -log_prob.gather(-1, skill.unsqueeze(-1)).squeeze(-1)
        return self.counted(elements, valid, bonus=diayn["bonus"], right=right)
