"""From an observation tree to features: encoders of any space, and the layers below the heads of a network."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Discrete, Leaf, Space, Spaces, leaves, leaves_of, tree_of, without_mask
from rlrun.core.typing import Tree
from rlrun.nn.actions import ActionCodec
from rlrun.nn.fast_linear import Linear
from rlrun.nn.mlp import MLP, Activation, Initializer, activation_module, dense, initializer
from rlrun.nn.precision import LARGE, products
from rlrun.nn.recurrent import Core, Kind
from rlrun.ops.distributions import one_hot

# kernel size, stride, padding and channels of each layer
NATURE = ((8, 4, 0, 32), (4, 2, 0, 64), (3, 1, 0, 64))  # Mnih et al. 2015; needs 36 pixels a side
SMALL = ((3, 1, 1, 32), (3, 2, 1, 64))


def flatten(space: Space, tree: Tree) -> Tensor:
    """Code an observation tree as numbers: [B, …] leaves -> [B, space.size].

    Choices become one-hot, pixels lie in [0, 1]; several leading dimensions are kept.
    """
    parts = [vector(leaf, value) for (_, leaf), value in zip(leaves(space), leaves_of(space, tree), strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def vector(leaf: Leaf, value: Tensor) -> Tensor:
    """Code one leaf as numbers, choices counted from 0 whatever their `start`: [..., *shape] -> [..., size]."""
    lead = value.shape[: value.dim() - len(leaf.shape)]
    if isinstance(leaf, Box):
        flat = value if len(leaf.shape) == 1 else value.reshape(*lead, leaf.size)
        return flat.float() * (1.0 / 255.0) if value.dtype == torch.uint8 else flat.float()
    if isinstance(leaf, Discrete):
        return one_hot(value.unsqueeze(-1), leaf.choices)
    return one_hot(value.reshape(*lead, len(leaf.choices)), leaf.choices)


class Encoder(nn.Module):
    """Turn observations into [B, size] or [B, T, size].

    A plain vector is passed through as it is, images go through a stack of convolutions, other
    leaves are flattened; all leaves are put side by side. `size` is the width of the result.
    """

    def __init__(
        self, spaces: Spaces | Space, *, activation: Activation = "relu", init: str | Initializer = "default"
    ) -> None:
        super().__init__()
        self.space = without_mask(spaces.observation if isinstance(spaces, Spaces) else spaces)
        self.parts = [leaf for _, leaf in leaves(self.space)]
        self.images = nn.ModuleList(
            ImageEncoder(leaf, activation=activation, init=init)
            if isinstance(leaf, Box) and leaf.image
            else nn.Identity()
            for leaf in self.parts
        )
        sizes = [part.size for part in self.parts]
        self.size = sum(
            image.size if isinstance(image, ImageEncoder) else size
            for image, size in zip(self.images, sizes, strict=True)
        )
        # whether the observation already is the row of numbers
        self.plain = isinstance(self.space, Box) and len(self.space.shape) == 1 and self.space.dtype == "float32"

    def forward(self, observation: Tree) -> Tensor:
        if self.plain:
            return observation  # type: ignore[no-any-return]
        parts = [
            image(value) if isinstance(image, ImageEncoder) else vector(leaf, value)
            for leaf, image, value in zip(self.parts, self.images, leaves_of(self.space, observation), strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def outputs_of(module: nn.Module, *inputs: Tree) -> int:
    """Return how many numbers a module makes of each row of inputs; lazy layers take their sizes from these.

    Raises:
        ConfigError: it is no module.
    """
    if not isinstance(module, nn.Module):
        example = "{_target_: torch.nn.LazyLinear, out_features: 32}"
        raise ConfigError(f"wanted a module of torch, such as {example}, got {module!r}")
    training = module.training
    with torch.no_grad():
        size: int = module.eval()(*inputs).shape[-1]
    module.train(training)
    return size


def zeros(space: Space, count: int = 2) -> Tree:
    """Return rows of zeros of a space, tensors [count, …]."""
    rows = [torch.zeros(count, *leaf.shape, dtype=getattr(torch, leaf.dtype)) for _, leaf in leaves(space)]
    return tree_of(space, rows)


class EncodedMLP(nn.Module):
    """Dense layers behind an encoder: from observations to [B, outputs].

    Args:
        spaces: of the environment.
        outputs: numbers for each observation.
        encoder: any module from observations to features [B, F]; None = an `Encoder`.
        hidden, activation, layer_norm, init, output_gain: of the layers, as `MLP` takes them.
    """

    def __init__(
        self,
        spaces: Spaces | Space,
        outputs: int = 1,
        *,
        hidden: Sequence[int] = (256, 256),
        activation: Activation = "relu",
        layer_norm: bool = False,
        init: str | Initializer = "default",
        output_gain: float | None = None,
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__()
        space = spaces.observation if isinstance(spaces, Spaces) else spaces
        own: Any = encoder
        self.encoder: Any = own or Encoder(space, activation=activation, init=init)
        self.layers = MLP(
            outputs_of(own, zeros(space)) if own else self.encoder.size,
            outputs,
            hidden=hidden,
            activation=activation,
            layer_norm=layer_norm,
            init=init,
            output_gain=output_gain,
        )


class ImageEncoder(nn.Module):
    """Convolutions and one dense layer over pixels [..., H, W], [..., H, W, C] or [..., C, H, W].

    Which of the three it is follows from the shape: the channels are the smallest dimension.
    """

    def __init__(self, leaf: Box, *, activation: Activation = "relu", init: str | Initializer = "default") -> None:
        super().__init__()
        self.shape = leaf.shape
        self.channels_last = len(leaf.shape) == 3 and leaf.shape[2] == min(leaf.shape)
        channels, height, width = self._picture(torch.zeros(leaf.shape)).shape[-3:]
        large = min(height, width) >= 36
        self.convolutions = nn.Sequential(
            *_convolutions(channels, NATURE if large else SMALL, activation), nn.Flatten()
        )
        wide = self.convolutions(torch.zeros(1, channels, height, width)).shape[1]
        self.size = 512 if large else 128
        self.dense = nn.Sequential(Linear(wide, self.size), activation_module(activation))
        self.apply(initializer(init))

    def _picture(self, pixels: Tensor) -> Tensor:
        """Return pixels as [B, C, H, W]."""
        flat = pixels.reshape(-1, *self.shape)
        if len(self.shape) == 2:
            return flat.unsqueeze(1)
        return flat.movedim(-1, 1) if self.channels_last else flat

    def forward(self, pixels: Tensor) -> Tensor:
        picture = self._picture(pixels)
        if pixels.dtype == torch.uint8:  # else they are scaled already
            picture = picture.float() * (1.0 / 255.0)
        lead = pixels.shape[: pixels.dim() - len(self.shape)]
        with products(picture, LARGE):  # a filter is applied at many places
            features = self.dense(self.convolutions(picture))
        return features.to(picture.dtype).reshape(*lead, self.size)  # type: ignore[no-any-return]


def _convolutions(channels: int, stack: Sequence[tuple[int, int, int, int]], activation: Activation) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for kernel, stride, padding, outputs in stack:
        layers += [nn.Conv2d(channels, outputs, kernel, stride, padding), activation_module(activation)]
        channels = outputs
    return layers


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
        self.core = None if core is None else Core(core, self.size, core_size)
        self.state_size = 0
        if self.core is not None:
            self.size, self.state_size = self.core.size, self.core.state_size

    def forward(self, observation: Tree, state: Tensor | None = None, episode_end: Tensor | None = None) -> Tensor:
        """Return features; state [B, S] and episode_end [B, T] are those of `Core`, ignored without one."""
        features = self._features(observation)
        return features if self.core is None else self.core(features, state, episode_end)

    def step(self, observation: Tree, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [B, size] of single steps and the state [B, S] after them."""
        features = self._features(observation)
        return (features, state) if self.core is None else self.core.step(features, state)

    def _features(self, observation: Tree) -> Tensor:
        features: Tensor = self.layers(observation if self.encoder.plain else self.encoder(observation))
        return features


