"""What the heads of a network stand on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from rlrun.core.spaces import Space, Spaces
from rlrun.core.typing import Tree
from rlrun.nn.encoders import Encoder
from rlrun.nn.init import Initializer, initializer
from rlrun.nn.mlp import Activation, dense
from rlrun.nn.recurrent import Core, Kind


class Trunk(nn.Module):
    """From observation trees [B, …] or [B, T, …] to features [B, size] or [B, T, size]: an encoder and dense layers.

    With a `core` there follows a recurrent layer. Its state is a row of `state_size` numbers, without one none.
    """

    def __init__(
        self,
        spaces: Spaces | Space,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        layer_norm: bool = False,
        init: str | Initializer = "orthogonal",
        core: Kind | None = None,
        core_size: int = 64,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(spaces, init=init)
        self.layers = dense(self.encoder.size, hidden, activation=activation, layer_norm=layer_norm)
        self.layers.apply(initializer(init))
        self.size = hidden[-1] if hidden else self.encoder.size
        self.simple = core is None and self.encoder.plain  # nothing but the layers, on observations as they are
        self.core = None if core is None else Core(core, self.size, core_size)
        self.state_size = 0
        if self.core is not None:
            self.size, self.state_size = self.core.size, self.core.state_size

    def forward(self, observation: Tree, state: Tensor | None = None, episode_end: Tensor | None = None) -> Tensor:
        """Return features; state [B, S] and ended [B, T] are those of `Core`, of no account without one."""
        features = self._features(observation)
        return features if self.core is None else self.core(features, state, episode_end)

    def step(self, observation: Tree, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [B, size] of single steps and the state [B, S] after them."""
        features = self._features(observation)
        return (features, state) if self.core is None else self.core.step(features, state)

    def _features(self, observation: Tree) -> Tensor:
        features: Tensor = self.layers(observation if self.encoder.plain else self.encoder(observation))
        return features
