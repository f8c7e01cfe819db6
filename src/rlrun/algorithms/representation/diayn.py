"""Diversity is all you need (Eysenbach et al. 2018, arXiv 1802.06070): skills that visit different states.

The policy observes the skill z of each episode, drawn by `rlrun.env.wrappers.RandomGoal`. A discriminator predicts it
from observations without it. The bonus of a transition is log q(z | s') - log p(z) (eq. 3) at its next observation s',
for a uniform p: at most log K, and 0 for a uniform prediction. A continuous skill is predicted by the mean of a normal
distribution of variance 1; its bonus - |z - mean|² / 2 + E |z|² / 2 is 0 on average for a mean of 0.

    bonus = log q(z | s') - log p(z)
    L     = -log q(z | s')

Difference from the paper: policy and entropy are those of the algorithm that it is added to.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rlrun.callbacks.losses.loss import BonusLoss, LossResult
from rlrun.core.errors import SpaceError
from rlrun.core.spaces import Box, Composite, Discrete, Spaces, describe
from rlrun.core.typing import Batch, Tree
from rlrun.memory import Bonus
from rlrun.nn import EncodedMLP
from rlrun.nn.mlp import Activation, Initializer


class Discriminator(EncodedMLP):
    """Predict the skill of an episode, discrete or continuous, from one of its observations.

    Args:
        spaces: of the environment; its observation is a dict.
        skill: name of the part that is the skill; the network reads the others.
        hidden: widths of the layers.
        activation, init: of the layers, as `MLP` takes them.
        encoder: any module from observations without the skill to features [..., F], below the layers.

    Raises:
        SpaceError: the observation has no such part, or no other one.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        skill: str = "goal",
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "relu",
        init: str | Initializer = "orthogonal",
        encoder: nn.Module | None = None,
    ) -> None:
        parts = spaces.observation.parts if isinstance(spaces.observation, Composite) else {}
        space = parts.get(skill)
        numbers = isinstance(space, Box) and space.bounded and len(space.shape) == 1
        if space is None or not (isinstance(space, Discrete) or numbers) or len(parts) < 2:
            raise SpaceError(
                f"Discriminator wants an observation with a choice or bounded numbers '{skill}' and something beside "
                f"it, which env.around with rlrun.env.wrappers.RandomGoal gives; here it is "
                f"{describe(spaces.observation)}"
            )
        skills = space.n if isinstance(space, Discrete) else 0  # 0 = a continuous skill
        remaining = {name: part for name, part in parts.items() if name != skill}
        rest = Composite(remaining) if len(remaining) > 1 else next(iter(remaining.values()))
        layers: dict[str, Any] = {"hidden": hidden, "activation": activation, "init": init, "output_gain": 0.0}
        super().__init__(rest, skills or space.size, encoder=encoder, **layers)
        self.skill, self.skills = skill, skills
        self.known = math.log(skills) if isinstance(space, Discrete) else _half_mean_square(space)

    def rest(self, observation: Tree) -> Tree:
        """Return observations without the skill; if one part is left, that part."""
        remaining = {name: part for name, part in observation.items() if name != self.skill}
        return remaining if len(remaining) > 1 else next(iter(remaining.values()))

    def log_prob(self, observation: Tree) -> Tensor:
        """Return log q(z | s) [..., K] of observations without the skill, for discrete skills."""
        log_probs: Tensor = self.layers(self.encode(observation)).log_softmax(-1)
        return log_probs

    def identify(self, observation: Tree, skill: Tensor) -> tuple[Tensor, Tensor]:
        """Return log q(z | s) [...] of skills, up to a constant for continuous ones, and whether each is identified.

        A continuous skill counts as identified if the prediction is closer to it than the zero vector.
        """
        if self.skills:
            log_prob = self.log_prob(observation)
            return log_prob.gather(-1, skill.unsqueeze(-1)).squeeze(-1), log_prob.argmax(-1) == skill
        distance = (skill - self.layers(self.encode(observation))).square().sum(-1)
        return -0.5 * distance, distance < skill.square().sum(-1)


def _half_mean_square(space: Any) -> float:
    """Return E |z|² / 2 for z uniform within the bounds; it makes the mean bonus of a zero prediction 0."""
    return float(((space.high - space.low) ** 2 / 12.0 + ((space.high + space.low) / 2.0) ** 2).sum() / 2.0)


class Diversity(Bonus):
    """A bonus: the log-probability of the skill at the next observation, minus that of a uniform guess."""

    requires = ("observation", "next_observation")
    network: Discriminator

    def view(self, step: Batch) -> Batch:
        rest = self.network.rest(self.seen(step["next_observation"]))
        return {"observation": rest, "skill": step["observation"][self.network.skill]}

    def measure(self, view: Batch) -> Tensor:
        return self.network.identify(view["observation"], view["skill"])[0] + self.network.known


class DiscriminatorLoss(BonusLoss):
    """Minus the log-probability of the skill: its cross-entropy, or half the squared distance."""

    network: Discriminator

    def loss(self, diayn: Batch, valid: Tensor | None = None) -> LossResult:
        log_prob, right = self.network.identify(diayn["observation"], diayn["skill"])
        return self.counted(-log_prob, valid, bonus=diayn["bonus"], right=right)
