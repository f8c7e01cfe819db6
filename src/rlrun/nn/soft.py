"""The policy of soft actor-critic and its temperatures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Spaces
from rlrun.core.typing import Tree
from rlrun.nn.actions import ActionCodec
from rlrun.nn.critics import Critics
from rlrun.nn.heads import Heads
from rlrun.nn.policy import SquashedGaussian
from rlrun.nn.value_heads import value_head_of


class Temperature(nn.Module):
    """α of the continuous part and of the discrete choices, learned on a log scale.

    Args:
        spaces: of the environment.
        initial: α to start from.
        largest: upper bound on α; None = free.
        epistemic: given, nothing is learned: α of an action is this number times how far critics lie apart on it.

    Raises:
        ConfigError: `epistemic` is no number above 0.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        initial: float = 1.0,
        largest: float | None = None,
        epistemic: float | None = None,
    ) -> None:
        super().__init__()
        if epistemic is not None and (isinstance(epistemic, bool) or not epistemic > 0.0):
            raise ConfigError(f"algorithm.temperature.epistemic: wanted a number above 0, got {epistemic}")
        self.parts = ActionCodec(spaces).kinds
        self.largest = None if largest is None else math.log(largest)
        self.epistemic = epistemic
        first = math.log(initial if largest is None else min(initial, largest))
        # [parts]; kept where nothing is learned, too, so that runs of either kind can begin from the other's networks
        self.log = nn.Parameter(torch.full((len(self.parts),), first), requires_grad=epistemic is None)

    def of(self, part: str) -> Tensor:
        """Return α of a part ("continuous" or "discrete"), without gradient.

        Raises:
            ConfigError: there is not one α for all actions.
        """
        if self.epistemic is not None:
            raise ConfigError("algorithm.temperature.epistemic is for algorithm=dsac and doac; leave it away here")
        return self.log.detach()[self.parts.index(part)].exp()

    def of_each(self, values: Tensor) -> Tensor:
        """Return an epistemic α [B] of actions that critics value so, [M, B], without gradient."""
        assert self.epistemic is not None
        alpha = self.epistemic * values.detach().std(0)
        return alpha if self.largest is None else alpha.clamp(max=math.exp(self.largest))


class SoftPolicy(nn.Module):
    """π(c, k | s), and what acts by it.

    Args:
        spaces: of the environment.
        critics: whose minimum defines the discrete choices.
        temperature: α.
        hidden: widths of the Gaussian's layers.
        gaussian: a network of your own in its place; called, it gives c [B, A] and log_prob [B].
        prior: a density that is taken off the policy's wherever that counts (`rlrun.algorithms.prior`).
        options: of `SquashedGaussian`, such as `init` or `layer_norm`.
    """

    def __init__(
        self,
        spaces: Spaces,
        critics: Critics,
        temperature: Temperature,
        *,
        hidden: Sequence[int] = (256, 256),
        gaussian: SquashedGaussian | None = None,
        prior: nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.codec = critics.codec
        self.prior = prior
        if gaussian is None and self.codec.continuous:
            gaussian = SquashedGaussian(spaces, hidden=hidden, **options)
        self.gaussian = gaussian if self.codec.continuous else None
        _, self.value_head = value_head_of(critics)
        self._borrowed = (critics, temperature)  # in a tuple: their parameters are not this network's

    def train(self, mode: bool = True) -> SoftPolicy:
        """Set the mode of the critics, too: they are a part of what acts."""
        self._borrowed[0].train(mode)
        return super().train(mode)

    def continuous(self, observation: Tree, previous: Tree | None = None) -> tuple[Tensor | None, Tensor | None]:
        """Sample c [B, A] with its log-probability [B], less the prior's; None where there is no continuous part.

        previous: the action before, where a prior looks at it.
        """
        if self.gaussian is None:
            return None, None
        c, log_prob = self.gaussian(observation)
        return c, log_prob if self.prior is None else log_prob - self.prior(c, previous)

    def heads(self, observation: Tree) -> Heads:
        """Return the distribution of c; that of k belongs to the critics, and a space without c has nothing here."""
        return Heads(None, None, None) if self.gaussian is None else self.gaussian.heads(observation)

    def choices(self, values: Tensor) -> Tensor:
        """Log-probabilities of the discrete choices [B, K] from critics' values [M, B, K], or [M, R, B, K]."""
        return self.codec.log_softmax(self.value_head.guiding(values), self._borrowed[1].of("discrete"))

    def act(self, observation: Tree, explore: bool = True) -> Tree:
        """Return an action: sampled, or the most likely one."""
        if self.gaussian is None:
            c = None
        else:
            c = self._drawn(self.gaussian, observation) if explore else self.gaussian.mode(observation)
        if not self.codec.discrete:
            return self.codec.join(c, None)
        values = self._borrowed[0](observation, c)
        k = self.codec.sample(self.choices(values)) if explore else self.codec.best(self.value_head.guiding(values))
        return self.codec.join(c, k)

    def _drawn(self, gaussian: SquashedGaussian, observation: Tree) -> Tensor:
        if type(gaussian).forward is SquashedGaussian.forward:
            return gaussian.draw(observation)
        c: Tensor = gaussian(observation)[0]  # one of the user's own: calls are all that it must know
        return c
