"""Networks that judge."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlrun.nn.actions import ActionCodec
from rlrun.nn.encoders import Encoder
from rlrun.nn.ensemble import Ensemble
from rlrun.nn.init import Initialiser
from rlrun.nn.mlp import MLP, Activation
from rlrun.spaces import Spaces
from rlrun.typing import Tree


class Critics(nn.Module):
    """M action values, one ensemble behind one encoder.

    Choices are outputs, numbers are inputs: without decisions in the action space a call returns
    [M, B], with them [M, B, width], the values of every choice of every branch (`codec`).
    With `members=1` on a discrete space this is the Q-network of DQN.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (256, 256),
        members: int = 2,
        activation: Activation = "relu",
        layer_norm: bool = False,
        dropout: float = 0.0,
        init: str | Initialiser = "default",
        joint_limit: int = 64,
    ) -> None:
        super().__init__()
        self.codec = ActionCodec(spaces, joint_limit=joint_limit)
        self.encoder = Encoder(spaces, activation=activation, init=init)
        self.layers = Ensemble(
            self.encoder.size + self.codec.continuous,
            self.codec.width or 1,
            members=members,
            hidden=hidden,
            activation=activation,
            layer_norm=layer_norm,
            dropout=dropout,
            init=init,
        )

    def forward(self, observation: Tree, c: Tensor | None = None) -> Tensor:
        """Return the values of an observation and the continuous part c [B, A] of an action."""
        value = self.encoder(observation)
        if c is not None:
            value = torch.cat((value, c), -1)
        result: Tensor = self.layers(value)
        return result if self.codec.discrete else result.squeeze(-1)


class Value(nn.Module):
    """The value of an observation: [B]."""

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        layer_norm: bool = False,
        init: str | Initialiser = "orthogonal",
        output_gain: float | None = 1.0,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(spaces, init=init)
        self.layers = MLP(
            self.encoder.size,
            1,
            hidden=hidden,
            activation=activation,
            layer_norm=layer_norm,
            init=init,
            output_gain=output_gain,
        )

    def forward(self, observation: Tree) -> Tensor:
        value: Tensor = self.layers(self.encoder(observation))
        return value.squeeze(-1)
