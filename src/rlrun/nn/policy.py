"""Networks that act."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlrun.errors import SpaceError
from rlrun.nn.actions import ActionCodec
from rlrun.nn.encoders import Encoder
from rlrun.nn.init import Initialiser
from rlrun.nn.mlp import MLP, Activation
from rlrun.ops.gaussian import squashed_entropy, squashed_log_prob, squashed_sample
from rlrun.spaces import Box, Space, Spaces, describe, leaves
from rlrun.typing import Tree

# The authors' limits. The lower one only keeps exp(-log_std) finite; a tighter one, such as -5, would
# forbid a policy to become as good as deterministic.
LOG_STD = (-20.0, 2.0)


class SquashedGaussian(nn.Module):
    """The policy of soft actor-critic over all Box leaves of the action space (arXiv:1801.01290).

    Calling it draws an action part c [B, A] in [-1, 1] and its log_prob [B], with gradients through
    the draw.

    Raises:
        SpaceError: the action space has no Box leaf, or one without bounds.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "relu",
        layer_norm: bool = False,
        init: str | Initialiser = "default",
        output_gain: float | None = None,
        log_std: tuple[float, float] = LOG_STD,
    ) -> None:
        super().__init__()
        require_bounded(spaces.action, "SquashedGaussian")
        self.codec = ActionCodec(spaces)
        if not self.codec.continuous:
            raise SpaceError(f"SquashedGaussian needs a Box in the action space; there is {describe(spaces.action)}")
        self.encoder = Encoder(spaces, activation=activation, init=init)
        self.layers = MLP(
            self.encoder.size,
            2 * self.codec.continuous,
            hidden=hidden,
            activation=activation,
            layer_norm=layer_norm,
            init=init,
            output_gain=output_gain,
        )
        self.lowest, self.highest = log_std

    def forward(self, observation: Tree, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Draw c [B, A] and its log_prob [B]; `noise` [B, A] is standard normal, drawn unless given."""
        mean, log_std = self.normal(observation)
        return squashed_sample(mean, log_std, torch.randn_like(mean) if noise is None else noise)

    def normal(self, observation: Tree) -> tuple[Tensor, Tensor]:
        """Return mean and log_std [B, A] of the normal under the tanh."""
        mean, log_std = self.layers(self.encoder(observation)).chunk(2, -1)
        return mean, log_std.clamp(self.lowest, self.highest)

    def log_prob(self, observation: Tree, c: Tensor) -> Tensor:
        """Return the log-density [B] of the action part c [B, A]."""
        return squashed_log_prob(*self.normal(observation), c)

    def mode(self, observation: Tree) -> Tensor:
        """Return the action part c [B, A] without noise: tanh of the mean."""
        return self.normal(observation)[0].tanh()


class Policy(nn.Module):
    """A stochastic policy for any action space: squashed Gaussian for Box leaves, categorical for choices.

    The parts of an action are drawn independently given the observation. It begins near the centre
    of the space and near uniform choices (`output_gain`).

    Raises:
        SpaceError: the action space has a Box without bounds.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        layer_norm: bool = False,
        init: str | Initialiser = "orthogonal",
        output_gain: float = 0.01,
        joint_limit: int = 64,
    ) -> None:
        super().__init__()
        require_bounded(spaces.action, "Policy")
        self.codec = ActionCodec(spaces, joint_limit=joint_limit)
        self.encoder = Encoder(spaces, init=init)
        self.widths = [self.codec.continuous, self.codec.continuous, self.codec.width]
        self.layers = MLP(
            self.encoder.size,
            sum(self.widths),
            hidden=hidden,
            activation=activation,
            layer_norm=layer_norm,
            init=init,
            output_gain=output_gain,
        )

    def heads(self, observation: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean [B, A], log_std [B, A] and log-probabilities of choices [B, width]."""
        mean, log_std, logits = torch.split(self.layers(self.encoder(observation)), self.widths, -1)
        return mean, log_std.clamp(*LOG_STD), self.codec.log_softmax(logits) if self.codec.discrete else logits

    def sample(self, observation: Tree, noise: Tensor | None = None) -> tuple[Tree, Tensor]:
        """Draw an action tree and its log_prob [B]."""
        mean, log_std, choices = self.heads(observation)
        c = k = None
        log_prob = choices.new_zeros(())
        if self.codec.continuous:
            c, log_prob = squashed_sample(mean, log_std, torch.randn_like(mean) if noise is None else noise)
        if self.codec.discrete:
            k = self.codec.sample(choices)
            log_prob = log_prob + self.codec.select(choices, k)
        return self.codec.join(c, k), log_prob

    forward = sample

    def log_prob(self, observation: Tree, action: Tree) -> Tensor:
        """Return the log-probability [B] of an action tree."""
        return self._log_prob(self.heads(observation), action)

    def entropy(self, observation: Tree) -> Tensor:
        """Return the entropy [B]; of the continuous part a one-sample estimate with gradients."""
        return self._entropy(self.heads(observation))

    def evaluate(self, observation: Tree, action: Tree) -> tuple[Tensor, Tensor]:
        """Return log_prob [B] and entropy [B] by one pass through the network."""
        heads = self.heads(observation)
        return self._log_prob(heads, action), self._entropy(heads)

    def mode(self, observation: Tree) -> Tree:
        """Return the action tree without noise: tanh of the mean, the most likely choices."""
        mean, _, choices = self.heads(observation)
        c = mean.tanh() if self.codec.continuous else None
        return self.codec.join(c, self.codec.best(choices) if self.codec.discrete else None)

    def _log_prob(self, heads: tuple[Tensor, Tensor, Tensor], action: Tree) -> Tensor:
        mean, log_std, choices = heads
        c, k = self.codec.split(action)
        terms = [] if c is None else [squashed_log_prob(mean, log_std, c)]
        terms += [] if k is None else [self.codec.select(choices, k)]
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]

    def _entropy(self, heads: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        mean, log_std, choices = heads
        terms = [squashed_entropy(mean, log_std, torch.randn_like(mean))] if self.codec.continuous else []
        terms += [self.codec.entropy(choices)] if self.codec.discrete else []
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]


def require_bounded(space: Space, place: str) -> None:
    """Refuse Box actions without bounds, in the name of `place`.

    Raises:
        SpaceError: some Box leaf has an infinite bound.
    """
    for path, leaf in leaves(space):
        if isinstance(leaf, Box) and not leaf.bounded:
            where = f"action part '{path}'" if path else "the action space"
            raise SpaceError(
                f"{place} needs bounded actions; {where} is {describe(leaf)} without bounds "
                "(bound it with a wrapper in env.wrappers, such as gymnasium.wrappers.TransformAction)"
            )
