"""Priors over actions, which keep soft actor-critic near a given policy (Galashov et al. 2019, arXiv 1905.01240).

The log-density of a prior p is subtracted from that of the policy in targets and losses. So entropy becomes minus the
divergence from the prior. The temperature holds it at a number of nats for each entry of an action:

    log π(c | s) <- log π(c | s) - log p(c)
    H̄           <- - nats · A

    uniform       p(c) = Π_d 1/2,  p(k | s) = 1 / number of choices that the action mask allows
    same action   p(c) = Π_d (1 - w) N(c_d; 0, 2) + w N(c_d; c⁻_d, 2 σ),  each cut to [-1, 1] and scaled to 1
    policy        p(c | s), p(k | s) of another network

c is the continuous part of an action, each of its A entries from -1 to 1, and c⁻ that of the previous step; at the
start of an episode w is 0. Choices k may have a prior, too: log π(k | s) <- log π(k | s) - log p(k | s). The optimal
policy under the critics is then π(k | s) ∝ p(k | s) exp(Q(s, k) / α).

Differences from the paper: a policy that is a prior sees the whole observation. It learns the actions in memory
(Siegel et al. 2020, arXiv 2002.08396), or nothing.
"""

import math

import torch
from torch import Tensor, nn

from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.spaces import Spaces, describe
from rlrun.core.typing import Tree
from rlrun.nn import ActionCodec, ActionHead, SquashedGaussian
from rlrun.ops.distributions import truncated_density


class Prior(nn.Module):
    """A distribution over actions; calling it gives log p(c | s) [B] of the continuous part.

    Its arguments are c [B, A], the previous action as in `SameActionPrior`, and the observation.
    """

    branches: tuple[int, ...] = ()  # of `ActionCodec`, if choices have a prior
    reads_previous = False  # True if it needs the previous action, as memory stores it

    def choices(self, observation: Tree) -> Tensor | float:
        """Return log p(k | s) [B, K] of choices; 0 where they have no prior."""
        return 0.0


class UniformPrior(Prior):
    """All actions are equally likely, among choices those that the mask allows.

    Args:
        spaces: of the environment.
        options: of `ActionCodec`.
    """

    even: Tensor

    def __init__(self, spaces: Spaces, **options: int) -> None:
        super().__init__()
        self.codec = ActionCodec(spaces, **options)
        self.branches = self.codec.branches
        self.register_buffer("even", torch.zeros(self.codec.width), persistent=False)

    def forward(self, c: Tensor, previous: Tree | None = None, observation: Tree = None) -> Tensor:
        return torch.full(c.shape[:-1], -c.shape[-1] * math.log(2.0), device=c.device, dtype=c.dtype)

    def choices(self, observation: Tree) -> Tensor:
        return self.codec.log_softmax(self.codec.restrict(self.even, observation))


class SameActionPrior(Prior):
    """Actions near the previous one are more likely than others.

    Args:
        spaces: of the environment.
        share: w, probability of the part around the previous action.
        deviation: σ, its width as a share of the range of an entry.

    Raises:
        SpaceError: the action space has no Box.
        ConfigError: the share is not between 0 and 1, or the deviation is not above 0.
    """

    reads_previous = True

    def __init__(self, spaces: Spaces, *, share: float = 0.9, deviation: float = 0.1) -> None:
        super().__init__()
        self.codec = ActionCodec(spaces)
        if not self.codec.continuous:
            raise SpaceError(f"this prior is for continuous actions; here they are {describe(spaces.action)}")
        if not 0.0 < share < 1.0 or deviation <= 0.0:
            raise ConfigError(
                f"prior: wanted a share between 0 and 1 and a deviation above 0, got {share} and {deviation}"
            )
        self.share = share
        self.deviation = deviation

    def forward(self, c: Tensor, previous: Tree | None = None, observation: Tree = None) -> Tensor:
        """Return log p(c) [B]; previous: `value`, the previous action tree, and `known` [B], whether there was one."""
        if previous is None:
            raise ConfigError("prior: batches lack the previous action; +with=same_action_prior stores it")
        before = self.codec.split(previous["value"])[0]
        assert before is not None
        size = before.shape[-1]  # further numbers, such as the steps of a repeat, are not stored; these are uniform
        c, uniform = c[..., :size], (size - c.shape[-1]) * math.log(2.0)
        anywhere = truncated_density(c, torch.zeros_like(c), 2.0, math.log(2.0))
        near = truncated_density(c, before, 2.0 * self.deviation, math.log(2.0 * self.deviation))
        both = torch.logaddexp(anywhere + math.log1p(-self.share), near + math.log(self.share))
        return torch.where(previous["known"].unsqueeze(-1), both, anywhere).sum(-1) + uniform


class PolicyPrior(Prior):
    """The distribution of another policy at the observation; that policy's parameters are not the prior's.

    Args:
        network: has a distribution over all parts of an action, such as `rlrun.nn.Policy`.

    Raises:
        ConfigError: it has none, or it is recurrent.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        parts = [part for part in network.modules() if isinstance(part, SquashedGaussian | ActionHead)]
        choices = any(isinstance(part, ActionHead) for part in parts)
        if not parts or not hasattr(network, "heads") or (parts[0].codec.discrete and not choices):
            raise ConfigError(f"networks.prior: a {type(network).__name__} has no distribution over such actions")
        if getattr(network, "state_size", 0):
            raise ConfigError("networks.prior.core: a prior sees one observation at a time; remove it")
        self.branches, self.distribution = parts[0].codec.branches, parts[0].distribution
        self._borrowed = (network,)

    def forward(self, c: Tensor, previous: Tree | None = None, observation: Tree = None) -> Tensor:
        mean, log_std, _ = self._borrowed[0].heads(observation)  # type: ignore[operator]
        return self.distribution.log_prob(mean, log_std, c)

    def choices(self, observation: Tree) -> Tensor:
        log_prob: Tensor = self._borrowed[0].heads(observation).choices  # type: ignore[operator]
        return log_prob
