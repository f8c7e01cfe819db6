"""What the heads of a network stand on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from rlrun.nn.encoders import Encoder
from rlrun.nn.init import Initialiser, initialiser
from rlrun.nn.mlp import Activation, dense
from rlrun.spaces import Spaces
from rlrun.typing import Tree


class Trunk(nn.Module):
    """From observation trees [B, …] or [B, T, …] to features [B, size] or [B, T, size]: an encoder and dense layers."""

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        layer_norm: bool = False,
        init: str | Initialiser = "orthogonal",
    ) -> None:
        super().__init__()
        self.encoder = Encoder(spaces, init=init)
        self.layers = dense(self.encoder.size, hidden, activation=activation, layer_norm=layer_norm)
        self.layers.apply(initialiser(init))
        self.size = hidden[-1] if hidden else self.encoder.size

    def forward(self, observation: Tree) -> Tensor:
        features: Tensor = self.layers(self.encoder(observation))
        return features
