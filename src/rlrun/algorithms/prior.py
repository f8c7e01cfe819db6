"""Priors over actions that soft actor-critic is held near (Galashov et al. 2019, arXiv 1905.01240).

The log-density of a prior p is subtracted from that of the policy wherever it counts. So entropy becomes minus the
divergence from the prior. The temperature holds it at a number of nats for each entry of an action:

    log π(c | s) <- log π(c | s) - log p(c)
    H̄           <- - nats · A

    uniform       p(c) = Π_d 1/2
    same action   p(c) = Π_d (1 - w) N(c_d; 0, 2) + w N(c_d; c⁻_d, 2 σ),  each cut to [-1, 1] and scaled to 1

c is the continuous part of an action, each of its A entries from -1 to 1, and c⁻ the one of the step before; where an
episode begins, w is 0.

Differences from the paper: the priors are fixed, not learned, and neither looks at the observation (as in ALF).
"""

import math

import torch
from torch import Tensor, nn

from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.spaces import Spaces, describe
from rlrun.core.typing import Tree
from rlrun.nn import ActionCodec
from rlrun.ops.distributions import truncated_density


class Prior(nn.Module):
    """A density of the continuous part of actions; calling it gives log p(c) [B].

    Raises:
        SpaceError: the action space has no Box.
    """

    def __init__(self, spaces: Spaces) -> None:
        super().__init__()
        self.codec = ActionCodec(spaces)
        if not self.codec.continuous:
            raise SpaceError(f"a prior is for actions that are numbers; here they are {describe(spaces.action)}")


class UniformPrior(Prior):
    """Every action as likely as any other."""

    def forward(self, c: Tensor, previous: Tree | None = None) -> Tensor:
        return torch.full(c.shape[:-1], -c.shape[-1] * math.log(2.0), device=c.device, dtype=c.dtype)


class SameActionPrior(Prior):
    """Actions near the one of the step before more likely than others.

    Args:
        spaces: of the environment.
        share: w, probability of the part around the action before.
        deviation: σ, its width as a share of the range of an entry.

    Raises:
        SpaceError: the action space has no Box.
        ConfigError: the share is none, or the deviation not above 0.
    """

    def __init__(self, spaces: Spaces, *, share: float = 0.9, deviation: float = 0.1) -> None:
        super().__init__(spaces)
        if not 0.0 < share < 1.0 or deviation <= 0.0:
            raise ConfigError(
                f"prior: wanted a share between 0 and 1 and a deviation above 0, got {share} and {deviation}"
            )
        self.share = share
        self.deviation = deviation

    def forward(self, c: Tensor, previous: Tree | None = None) -> Tensor:
        """Return log p(c) [B]; previous: `value`, the action tree before, and whether there was one, `known` [B]."""
        if previous is None:
            raise ConfigError("prior: batches lack the action before, which +with=same_action_prior has them hold")
        before = self.codec.split(previous["value"])[0]
        assert before is not None
        size = before.shape[-1]  # further numbers are decided on, but not done: for how many steps; these are uniform
        c, uniform = c[..., :size], (size - c.shape[-1]) * math.log(2.0)
        anywhere = truncated_density(c, torch.zeros_like(c), 2.0, math.log(2.0))
        near = truncated_density(c, before, 2.0 * self.deviation, math.log(2.0 * self.deviation))
        both = torch.logaddexp(anywhere + math.log1p(-self.share), near + math.log(self.share))
        return torch.where(previous["known"].unsqueeze(-1), both, anywhere).sum(-1) + uniform
