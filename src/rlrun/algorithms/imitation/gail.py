"""Generative adversarial imitation learning (Ho & Ermon 2016, arXiv 1606.03476).

A discriminator learns the probability D(s, a) = sigmoid(d) that a pair is the expert's; the paper's D is the policy's,
here 1 - D. The policy is rewarded for pairs that look like the expert's:

    L        = -M log D(+) - M log (1 - D(-))      eq. 17
    positive   r = -log (1 - D) = softplus(d)      algorithm 1, whose cost is the logarithm of the policy's probability
    negative   r = log D = -softplus(-d)
    logit      r = log D - log (1 - D) = d         that of AIRL

Rewards that are always positive favor long episodes; rewards that are always negative favor short ones.
"""

from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from rlrun.algorithms.imitation.discriminator import AdversarialReward, DiscriminatorLoss, Inputs, cross_entropy
from rlrun.core.errors import require_one_of
from rlrun.core.typing import Batch

Form = Literal["positive", "negative", "logit"]


def imitation_reward(score: Tensor, form: Form) -> Tensor:
    """Return the rewards of scores d, both [...]."""
    if form == "positive":
        return F.softplus(score)
    return -F.softplus(-score) if form == "negative" else score


class GAILReward(AdversarialReward):
    """A reward for pairs of observation and action that look like the expert's.

    Args:
        network: the discriminator.
        form: positive, negative or logit.
        weight: of the reward.

    Raises:
        ConfigError: there is no such form.
    """

    def __init__(self, network: Inputs, *, form: Form = "positive", weight: float = 1.0) -> None:
        require_one_of("form", form, get_args(Form))
        super().__init__(network, weight=weight)
        self.form: Form = form

    def measure(self, view: Batch) -> Tensor:
        return imitation_reward(self.score(view), self.form)


class GAILLoss(DiscriminatorLoss):
    """Train the discriminator by the cross-entropy of expert and policy (eq. 17)."""

    divergence = staticmethod(cross_entropy)