class InverseModel(nn.Module):
    """Features of observations, from which the action between two of them is predicted.

    Args:
        spaces: of the environment.
        hidden: widths of the features' layers.
        model: widths of the layers of each model.
        activation, init: of the layers, as `MLP` takes them.
        features: any module from observations to features [..., F], in place of `hidden` layers.
        inverse: any module from two rows of features [..., 2 F] to a prediction of the action.

    Raises:
        ConfigError: a module makes another number of outputs than it has to.

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
        features: nn.Module | None = None,
        inverse: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.codec = ActionCodec(spaces)
        if features is None:
            self.features: Any = Trunk(spaces, hidden=hidden, activation=activation, init=init)
            self.size: int = self.features.size
        else:
            self.features, self.size = features, outputs_of(features, zeros(spaces.observation))
        self._build = partial(MLP, hidden=model, activation=activation, init=init)
        self.tell = self.model(2 * self.size, self.codec.continuous + self.codec.width, inverse, output_gain=0.0)

    def model(self, inputs: int, outputs: int, own: nn.Module | None, **options: Any) -> nn.Module:
        """Return a model of this size, one's own if there is one.

        Raises:
            ConfigError: it makes another number of outputs.
        """
        if own is None:
            return self._build(inputs, outputs, **options)
        if (size := outputs_of(own, torch.zeros(2, inputs))) != outputs:
            raise ConfigError(f"a {type(own).__name__} makes {size} numbers of {inputs}; wanted {outputs}")
        return own

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
