"""Values of choices by two streams of layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlrun.core.errors import SpaceError
from rlrun.core.spaces import describe
from rlrun.nn.actions import ActionCodec
from rlrun.nn.ensemble import Ensemble


class Dueling(nn.Module):
    """The value of an observation and, by layers of their own, advantages of choices: [B, inputs] -> [M, B, width · N].

        Q = V + A - mean_k A        (Wang et al. 2016, arXiv 1511.06581, eq. 9)

    Where values add up over branches of choices, each branch has its own mean and an equal part of V.

    Args:
        inputs: features.
        codec: of the actions.
        size: numbers a value, N.
        options: of `Ensemble`.

    Raises:
        SpaceError: actions have no choices.
    """

    def __init__(self, inputs: int, codec: ActionCodec, *, size: int, **options: Any) -> None:
        if not codec.discrete:
            raise SpaceError(f"dueling is for values of choices; the action space is {describe(codec.space)}")
        super().__init__()
        self.codec = codec
        self.size = size
        self.value = Ensemble(inputs, size, **options)
        self.advantage = Ensemble(inputs, codec.width * size, **options)

    def forward(self, features: Tensor) -> Tensor:
        value = self.value(features).unsqueeze(-1) / len(self.codec.branches)  # [M, B, N, 1]
        advantage = self.advantage(features)
        advantage = advantage.reshape(*advantage.shape[:-1], self.codec.width, self.size).transpose(-1, -2)
        both: Tensor = value + self.codec.centered(advantage)  # [M, B, N, width]
        return torch.flatten(both.transpose(-1, -2), -2)
