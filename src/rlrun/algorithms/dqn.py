"""Deep Q-learning (Mnih et al. 2013, arXiv 1312.5602) with double targets (van Hasselt et al. 2015, arXiv 1509.06461).

Works on every action space that is made of choices. Several decisions at once (MultiDiscrete,
MultiBinary, dicts of these) count as one joint choice while there are few combinations, else
values add up over decisions. With more than one critic the smallest value counts.

    a* = argmax_a min_i Q_i(s', a)
    y  = r + γ (1 - terminated) min_i Q̄_i(s', a*)
    L  = Σ_i h(Q_i(s, a) - y),  h the square, or the Huber loss
    Q̄  ← Q̄ + rate (Q - Q̄)

Differences from the papers: the target network may follow slowly instead of by jumps, and the
reward may come from several steps (then the batch holds their `discount`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlrun.callbacks.critic import CriticLoss
from rlrun.callbacks.target import TargetCallback
from rlrun.nn import Critics, told_by
from rlrun.spaces import Spaces, require_discrete
from rlrun.typing import Tree


class QNetwork(Critics):
    """Values of every choice [M, B, K], and the action that takes the best.

    Raises:
        SpaceError: some part of the action is continuous.
    """

    def __init__(self, spaces: Spaces, *, members: int = 1, **options: Any) -> None:
        require_discrete(spaces.action, "DQN")
        super().__init__(spaces, members=members, **options)

    def act(self, observation: Tree, explore: bool = False) -> Tree:
        """Return the action of the largest value, the smallest of the members' counting."""
        return self.codec.join(None, self.codec.best(self.tells.guiding(self(observation))))


class QTarget(TargetCallback):
    """Bellman target from a slow copy of the network.

    Args:
        double: the network chooses the next action and the slow copy values it (1509.06461 eq. 4).
        drawn: members of the network, drawn at random for each target, of which the smallest value counts; None = all.

    Raises:
        ConfigError: there are fewer members than shall be drawn.
    """

    def __init__(
        self,
        network: QNetwork,
        *,
        discount: float = 0.99,
        rate: float = 0.005,
        every: int = 1,
        double: bool = True,
        drawn: int | None = None,
        data_group: str = "default",
    ) -> None:
        super().__init__(network, discount=discount, rate=rate, every=every, data_group=data_group)
        self.codec = network.codec
        self.double = double
        self.draw_from(network, drawn)
        self.told, self.tells = told_by(self.target)

    @torch.no_grad()
    def begin_batch(
        self, next_observation: Tree, reward: Tensor, terminated: Tensor, discount: Tensor | None = None
    ) -> dict[str, Tensor]:
        told = self.told(next_observation)  # [M, B, K], or [M, B, K, N]
        chooser = self.network(next_observation) if self.double else self.tells.mean(told)
        best = self.codec.best(self.tells.guiding(chooser))  # [M, B, K] -> [B, D]
        value = self.smallest(self.tells.outcomes(self.tells.select(told, best, self.codec)))  # -> [B], or [B, N]
        return self.bootstrap(reward, terminated, value, discount)


class QLoss(CriticLoss):
    """Distance of what is told of the choice taken to the target, summed over members."""

    def told(self, observation: Tree, c: Tensor | None) -> Tensor:
        return self._told(observation)  # c is None: a network for choices takes nothing else
