"""Decoders: networks from features to images, and from images to images."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlrun.core.errors import ConfigError, SpaceError, require_at_least
from rlrun.core.images import Picture, guessed_rows
from rlrun.core.spaces import Box, Space, describe
from rlrun.nn.convolutions import ResidualBlock
from rlrun.nn.encoders import Recipe, from_recipe, wants
from rlrun.nn.mlp import MLP, Activation, Initializer, activation_module, outputs_of

Shape = Sequence[int]  # of an image: channels, height, width


class Decoder(nn.Module):
    """From a latent [..., latent] to the numbers of an observation [..., N], in the order of `flatten`.

    Args:
        space: of the observation.
        latent: size of the latent.
        hidden, activation, init: of the dense layers, as `MLP` takes them.
        network: recipe of any module in place of these, such as `Deconvolutions`. It gets `inputs`, `outputs` and an
            image's `shape` (channels first), if it takes these.

    Raises:
        ConfigError: the module has another number of outputs.
        SpaceError: it makes images, and the observation has another shape.
    """

    def __init__(
        self,
        space: Space,
        latent: int,
        *,
        hidden: Sequence[int] = (256,),
        activation: Activation = "relu",
        init: str | Initializer = "default",
        network: Recipe | None = None,
    ) -> None:
        super().__init__()
        self.latent, self.size = latent, space.size
        self.picture = array_of(space)
        if network is None:
            self.layers: nn.Module = MLP(latent, space.size, hidden=hidden, activation=activation, init=init)
            return
        shape = () if self.picture is None else (self.picture.channels, *self.picture.sides)
        if not shape and wants(network, "shape"):
            name = getattr(getattr(network, "func", network), "__name__", "module")
            seen = describe(space)
            raise SpaceError(f"network: a {name} makes images, and the observation is {seen}; null = dense layers")
        self.layers = from_recipe(network, inputs=latent, outputs=space.size, shape=shape)
        outputs = outputs_of(self.layers, torch.zeros(2, latent), place="decoder")
        if outputs != space.size:
            raise ConfigError(f"decoder: it makes {outputs} numbers, but {describe(space)} has {space.size}")

    def forward(self, latent: Tensor) -> Tensor:
        numbers: Tensor = self.layers(latent.reshape(-1, self.latent))
        restored = self.picture is not None and numbers.dim() == 4
        rows = self.picture.restored(numbers) if restored else numbers  # type: ignore[union-attr]
        return rows.reshape(*latent.shape[:-1], self.size)


def array_of(space: Space) -> Picture | None:
    """Return the image axes of an array of two or more dimensions; one of two dimensions has one channel."""
    if not isinstance(space, Box) or len(space.shape) < 2:
        return None
    return space.picture or Picture(space.shape, max(0, guessed_rows(space.shape, space.low, space.high)))


class Deconvolutions(nn.Sequential):
    """Transposed convolutions behind a dense layer: [B, inputs] -> [B, *shape], the mirror of `Convolutions`.

    Args:
        inputs: features.
        shape: of the image.
        channels, kernels, strides, padding: of the convolutions that this inverts, from the image on.
        activation: between layers; none follows the last.

    Raises:
        ConfigError: the image is too small.
    """

    def __init__(
        self,
        inputs: int,
        shape: Shape,
        *,
        channels: Sequence[int] = (32, 64),
        kernels: Sequence[int] = (4, 4),
        strides: Sequence[int] = (2, 2),
        padding: int = 1,
        activation: Activation = "relu",
    ) -> None:
        sides = [tuple(shape[1:])]
        for kernel, stride in zip(kernels, strides, strict=True):
            sides.append(tuple((side + 2 * padding - kernel) // stride + 1 for side in sides[-1]))
        if min(sides[-1]) < 1:
            raise ConfigError(f"an image of {sides[0]} is too small for these layers: {sides[1:]} remain")
        counts = [shape[0], *channels]
        first = (counts[-1], *sides[-1])
        layers: list[nn.Module] = [nn.Linear(inputs, first[0] * first[1] * first[2]), nn.Unflatten(1, first)]
        for at in reversed(range(len(channels))):
            reached = [(side - 1) * strides[at] - 2 * padding + kernels[at] for side in sides[at + 1]]
            missing = (sides[at][0] - reached[0], sides[at][1] - reached[1])
            convolution = nn.ConvTranspose2d(counts[at + 1], counts[at], kernels[at], strides[at], padding, missing)
            layers += [activation_module(activation), convolution]
        super().__init__(*layers)


class SpatialBroadcast(nn.Module):
    """Convolutions over features repeated at every pixel, with coordinates: [B, inputs] -> [B, *shape] (1901.07017).

    Args:
        inputs: features.
        shape: of the image.
        channels: of each convolution; a last one to the image follows.
        kernel: pixels a side of the filters, an odd number.
        activation: behind each but the last.
    """

    coordinates: Tensor

    def __init__(
        self,
        inputs: int,
        shape: Shape,
        *,
        channels: Sequence[int] = (32, 32),
        kernel: int = 3,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        rows, columns = (torch.linspace(-1.0, 1.0, side) for side in shape[1:])
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"))
        self.register_buffer("coordinates", grid, persistent=False)  # [2, H, W]
        layers: list[nn.Module] = []
        below = inputs + 2
        for count in channels:
            layers += [nn.Conv2d(below, count, kernel, padding=kernel // 2), activation_module(activation)]
            below = count
        self.layers = nn.Sequential(*layers, nn.Conv2d(below, shape[0], kernel, padding=kernel // 2))

    def forward(self, features: Tensor) -> Tensor:
        height, width = self.coordinates.shape[1:]
        tiled = features[:, :, None, None].expand(-1, -1, height, width)
        image: Tensor = self.layers(torch.cat((tiled, self.coordinates.expand(features.shape[0], -1, -1, -1)), 1))
        return image


class ResNetDecoder(nn.Module):
    """Residual blocks with upsampling before each section: [B, inputs] -> [B, *shape], the mirror of `ResNet`.

    Args:
        inputs: features.
        shape: of the image.
        channels: of each section, from the features on.
        blocks: in a section.
        activation: before each convolution.
    """

    def __init__(
        self,
        inputs: int,
        shape: Shape,
        *,
        channels: Sequence[int] = (32, 32, 16),
        blocks: int = 2,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.height, self.width = shape[1:]
        step = 2 ** len(channels)
        first = (channels[0], -(-self.height // step), -(-self.width // step))
        layers: list[nn.Module] = [nn.Linear(inputs, first[0] * first[1] * first[2]), nn.Unflatten(1, first)]
        for below, count in zip((channels[0], *channels), channels, strict=False):
            layers += [nn.Upsample(scale_factor=2.0), nn.Conv2d(below, count, 3, padding=1)]
            layers += [ResidualBlock(count, activation) for _ in range(blocks)]
        self.layers = nn.Sequential(
            *layers, activation_module(activation), nn.Conv2d(channels[-1], shape[0], 3, padding=1)
        )

    def forward(self, features: Tensor) -> Tensor:
        image: Tensor = self.layers(features)[..., : self.height, : self.width]
        return image


class UNet(nn.Module):
    """A U-Net from image to image (Ronneberger et al. 2015, arXiv 1505.04597): [B, inputs, H, W] -> [B, outputs, H, W].

    Sections on the way down halve the sides. Each section on the way up also reads its counterpart on the way down.

    Args:
        inputs, outputs: channels.
        channels: of each section on the way down; the last one is the bottom.
        activation: behind each convolution but the last.
        convolutions: in a section.
        instance_norm: whether each is followed by a norm over the pixels of a channel.
        hidden: widths of dense layers over all numbers of the bottom (Burgess et al. 2019, arXiv 1901.11390), which fix
            the sides. Empty = no dense layers.
        shape: of the image, (C, H, W); required by dense layers.

    Raises:
        ConfigError: there are dense layers and no shape, or no convolutions or channels.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        channels: Sequence[int] = (16, 32, 64),
        activation: Activation = "relu",
        convolutions: int = 2,
        instance_norm: bool = False,
        hidden: Sequence[int] = (),
        shape: Shape = (),
    ) -> None:
        super().__init__()
        require_at_least("convolutions", convolutions, 1)
        require_at_least("the number of channels", len(channels), 1)
        if hidden and len(shape) != 3:
            raise ConfigError(f"hidden: dense layers want the shape of the image (C, H, W), got {tuple(shape)}")

        def section(below: int, count: int) -> nn.Module:
            layers: list[nn.Module] = []
            for width in (below, *[count] * (convolutions - 1)):
                layers.append(nn.Conv2d(width, count, 3, padding=1, bias=not instance_norm))
                layers += [nn.InstanceNorm2d(count, affine=True)] if instance_norm else []
                layers.append(activation_module(activation))
            return nn.Sequential(*layers)

        self.down = nn.ModuleList(map(section, (inputs, *channels), channels))
        backwards = [*zip(channels[:0:-1], channels[-2::-1], strict=True)]
        self.up = nn.ModuleList(section(below + count, count) for below, count in backwards)
        self.last = nn.Conv2d(channels[0], outputs, 1)
        self.bottom: nn.Module = nn.Identity()
        if hidden:
            step = 2 ** (len(channels) - 1)
            bottom = (channels[-1], -(-shape[1] // step), -(-shape[2] // step))
            size = bottom[0] * bottom[1] * bottom[2]
            dense = MLP(size, size, hidden=hidden, activation=activation, output_activation=activation)
            self.bottom = nn.Sequential(nn.Flatten(), dense, nn.Unflatten(1, bottom))

    def forward(self, image: Tensor) -> Tensor:
        passed: list[Tensor] = []
        for number, section in enumerate(self.down):
            image = section(image if number == 0 else nn.functional.max_pool2d(image, 2, ceil_mode=True))
            passed.append(image)
        image = self.bottom(image)
        for section, beside in zip(self.up, passed[-2::-1], strict=True):
            image = nn.functional.interpolate(image, size=beside.shape[2:])
            image = section(torch.cat((image, beside), 1))
        return self.last(image)  # type: ignore[no-any-return]
