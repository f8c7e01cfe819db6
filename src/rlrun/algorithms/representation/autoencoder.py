"""Encoders and decoders: features of observations, and columns predicted from them.

    L = Σ_k w_k output_k                        losses that an encoder returns itself, by the names of its outputs
    L = Σ distance(decoder(encoder(x)), y)      summed over the entries of y; an autoencoder has y = x

The decoder's gradient reaches the encoder: both are terms of one loss. An agent may read an autoencoder's features in
place of observations (Lange and Riedmiller 2010, doi 10.1109/IJCNN.2010.5596468).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun import ops
from rlrun.callbacks.losses.loss import LossCallback, LossResult, Optimizer, require_distance
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Space, Spaces, without_mask
from rlrun.core.typing import Batch, Tree
from rlrun.nn import Autoencoder, flatten
from rlrun.nn.recurrent import present

Fields = str | Sequence[str] | None


class EncodingLoss(LossCallback):
    """Encode observations for later terms of a joint loss, and weigh the losses that the encoder returns.

    Args:
        network: from observations to features; or to a dict of features and losses.
        optimizer: of its parameters; None in a joint loss.
        output_fields: the output to provide, such as "features" or "heads.mean"; a list provides a dict of them;
            None = the whole output.
        loss_fields: names of outputs that are losses, [B] or scalars.
        loss_weights: w of each of them; None = 1.
        options: of `LossCallback`.

    Raises:
        ConfigError: the number of weights is not that of losses.
    """

    provides = ("encoded",)

    def __init__(
        self,
        network: nn.Module,
        optimizer: Optimizer | None,
        *,
        output_fields: Fields = None,
        loss_fields: Sequence[str] = (),
        loss_weights: Sequence[float] | None = None,
        **options: Any,
    ) -> None:
        weights = [1.0] * len(loss_fields) if loss_weights is None else [*loss_weights]
        if len(weights) != len(loss_fields):
            raise ConfigError(f"loss_weights: wanted one of each of {[*loss_fields]}, got {weights}")
        super().__init__(network, optimizer, **options)
        self.output_fields = output_fields
        self.weights = dict(zip(loss_fields, weights, strict=True))

    def loss(self, observation: Tree) -> LossResult:
        output = self.network(observation)
        losses = {name: _field(output, name) for name in self.weights}
        total = torch.zeros(())
        for name, weight in self.weights.items():
            total = total + weight * losses[name]
        encoded = chosen(output, self.output_fields)
        return total, {"encoded": encoded}, {f"encoding/{name}": loss for name, loss in losses.items()}


class EncoderDecoder(nn.Module):
    """An encoder followed by a decoder; arguments as of `EncodingLoss` and `DecodingLoss`."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, *, output_fields: Fields = None) -> None:
        super().__init__()
        self.encoder, self.decoder, self.output_fields = encoder, decoder, output_fields

    def forward(self, observation: Tree) -> Tensor:
        decoded: Tensor = self.decoder(chosen(self.encoder(observation), self.output_fields))
        return decoded


def chosen(output: Any, fields: Fields) -> Any:
    """Return the part of an encoder's output that `output_fields` names, or a dict of such parts.

    Raises:
        ConfigError: the output has no such part.
    """
    if fields is None:
        return output
    return _field(output, fields) if isinstance(fields, str) else {name: _field(output, name) for name in fields}


def _field(output: Any, path: str) -> Any:
    part = output
    for name in path.split("."):
        if not isinstance(part, Mapping) or name not in part:
            there = ", ".join(part) if isinstance(part, Mapping) else f"a {type(part).__name__}"
            raise ConfigError(f"encoder: its output has no '{path}'; there is {there}")
        part = part[name]
    return part


class DecodingLoss(LossCallback):
    """The distance between a decoder's prediction and a target, summed over its entries.

    Args:
        network: the decoder, from `encoded` to numbers [..., N].
        optimizer: of its parameters; None in a joint loss.
        space: of the target, whose choices are one-hot numbers and whose pixels lie in [0, 1].
        distance: a function of prediction and target [..., N], entry by entry; None = squared.
        options: of `LossCallback`.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: Optimizer | None,
        *,
        space: Space,
        distance: ops.Distance | None = None,
        **options: Any,
    ) -> None:
        super().__init__(network, optimizer, **options)
        self.space = space
        require_distance(distance, None)
        self.distance = distance or partial(F.mse_loss, reduction="none")

    def loss(self, encoded: Tree, target: Tree) -> Tensor:
        prediction, numbers = self.network(encoded), flatten(self.space, present(target))
        if prediction.shape != numbers.shape:
            raise ConfigError(f"decoder: it makes {[*prediction.shape]}, but its target has {[*numbers.shape]}")
        return self.distance(prediction, numbers).sum(-1)


class Representation(Autoencoder):
    """An autoencoder of observations, for `rlrun.algorithms.representation.representation.Represent`.

    Args:
        spaces: of the environment.
        latent: number of features.
        options: of `rlrun.nn.Autoencoder`.
    """

    def __init__(self, spaces: Spaces, *, latent: int = 32, **options: Any) -> None:
        columns = {"observation": without_mask(spaces.observation)}
        super().__init__(columns, latent=latent, likelihood="gaussian", deviation=1.0, **options)
        self.size = latent

    def features(self, observation: Tree) -> Tensor:
        """Return features [..., F]."""
        features: Tensor = self.encoder(observation)
        return features


class ReconstructionLoss(LossCallback):
    """The mean squared error of decoded observations."""

    network: Representation

    def loss(self, untransformed: Batch, valid: Tensor | None = None) -> LossResult:
        observation = untransformed["observation"]
        decoded = self.network.decoder(self.network.features(observation))
        error = (decoded - flatten(self.network.space, observation)).square().mean(-1)
        return error if valid is None else error * valid, {}, {"representation/squared_error": error}
