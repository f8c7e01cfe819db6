"""The last layer of a stochastic policy, and the distribution that its outputs encode."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from rlrun.core.errors import require_one_of
from rlrun.core.spaces import Spaces
from rlrun.core.typing import Tree
from rlrun.nn.actions import ActionCodec
from rlrun.nn.fast_linear import Linear
from rlrun.nn.mlp import orthogonal_
from rlrun.ops.distributions import (
    choice_divergence,
    gaussian_divergence,
    normal_like,
    squashed_action,
    squashed_entropy,
    squashed_log_prob,
    squashed_sample,
)

# The authors' limits. The lower one only keeps exp(-log_std) finite; a tighter one, such as -5, would
# forbid a policy to become as good as deterministic.
LOG_STD = (-20.0, 2.0)
Spread = Literal["observation", "free"]
SPREADS = ("observation", "free")


class Heads(NamedTuple):
    """The parameters of a distribution over actions; a part that the space has not is None."""

    mean: Tensor | None  # [..., A], of the normal under the tanh
    log_std: Tensor | None  # [..., A]
    choices: Tensor | None  # log-probabilities [..., width]


class ActionHead(nn.Module):
    """From features [..., F] to a distribution over actions of any space.

    Box leaves: a diagonal normal, squashed to [-1, 1] by tanh. Choices: categorical. The parts of an action
    are independent given the features.

    Args:
        spaces: of the environment.
        features: F.
        gain: of the initial weights: small, so that actions begin near the center and choices near uniform.
        spread: log_std by "observation", or "free": one parameter a dimension whatever is observed.
        log_std: where it begins.
        joint_limit: of `ActionCodec`.

    Raises:
        ConfigError: there is no such spread.
    """

    def __init__(
        self,
        spaces: Spaces,
        features: int,
        *,
        gain: float = 0.01,
        spread: Spread = "observation",
        log_std: float = 0.0,
        joint_limit: int = 64,
    ) -> None:
        super().__init__()
        require_one_of("spread", spread, SPREADS)
        self.codec = ActionCodec(spaces, joint_limit=joint_limit)
        count = self.codec.continuous
        free = spread == "free" and count > 0
        self.widths = (count, 0 if free else count, self.codec.width)
        self.parts = self.codec.kinds
        self.layer = Linear(features, sum(self.widths))
        orthogonal_(self.layer, gain)
        with torch.no_grad():
            self.layer.bias[count : count + self.widths[1]] = log_std
        self.log_std = nn.Parameter(torch.full((count,), float(log_std))) if free else None

    def forward(self, features: Tensor) -> Heads:
        raw = self.layer(features)
        if not self.codec.continuous:
            return Heads(None, None, self.codec.log_softmax(raw))
        mean, log_std, logits = torch.split(raw, list(self.widths), -1)
        if self.log_std is not None:
            log_std = self.log_std.expand_as(mean)
        choices = self.codec.log_softmax(logits) if self.codec.discrete else None
        return Heads(mean, log_std.clamp(*LOG_STD), choices)

    def draw(self, heads: Heads, noise: Tensor | None = None) -> Tree:
        """Draw an action tree; `noise` [..., A] is standard normal, drawn unless given."""
        mean, log_std, choices = heads
        c = None if mean is None or log_std is None else squashed_action(mean, log_std, _noise(mean, noise))
        return self.codec.join(c, None if choices is None else self.codec.sample(choices))

    def sample(self, heads: Heads, noise: Tensor | None = None) -> tuple[Tree, Tensor]:
        """Draw an action tree and its log_prob [...], the latter with gradients."""
        mean, log_std, choices = heads
        c = k = None
        terms = []
        if mean is not None and log_std is not None:
            c, log_prob = squashed_sample(mean, log_std, _noise(mean, noise))
            terms.append(log_prob)
        if choices is not None:
            k = self.codec.sample(choices)
            terms.append(self.codec.select(choices, k))
        return self.codec.join(c, k), _sum(terms)

    def mode(self, heads: Heads) -> Tree:
        """Return the action tree without noise: tanh of the mean, the most likely choices."""
        c = None if heads.mean is None else heads.mean.tanh()
        return self.codec.join(c, None if heads.choices is None else self.codec.best(heads.choices))

    def log_prob(self, heads: Heads, action: Tree, *, edge: float = 0.0) -> Tensor:
        """Return the log-probability [...] of an action tree.

        edge: numbers nearer to their bounds are read as so far inside of them. Actions of others may lie on bounds;
        the normal under the tanh would have to reach far out for some that differ little.
        """
        mean, log_std, choices = heads
        c, k = self.codec.split(action)
        if c is not None and edge:
            c = c.clamp(edge - 1.0, 1.0 - edge)
        terms = [] if c is None or mean is None or log_std is None else [squashed_log_prob(mean, log_std, c)]
        terms += [] if k is None or choices is None else [self.codec.select(choices, k)]
        return _sum(terms)

    def noise(self, heads: Heads) -> Tensor | None:
        """Draw what one draw of the continuous part takes, standard normal [..., A]; None without such a part."""
        return None if heads.mean is None else normal_like(heads.mean)

    def entropy(self, heads: Heads, noise: Tensor | None = None) -> Tensor:
        """Return the entropy [..., parts] of each of `parts`, with gradients; of the continuous one by one draw.

        noise: [..., A] of that draw, standard normal, drawn unless given.
        """
        mean, log_std, choices = heads
        terms = []
        if mean is not None and log_std is not None:
            terms.append(squashed_entropy(mean, log_std, _noise(mean, noise)))
        if choices is not None:
            terms.append(self.codec.entropy(choices))
        return torch.stack(terms, -1) if len(terms) > 1 else terms[0].unsqueeze(-1)

    def divergence(self, heads: Heads, reference: Heads) -> Tensor:
        """Return KL(heads ‖ reference) [...] in nats; exact, since squashing both alike changes nothing of it."""
        mean, log_std, choices = heads
        terms = []
        if mean is not None and log_std is not None and reference.mean is not None and reference.log_std is not None:
            terms.append(gaussian_divergence(mean, log_std, reference.mean, reference.log_std))
        if choices is not None and reference.choices is not None:
            terms.append(choice_divergence(choices, reference.choices))
        return _sum(terms)


def _noise(mean: Tensor, noise: Tensor | None) -> Tensor:
    return normal_like(mean) if noise is None else noise


def _sum(terms: list[Tensor]) -> Tensor:
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]
