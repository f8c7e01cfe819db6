"""Features that are learned by predicting the action between two observations."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Spaces
from rlrun.core.typing import Tree
from rlrun.nn.actions import ActionCodec
from rlrun.nn.encoders import Recipe, Trunk
from rlrun.nn.latent import SharedFeatures
from rlrun.nn.mlp import MLP, Activation, Initializer, outputs_of, zeros


class InverseModel(nn.Module):
    """Features of observations, from which the action between two of them is predicted.

    Args:
        spaces: of the environment.
        hidden: widths of the features' layers.
        model: widths of the layers of each model.
        activation, init: of the layers, as `MLP` takes them.
        encoder: below the `hidden` layers, as `Encoded` takes it.
        features: any module from observations to features [..., F], in place of `hidden` layers.
        inverse: any module from two rows of features [..., 2 F] to a prediction of the action.

    Raises:
        ConfigError: a module has the wrong number of outputs.

    Attributes:
        size: F.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        hidden: Sequence[int] = (128, 128),
        model: Sequence[int] = (256,),
        activation: Activation = "relu",
        init: str | Initializer = "orthogonal",
        encoder: nn.Module | Recipe | None = None,
        features: nn.Module | None = None,
        inverse: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.codec, seen = ActionCodec(spaces), zeros(spaces.observation)
        if features is None:
            self.features: Any = Trunk(spaces, hidden=hidden, activation=activation, init=init, encoder=encoder)
            self.size: int = self.features.size
        else:
            self.features = features  # shared ones may have a state, and know their size
            self.size = features.size if isinstance(features, SharedFeatures) else outputs_of(features, seen)
        self._build = partial(MLP, hidden=model, activation=activation, init=init)
        self.tell = self.model(2 * self.size, self.codec.continuous + self.codec.width, inverse, output_gain=0.0)

    def model(self, inputs: int, outputs: int, own: nn.Module | None, **options: Any) -> nn.Module:
        """Return a model of this size; `own` if it is given.

        Raises:
            ConfigError: `own` has another number of outputs.
        """
        if own is None:
            return self._build(inputs, outputs, **options)
        if (size := outputs_of(own, torch.zeros(2, inputs))) != outputs:
            raise ConfigError(f"a {type(own).__name__} makes {size} numbers of {inputs}; wanted {outputs}")
        return own

    def inverse_error(self, before: Tensor, action: Tree, after: Tensor) -> Tensor:
        """Return the error of the action predicted from features [..., F] around it: [...] (1705.05363 eq. 3).

        It is minus the log-probability of choices, plus half the mean squared error of numbers.
        """
        prediction = self.tell(torch.cat((before, after), -1))
        numbers, logits = prediction.split((self.codec.continuous, self.codec.width), -1)
        c, k = self.codec.split(action)
        error: Tensor = prediction.new_zeros(prediction.shape[:-1])
        if c is not None:
            error = error + 0.5 * (numbers - c).square().mean(-1)
        return error if k is None else error - self.codec.select(self.codec.log_softmax(logits), k)
