"""Adversarial motion priors (Peng et al. 2021, arXiv 2104.02180): a task, in the style of reference motion.

A discriminator of transitions learns by least squares, with a gradient penalty on those of the reference (eq. 8). The
policy gets a style reward for transitions that look like the reference's (eq. 7), added to the task's reward (eq. 4):

    r = weight of the task · r_task + weight of the style · (1 - ¼ (D - 1)²)
"""

from torch import Tensor

from rlrun.algorithms.imitation.discriminator import (
    AdversarialReward,
    DiscriminatorLoss,
    Inputs,
    least_squares,
    style_reward,
)
from rlrun.core.typing import Batch


class StyleReward(AdversarialReward):
    """A reward for transitions that look like the reference's (eq. 7).

    Args:
        network: the discriminator.
        weight: of the style in the reward.
        floor: rewards are at least 0, as in the paper; False = no lower bound, as in Emote.
    """

    def __init__(self, network: Inputs, *, weight: float = 1.0, floor: bool = True) -> None:
        super().__init__(network, weight=weight)
        self.floor = floor

    def measure(self, view: Batch) -> Tensor:
        return style_reward(self.score(view), floor=self.floor)


class StyleLoss(DiscriminatorLoss):
    """Train the discriminator by least squares (eq. 8)."""

    divergence = staticmethod(least_squares)
