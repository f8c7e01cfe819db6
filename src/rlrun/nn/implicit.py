"""Critics that tell any quantile that they are asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlrun import ops
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Spaces, require_continuous
from rlrun.core.typing import Tree
from rlrun.nn.actions import ActionCodec
from rlrun.nn.encoders import Encoder
from rlrun.nn.ensemble import Ensemble
from rlrun.nn.init import Initializer
from rlrun.nn.mlp import Activation, activation_module
from rlrun.nn.precision import products
from rlrun.nn.value_heads import ValueHead


class ImplicitCritics(nn.Module):
    """M distributions of the return of continuous actions, by their quantiles (Dabney et al. 2018, arXiv 1806.06923).

        φ_i(τ)    = sigmoid(Σ_k w_ki cos(π k τ) + b_i),  k = 1 … cosines
        Z(s, c; τ) = head(f(s, c) · φ(τ)),  a layer with a norm, and one that gives a number

    Args:
        spaces: of the environment.
        hidden: widths of the layers of f; the last one is that of the head, too.
        members: M.
        count: equal shares whose quantiles make up a mean.
        cosines: features of a fraction.
        activation, layer_norm, dropout, init: of the layers, as `Ensemble` takes them.
        value_head: None; critics return quantiles only.

    Raises:
        SpaceError: some part of the action is a choice.
        ConfigError: something else shall be told.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (256, 256),
        members: int = 2,
        count: int = 32,
        cosines: int = 64,
        activation: Activation = "relu",
        layer_norm: bool = False,
        dropout: float = 0.0,
        init: str | Initializer = "default",
        value_head: ValueHead | None = None,
    ) -> None:
        require_continuous(spaces.action, type(self).__name__)
        if value_head is not None:
            raise ConfigError(
                f"{type(self).__name__} has quantiles; leave algorithm.value_head (+with=hlgauss, reward_critics) away"
            )
        if not hidden:
            raise ConfigError("hidden: wanted at least one layer, which quantiles are told behind")
        super().__init__()
        self.codec = ActionCodec(spaces)
        self.count, self.cosines, self.members = count, cosines, members
        self.encoder = Encoder(spaces, activation=activation, init=init)
        *below, width = hidden
        inputs = self.encoder.size + self.codec.continuous
        self.features = Ensemble(
            inputs,
            width,
            members=members,
            hidden=below,
            activation=activation,
            layer_norm=layer_norm,
            dropout=dropout,
            init=init,
        )
        self.fractions = Ensemble(cosines, width, members=members, hidden=(), init=init)
        self.head = Ensemble(
            width,
            1,
            members=members,
            hidden=(width,),
            activation=activation,
            layer_norm=True,
            dropout=dropout,
            init=init,
        )
        self.activation = activation_module(activation)

    def forward(self, observation: Tree, c: Tensor) -> Tensor:
        """Return the means [M, B] over equal shares."""
        points = ops.fixed_fractions(self.count, like=c).points
        return self.told(observation, c, points.expand(*c.shape[:-1], self.count)).mean(-1)

    def told(self, observation: Tree, c: Tensor, points: Tensor) -> Tensor:
        """Return the quantiles [M, B, N] of fractions [B, N] between 0 and 1."""
        seen = torch.cat((self.encoder(observation), c), -1)
        turns = math.pi * torch.arange(1, self.cosines + 1, device=c.device, dtype=c.dtype)
        with products(seen, self.head.work):  # what ends an ensemble is no end here
            features = self.activation(self.features(seen))  # [M, B, width]
            weights = self.fractions((points.unsqueeze(-1) * turns).cos()).sigmoid()  # [M, B, N, width]
            both = features.unsqueeze(-2) * weights
        result: Tensor = self.head(both.to(c.dtype), shared=False)
        return result.squeeze(-1)
