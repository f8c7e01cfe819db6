"""Deep Q-learning (Mnih et al. 2013, arXiv 1312.5602) with double targets (van Hasselt et al. 2015, arXiv 1509.06461).

Actions are discrete. Several decisions at once (MultiDiscrete, MultiBinary, dicts of these) are one joint choice if
there are few combinations; otherwise their values are summed. With several critics the smallest value counts.

    a* = argmax_a min_i Q_i(s', a)
    y  = r + γ (1 - terminated) min_i Q̄_i(s', a*)
    L  = Σ_i h(Q_i(s, a) - y),  h the square, or the Huber loss
    Q̄  ← Q̄ + tau (Q - Q̄)

Differences from the papers: the target network may move slowly instead of being copied, and targets may sum several
rewards (then the batch has their `discount`).
"""

from typing import Any, Protocol

from torch import Tensor

from rlrun.callbacks.losses.critic import CriticLoss
from rlrun.callbacks.losses.target import TargetCallback, TargetResult
from rlrun.compile.calls import forwards
from rlrun.core.spaces import Spaces, require_discrete
from rlrun.core.typing import Tree
from rlrun.nn import ActionCodec, Critics, value_head_of
from rlrun.nn.remembering import Remembering


class ActionValues(Protocol):
    """What DQN calls on its network; a plain nn.Module gives the values [B, K] of observations [B, …]."""

    codec: ActionCodec  # maps the K values of a row to actions

    def forward(self, observation: Tree) -> Tensor:
        """Return the values [M, B, K] of every choice for observations [B, …], by M members."""

    def act(self, observation: Tree, explore: bool) -> Tree:
        """Return the best action for observations [B, …]."""


class QNetwork(Critics, Remembering):
    """The values of every choice [M, B, K], and the best action.

    Args:
        spaces, members, options: of `Critics`.

    Raises:
        SpaceError: some part of the action is continuous.
    """

    def __init__(self, spaces: Spaces, *, members: int = 1, **options: Any) -> None:
        require_discrete(spaces.action, "DQN")
        super().__init__(spaces, members=members, **options)

    def act(self, observation: Tree, explore: bool = False) -> Tree:
        """Return the action with the largest value; the smallest of the members' values counts."""
        (forward,) = forwards((self,))
        values = self.codec.restrict(self.value_head.guiding(forward(observation)), observation)
        return self.codec.join(None, self.codec.best(values))


class QTarget(TargetCallback):
    """Bellman targets from a target network.

    Args:
        double: the network chooses the next action and the target network values it (1509.06461 eq. 4).
        target_subset: number of members drawn at random for each target, which uses their smallest; None = all.
        options: of `TargetCallback`.

    Raises:
        ConfigError: there are fewer members than `target_subset`.
    """

    def __init__(
        self,
        network: QNetwork,
        *,
        double: bool = True,
        target_subset: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.codec = network.codec
        self.double = double
        self.draw_from(network, target_subset)
        self.raw_output, self.value_head = value_head_of(self.target_network)

    def target(
        self, next_observation: Tree, reward: Tensor, terminated: Tensor, discount: Tensor | None = None
    ) -> TargetResult:
        values = self.raw_output(next_observation)  # [M, B, K], or [M, B, K, N]
        chooser = self.network(next_observation) if self.double else self.value_head.mean(values)
        best = self.codec.best(
            self.codec.restrict(self.value_head.guiding(chooser), next_observation)
        )  # [B, K] -> [B, D]
        value = self.smallest(
            self.value_head.outcomes(self.value_head.select(values, best, self.codec))
        )  # -> [B], or [B, N]
        return self.bootstrap(reward, terminated, value, discount)


class QLoss(CriticLoss):
    """Distance between the values of the taken choices and the target, summed over members."""

    def raw_output(self, observation: Tree, c: Tensor | None) -> Tensor:
        return self._raw_output(observation)  # c is None: actions have no continuous part
