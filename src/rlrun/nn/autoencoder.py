"""Autoencoders: observations to a row of numbers, and back to a distribution of observations."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.core.errors import ConfigError, did_you_mean, require_one_of
from rlrun.core.spaces import Box, Composite, Space, describe, leaves
from rlrun.core.typing import Tree
from rlrun.nn.decoders import Decoder
from rlrun.nn.encoders import EncodedMLP, Recipe, flatten
from rlrun.nn.mlp import Activation, Initializer
from rlrun.ops.distributions import HALF_LOG_TWO_PI

Likelihood = Literal["bernoulli", "gaussian"]
ConditionReader = Literal["prior", "decoder"]


class RegularizedMLP(EncodedMLP):
    """Features of observations and their penalties: a dict of `features` [B, F], `size` [B] and `sparsity` [B].

    The size is the mean square of a row, and the sparsity its mean absolute value. `EncodingLoss` weighs them by
    `loss_fields`, and its `output_fields` is `features`. Arguments are those of `EncodedMLP`.
    """

    def forward(self, observation: Tree) -> dict[str, Tensor]:
        features: Tensor = super().forward(observation)
        return {"features": features, "size": features.square().mean(-1), "sparsity": features.abs().mean(-1)}


class Autoencoder(nn.Module):
    """An encoder of observations, and a decoder that reconstructs them from its outputs.

    Choices are one-hot, and whole numbers lie in [0, 1] by their bounds. With a `condition` the encoder reads a tree of
    two parts, the observation and the condition. A prior reads the condition alone; or the decoder reads it after the
    latent.

    Args:
        spaces: of columns, by name.
        latent: size of the decoder's input.
        outputs: size of the outputs of the encoder and of the prior; None = `latent`.
        observation: the column that is encoded and decoded.
        condition: a column that the encoder reads, too; None = none.
        condition_reader: the second reader of the condition: a prior, or the decoder, without a prior.
        encoder, prior: of observations and of the condition, as `Encoded` takes them.
        hidden, prior_hidden: widths of the dense layers behind them; the decoder has `hidden` in reverse.
        activation, init: of all layers.
        decoder: recipe of any module in place of these layers, as `Decoder` takes it.
        likelihood: bernoulli, of numbers from 0 to 1; or gaussian.
        deviation: standard deviation of gaussian numbers; None = a single one is learned.

    Attributes:
        columns: columns that the encoder reads: one name, or several by the names of its parts.
        inputs: the same for hooks and metrics that request `observation` and `condition`.

    Raises:
        ConfigError: there is no such column, or its numbers are not from 0 to 1.
    """

    def __init__(
        self,
        spaces: Mapping[str, Space],
        *,
        latent: int = 8,
        outputs: int | None = None,
        observation: str = "observation",
        condition: str | None = None,
        condition_reader: ConditionReader = "prior",
        encoder: nn.Module | Recipe | None = None,
        prior: nn.Module | Recipe | None = None,
        hidden: Sequence[int] = (256,),
        prior_hidden: Sequence[int] = (64,),
        activation: Activation = "relu",
        init: str | Initializer = "default",
        decoder: Recipe | None = None,
        likelihood: Likelihood = "bernoulli",
        deviation: float | None = None,
    ) -> None:
        super().__init__()
        for name in (observation, condition):
            if name is not None and name not in spaces:
                raise ConfigError(
                    f"there is no column '{name}'; there are {', '.join(spaces)}{did_you_mean(name, spaces)}"
                )
        require_one_of("likelihood", likelihood, ("bernoulli", "gaussian"))
        require_one_of("condition_reader", condition_reader, ("prior", "decoder"))
        self.space, self.condition = spaces[observation], condition
        self.inputs = {"observation": observation, **({} if condition is None else {"condition": condition})}
        self.columns: Any = observation if condition is None else self.inputs
        self.latent, self.likelihood = latent, likelihood
        if likelihood == "bernoulli" and not all(
            leaf.in_unit for _, leaf in leaves(self.space) if isinstance(leaf, Box)
        ):
            there = f"{describe(self.space)} has no such bounds; likelihood=gaussian takes any"
            raise ConfigError(f"likelihood: bernoulli wants numbers from 0 to 1, and {there}")
        layers = partial(EncodedMLP, outputs=outputs or latent, activation=activation, init=init)
        read = (
            self.space if condition is None else Composite({"observation": self.space, "condition": spaces[condition]})
        )
        self.encoder = layers(read, hidden=hidden, encoder=encoder)
        self.context = spaces[condition] if condition is not None and condition_reader == "decoder" else None
        self.prior = None
        if condition is not None and self.context is None:
            self.prior = layers(spaces[condition], hidden=prior_hidden, encoder=prior)
        options: dict[str, Any] = {"hidden": [*reversed(hidden)], "activation": activation, "init": init}
        read_by_decoder = latent + (0 if self.context is None else self.context.size)
        self.decoder = Decoder(self.space, read_by_decoder, network=decoder, **options)
        if deviation is not None and (likelihood == "bernoulli" or not deviation > 0.0):
            raise ConfigError(f"deviation: wanted a number above 0 with likelihood=gaussian, or null; got {deviation}")
        log_deviation = torch.tensor(math.log(1.0 if deviation is None else deviation))
        if likelihood == "gaussian" and deviation is None:
            self.log_deviation: Tensor = nn.Parameter(log_deviation)
        else:
            self.register_buffer("log_deviation", log_deviation)

    def joined(self, observation: Tree, condition: Tree | None) -> Tree:
        """Return the input of the encoder."""
        return observation if self.condition is None else {"observation": observation, "condition": condition}

    def decode(self, latent: Tensor, condition: Tree | None = None) -> Tensor:
        """Return outputs [B, N] of the decoder at latents [B, latent]."""
        if self.context is not None:
            latent = torch.cat((latent, flatten(self.context, condition)), -1)
        numbers: Tensor = self.decoder(latent)
        return numbers

    def decoded(self, latent: Tensor, inputs: Tree) -> Tensor:
        """Return the mean [B, N] of observations at latents.

        inputs: of the encoder, with the condition.
        """
        return self.mean(self.decode(latent, None if self.condition is None else inputs["condition"]))

    def log_likelihood(self, numbers: Tensor, observation: Tree) -> Tensor:
        """Return the log-density [B] of observations at outputs [B, N] of the decoder."""
        target = flatten(self.space, observation)
        if self.likelihood == "bernoulli":
            return -F.binary_cross_entropy_with_logits(numbers, target, reduction="none").sum(-1)
        distance = (target - numbers) * (-self.log_deviation).exp()
        return -(0.5 * distance.square() + self.log_deviation + HALF_LOG_TWO_PI).sum(-1)

    def mean(self, numbers: Tensor) -> Tensor:
        """Return the mean of observations, as numbers [B, N], at outputs of the decoder."""
        return numbers.sigmoid() if self.likelihood == "bernoulli" else numbers
