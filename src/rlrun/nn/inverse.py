"""Inverse models: features from which actions are predicted."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from rlrun.core.spaces import Spaces
from rlrun.core.typing import Tree
from rlrun.nn.actions import ActionCodec
from rlrun.nn.encoders import Trunk
from rlrun.nn.init import Initializer
from rlrun.nn.mlp import MLP, Activation


class InverseModel(nn.Module):
    """Features of observations, from which the action between two of them is predicted.

    Args:
        spaces: of the environment.
        hidden: widths of the features' layers.
        model: widths of the layers of each model.
        activation, init: of the layers, as `MLP` takes them.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (128, 128),
        model: Sequence[int] = (256,),
        activation: Activation = "relu",
        init: str | Initializer = "orthogonal",
    ) -> None:
        super().__init__()
        self.codec = ActionCodec(spaces)
        self.features: Trunk = Trunk(spaces, hidden=hidden, activation=activation, init=init)
        self.build = partial(MLP, hidden=model, activation=activation, init=init)
        self.tell = self.build(2 * self.features.size, self.codec.continuous + self.codec.width, output_gain=0.0)

    def inverse_error(self, before: Tensor, action: Tree, after: Tensor) -> Tensor:
        """Return the error of the action predicted from features [..., F] around it: [...] (1705.05363 eq. 3).

        Minus the log-probability of choices, half the mean square of numbers.
        """
        prediction = self.tell(torch.cat((before, after), -1))
        numbers, logits = prediction.split((self.codec.continuous, self.codec.width), -1)
        c, k = self.codec.split(action)
        error: Tensor = prediction.new_zeros(prediction.shape[:-1])
        if c is not None:
            error = error + 0.5 * (numbers - c).square().mean(-1)
        return error if k is None else error - self.codec.select(self.codec.log_softmax(logits), k)
