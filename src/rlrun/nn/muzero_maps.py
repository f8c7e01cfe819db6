"""MuZero's networks over boards and images: residual convolutions, with planes over cells as latents."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.core.errors import ConfigError, require_whole
from rlrun.core.images import Picture, guessed_rows
from rlrun.core.spaces import Box, Space, Spaces, describe, leaves, leaves_of, without_mask
from rlrun.core.typing import Tree
from rlrun.nn.convolutions import ResidualBlock
from rlrun.nn.encoders import Recipe, numbers
from rlrun.nn.mlp import MLP, Activation, activation_module, require_widths
from rlrun.nn.muzero import MuZeroNetwork

BOARD = 24  # cells a side of the largest board; larger images are halved
SIDE = 8  # cells a side of a latent of images, at most


class MuZeroMaps(MuZeroNetwork):
    """MuZero's networks, whose latents are maps (Schrittwieser et al. 2020, appendix F).

    A latent has C planes over the cells of a board, or over those of an image that strides have halved. They are scaled
    to [0, 1] together. All other parts of a run see latents as rows of Z = C · H · W numbers. The dynamics read an
    action as planes: one that marks its cell if there are as many choices as cells or one more, else a constant plane
    for each of its numbers. Each kind of prediction has a convolution of 1 × 1 and dense layers.

    Args:
        spaces: of the environment; the observation is one image or board, beside an action mask.
        latent: planes of a latent, C.
        hidden: planes of each residual block of the representation.
        dynamics: planes of each block of the dynamics; or a recipe, as `MuZeroNetwork` takes it.
        prediction: widths of the dense layers of each kind of prediction; or a recipe.
        planes: of the convolution of 1 × 1.
        side: cells of the longer side of a latent, at most; None = those of a board up to 24, otherwise 8.
        options: of `MuZeroNetwork`.

    Raises:
        ConfigError: the observation is not an image or board, or a number is out of range.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        latent: int = 32,
        hidden: Sequence[int] = (32, 32),
        dynamics: Sequence[int] | Recipe = (32, 32),
        prediction: Sequence[int] | Recipe = (64,),
        planes: int = 8,
        side: int | None = None,
        activation: Activation = "relu",
        layer_norm: bool = False,
        **options: Any,
    ) -> None:
        require_whole("latent", latent, 1)
        require_whole("planes", planes, 1)
        if side is not None:
            require_whole("side", side, 1)
        require_widths("hidden", hidden)
        space = without_mask(spaces.observation)
        represent = MapRepresentation(space, latent, hidden, side=side, activation=activation)
        shape = (latent, *represent.sides)
        if not callable(dynamics):
            require_widths("dynamics", dynamics)
            dynamics = partial(MapDynamics, shape=shape, blocks=dynamics, activation=activation)
        if not callable(prediction):
            require_widths("prediction", prediction)
            dense: dict[str, Any] = {"hidden": prediction, "activation": activation, "layer_norm": layer_norm}
            prediction = partial(MapPrediction, shape=shape, planes=planes, **dense)
        own: dict[str, Any] = {"representation": represent, "dynamics": dynamics, "prediction": prediction}
        size = latent * shape[1] * shape[2]
        super().__init__(spaces, latent=size, activation=activation, layer_norm=layer_norm, **own, **options)

    def last_layers(self) -> list[nn.Linear]:
        return self.prediction.last_layers() if isinstance(self.prediction, MapPrediction) else []


