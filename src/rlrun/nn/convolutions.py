"""Layers over images and signals: plain convolutions, and the residual network of IMPALA."""

from collections.abc import Callable, Sequence
from itertools import repeat

from torch import Tensor, nn

from rlrun.core.errors import ConfigError
from rlrun.nn.mlp import Activation, activation_module

Sides = int | Sequence[int]  # one number for all sides, or one for each
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d}


class Convolutions(nn.Sequential):
    """Convolutions, each with an activation: [B, inputs, H, W] -> [B, C, H', W'], or [B, inputs, L] -> [B, C, L'].

    Args:
        inputs: channels of the images or signals.
        channels: those of each convolution.
        kernels: sizes of the filters; a pair is height and width.
        strides: pixels from one filter to the next.
        padding: zeros around the input; one number is for all convolutions.
        activation: behind each.
        dimensions: 2 for images, 1 for signals.
        bias, layer_norm: whether each has a bias, and a norm over its channels and pixels before the activation.

    Raises:
        ConfigError: the lists have different lengths, or there are no such dimensions.
    """

    def __init__(
        self,
        inputs: int,
        *,
        channels: Sequence[int],
        kernels: Sequence[Sides],
        strides: Sequence[Sides],
        padding: int | Sequence[Sides] = 0,
        activation: Activation = "relu",
        dimensions: int = 2,
        bias: bool = True,
        layer_norm: bool = False,
    ) -> None:
        if dimensions not in CONVOLUTIONS:
            raise ConfigError(f"dimensions: wanted 2 (images) or 1 (signals), got {dimensions}")
        paddings = [*repeat(padding, len(channels))] if isinstance(padding, int) else padding
        counts = [len(channels), len(kernels), len(strides), len(paddings)]
        if len({*counts}) > 1 or not channels:
            raise ConfigError(
                "channels, kernels, strides, padding: wanted an entry for each convolution, "
                f"got {', '.join(map(str, counts))}"
            )
        layers: list[nn.Module] = []
        for count, kernel, stride, zeros in zip(channels, kernels, strides, paddings, strict=True):
            layers.append(CONVOLUTIONS[dimensions](inputs, count, kernel, stride, zeros, bias=bias))  # type: ignore[arg-type]
            layers += [nn.GroupNorm(1, count)] if layer_norm else []
            layers.append(activation_module(activation))
            inputs = count
        super().__init__(*layers)


class ResNet(nn.Sequential):
    """The residual network of IMPALA (Espeholt et al. 2018, arXiv 1802.01561, fig. 3): [B, inputs, H, W] -> [B, C, …].

    Each section halves the sides: a convolution, max pooling over 3 × 3 pixels, and residual blocks.

    Args:
        inputs: channels of the images.
        channels: those of each section.
        blocks: in a section.
        activation: before each convolution of a block, and behind the last section.
        norm: recipe of a layer behind each convolution, such as `torch.nn.BatchNorm2d`; it gets the number of channels.
    """

    def __init__(
        self,
        inputs: int,
        *,
        channels: Sequence[int] = (16, 32, 32),
        blocks: int = 2,
        activation: Activation = "relu",
        norm: Callable[[int], nn.Module] | None = None,
    ) -> None:
        layers: list[nn.Module] = []
        for count in channels:
            layers.append(nn.Conv2d(inputs, count, 3, padding=1))
            layers += [nn.MaxPool2d(3, 2, padding=1)] if norm is None else [norm(count), nn.MaxPool2d(3, 2, padding=1)]
            layers += [ResidualBlock(count, activation, norm) for _ in range(blocks)]
            inputs = count
        super().__init__(*layers, activation_module(activation))


class ResidualBlock(nn.Module):
    """x + conv(a(conv(a(x)))), with convolutions of 3 × 3 pixels, each followed by the norm if there is one."""

    def __init__(self, channels: int, activation: Activation, norm: Callable[[int], nn.Module] | None = None) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [activation_module(activation), nn.Conv2d(channels, channels, 3, padding=1)]
            layers += [] if norm is None else [norm(channels)]
        self.layers = nn.Sequential(*layers)

    def forward(self, maps: Tensor) -> Tensor:
        result: Tensor = maps + self.layers(maps.clone())  # a copy, as activations may work in place
        return result
