"""Deep Q-learning (Mnih et al. 2013, arXiv 1312.5602) with double targets (van Hasselt et al. 2015, arXiv 1509.06461).

Works on every action space that is made of choices. Several decisions at once (MultiDiscrete,
MultiBinary, dicts of these) count as one joint choice while there are few combinations, else
values add up over decisions. With more than one critic the smallest value counts.

    a* = argmax_a min_i Q_i(s', a)
    y  = r + γ (1 - terminated) min_i Q̄_i(s', a*)
    L  = Σ_i h(Q_i(s, a) - y),  h the square, or the Huber loss
    Q̄  ← Q̄ + tau (Q - Q̄)

Differences from the papers: the target network may follow slowly instead of by jumps, and the
reward may come from several steps (then the batch holds their `discount`).
"""

from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rlrun.callbacks.critic import CriticLoss
from rlrun.callbacks.target import TargetCallback, TargetResult
from rlrun.compile.calls import forwards
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Spaces, require_discrete
from rlrun.core.typing import Tree
from rlrun.nn import ActionCodec, Critics, value_head_of
from rlrun.nn.encoders import Encoder
from rlrun.nn.mlp import outputs_of, zeros
from rlrun.nn.remembering import Remembering


class ActionValues(Protocol):
    """What DQN calls on its network; a plain nn.Module [B, …] -> [B, K] goes to `networks.q.layers`."""

    codec: ActionCodec  # gives the K values of a row their meaning

    def forward(self, observation: Tree) -> Tensor:
        """Return the values [M, B, K] of every choice for observations [B, …], by M members."""

    def act(self, observation: Tree, explore: bool) -> Tree:
        """Return the best action for observations [B, …]."""


class QNetwork(Critics, Remembering):
    """Values of every choice [M, B, K], and the action that takes the best.

    Args:
        spaces, members, options: of `Critics`.
        layers: any module from observations [B, …] to values [B, K], in place of `hidden` layers; for one member.

    Raises:
        SpaceError: some part of the action is continuous.
        ConfigError: there are layers and several members.
    """

    def __init__(self, spaces: Spaces, *, members: int = 1, layers: nn.Module | None = None, **options: Any) -> None:
        require_discrete(spaces.action, "DQN")
        super().__init__(spaces, members=members, **options)
        if layers is not None:
            if members != 1:
                raise ConfigError(f"networks.q.layers is one network; algorithm.ensemble={members} wants several")
            if self.state_size:
                raise ConfigError("networks.q.layers is a network without a state; leave algorithm.recurrent away")
            recipe = options.get("encoder") or partial(Encoder)
            if not isinstance(recipe, partial) or (recipe.func, recipe.keywords) != (Encoder, {}):
                raise ConfigError("networks.q.layers reads observations by itself; leave encoder=… away")
            if any(is_lazy(parameter) for parameter in layers.parameters()):
                outputs_of(layers, zeros(spaces.observation))
            self.encoder, self.layers = nn.Identity(), _OneMember(layers)  # type: ignore[assignment]

    def act(self, observation: Tree, explore: bool = False) -> Tree:
        """Return the action of the largest value, the smallest of the members' counting."""
        (forward,) = forwards((self,))
        values = self.codec.restrict(self.value_head.guiding(forward(observation)), observation)
        return self.codec.join(None, self.codec.best(values))


class _OneMember(nn.Sequential):
    def forward(self, observation: Tree) -> Tensor:
        values: Tensor = self[0](observation)
        return values.unsqueeze(0)


class QTarget(TargetCallback):
    """Bellman target from a target network of the network.

    Args:
        double: the network chooses the next action and the target network values it (1509.06461 eq. 4).
        target_subset: networks drawn at random for each target, of which the smallest value counts; None = all.
        options: of `TargetCallback`.

    Raises:
        ConfigError: there are fewer members than shall be drawn.
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
    """Distance of the outputs for the choice taken to the target, summed over members."""

    def raw_output(self, observation: Tree, c: Tensor | None) -> Tensor:
        return self._raw_output(observation)  # c is None: a network for choices takes nothing else