class MapRepresentation(nn.Module):
    """Residual blocks over an image or a board: observations [B, …] -> rows [B, C · H · W].

    Args:
        space: of observations; one part, of two to four dimensions.
        planes: of the result, C.
        blocks: planes of each residual block.
        side: as of `MuZeroMaps`.
        activation: of all layers.

    Attributes:
        sides: H and W.

    Raises:
        ConfigError: there is no such part, or there are several.
    """

    def __init__(
        self, space: Space, planes: int, blocks: Sequence[int], *, side: int | None = None, activation: Activation
    ) -> None:
        super().__init__()
        self.space, parts = space, [leaf for _, leaf in leaves(space)]
        leaf = parts[0]
        if len(parts) != 1 or not isinstance(leaf, Box) or not 2 <= len(leaf.shape) <= 4:
            raise ConfigError(f"networks.muzero: latents as maps are of one image or board, not of {describe(space)}")
        self.leaf = leaf
        self.picture = leaf.picture or Picture(leaf.shape, guessed_rows(leaf.shape, leaf.low, leaf.high))
        sides, inputs = self.picture.sides, self.picture.channels
        most = side or (max(sides) if max(sides) <= BOARD else SIDE)
        layers: list[nn.Module] = []
        width = blocks[0] if blocks else planes
        while max(sides) > most:
            layers += [nn.Conv2d(inputs, width, 3, stride=2, padding=1), ResidualBlock(width, activation)]
            inputs, sides = width, ((sides[0] + 1) // 2, (sides[1] + 1) // 2)
        self.sides = sides
        self.layers = nn.Sequential(*layers, *_tower(inputs, blocks, planes, activation))

    def forward(self, observation: Tree) -> Tensor:
        value = leaves_of(self.space, observation)[0] if isinstance(observation, dict) else observation
        maps: Tensor = self.layers(self.picture.channels_first(numbers(self.leaf, value)))
        return maps.flatten(1)


class MapDynamics(nn.Module):
    """Residual blocks over a latent and an action: [..., inputs] -> [..., C · H · W], both as rows.

    Args:
        inputs: size of a latent and an action.
        outputs: C · H · W.
        shape: of a latent, (C, H, W).
        blocks: planes of each residual block.
        activation: of all layers.
    """

    def __init__(
        self, inputs: int, outputs: int, *, shape: tuple[int, int, int], blocks: Sequence[int], activation: Activation
    ) -> None:
        super().__init__()
        self.shape, self.latent, self.action = shape, outputs, inputs - outputs
        planes, height, width = shape
        beyond = self.action - height * width  # choices without a cell, such as a pass
        self.cells = height * width if beyond in (0, 1) else 0
        marked = 1 + beyond if self.cells else self.action
        self.layers = nn.Sequential(*_tower(planes + marked, blocks, planes, activation))

    def forward(self, row: Tensor) -> Tensor:
        planes, height, width = self.shape
        rows = row.reshape(-1, row.shape[-1])
        latent, cells, others = torch.split(rows, [self.latent, self.cells, self.action - self.cells], 1)
        constant = others[:, :, None, None].expand(-1, -1, height, width)
        marked = [cells.reshape(-1, 1, height, width)] if self.cells else []
        maps = torch.cat([latent.reshape(-1, planes, height, width), *marked, constant], 1)
        result: Tensor = self.layers(maps).reshape(*row.shape[:-1], self.latent)
        return result


class MapPrediction(nn.Module):
    """A convolution of 1 × 1 and dense layers for each kind of prediction: rows [..., inputs] -> [..., outputs].

    Args:
        inputs: numbers of a latent, C · H · W.
        outputs: numbers of all predictions.
        widths: numbers of each kind of prediction; 0 = it is not predicted.
        shape: of a latent, (C, H, W).
        planes: of each convolution.
        activation: of all layers.
        dense: other options of the dense layers, as `MLP` takes them.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        widths: Sequence[int],
        shape: tuple[int, int, int],
        planes: int,
        activation: Activation,
        **dense: Any,
    ) -> None:
        super().__init__()
        self.shape = shape
        cells = planes * shape[1] * shape[2]
        self.heads = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(shape[0], planes, 1),
                activation_module(activation),
                nn.Flatten(),
                MLP(cells, width, activation=activation, **dense),
            )
            for width in widths
            if width
        )

    def forward(self, row: Tensor) -> Tensor:
        maps = row.reshape(-1, *self.shape)
        return torch.cat([head(maps) for head in self.heads], 1).reshape(*row.shape[:-1], -1)

    def last_layers(self) -> list[nn.Linear]:
        """Return the last layer of each kind of prediction, in their order."""
        networks: list[Any] = [*self.heads]
        return [head[-1][-1] for head in networks]


def _tower(inputs: int, blocks: Sequence[int], outputs: int, activation: Activation) -> list[nn.Module]:
    """Return residual blocks of these widths, convolutions where the width changes, and a last convolution."""
    layers: list[nn.Module] = []
    for width in blocks:
        layers += [nn.Conv2d(inputs, width, 3, padding=1)] * (width != inputs) + [ResidualBlock(width, activation)]
        inputs = width
    return [*layers, activation_module(activation), nn.Conv2d(inputs, outputs, 3, padding=1)]
