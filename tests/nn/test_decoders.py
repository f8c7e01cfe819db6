"""Decoders: shapes, gradients, and what each is named for."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Composite, Discrete
from rlrun.nn import Convolutions, Decoder, Deconvolutions, ResNetDecoder, SpatialBroadcast, UNet

SHAPES = [(1, 42, 42), (3, 13, 20), (2, 8, 7)]
DECODERS = {
    "deconvolutions": partial(Deconvolutions, 5),
    "nature": partial(Deconvolutions, 5, channels=[4, 8], kernels=[5, 3], strides=[3, 2], padding=1),
    "spatial broadcast": partial(SpatialBroadcast, 5),
    "residual": partial(ResNetDecoder, 5, channels=[8, 4], blocks=1),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", DECODERS)
def test_an_image_of_the_wanted_shape(kind, shape):
    torch.manual_seed(0)
    decoder, features = DECODERS[kind](shape), torch.randn(3, 5, requires_grad=True)
    image = decoder(features)
    assert image.shape == (3, *shape)
    image.square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in decoder.parameters())
    assert (features.grad.abs() > 0).all()


def test_deconvolutions_mirror_convolutions():
    sizes = {"channels": [4, 8], "kernels": [5, 3], "strides": [3, 2], "padding": 1}
    below = Convolutions(3, **sizes)(torch.zeros(1, 3, 13, 20))
    assert Deconvolutions(5, (3, 13, 20), **sizes)[1].unflattened_size == below.shape[1:]
    with pytest.raises(ConfigError, match=r"an image of \(4, 4\) is too small"):
        Deconvolutions(5, (3, 4, 4), channels=[4], kernels=[9], strides=[1])


def test_broadcast_features_know_their_place():
    decoder = SpatialBroadcast(1, (2, 3, 5), channels=[], kernel=1)
    with torch.no_grad():
        decoder.layers[0].weight.copy_(torch.tensor([[10.0, 1.0, 0.0], [0.0, 0.0, 1.0]])[..., None, None])
        nn.init.zeros_(decoder.layers[0].bias)
        image = decoder(torch.tensor([[2.0]]))[0]
    assert image[0, :, 0].tolist() == [19.0, 20.0, 21.0]  # 10 times the feature, and the row
    assert image[1, 0].tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]


NORMED = {"convolutions": 1, "instance_norm": True}


@pytest.mark.parametrize("options", [{}, NORMED, {**NORMED, "hidden": [7]}], ids=["plain", "normed", "dense"])
@pytest.mark.parametrize("sides", [(16, 16), (13, 10)], ids=str)
def test_a_u_net_keeps_the_sides_and_reads_both_ways(sides, options):
    torch.manual_seed(0)
    network = UNet(2, 3, channels=[3, 6, 8], shape=(2, *sides), activation="silu", **options)
    image = torch.randn(2, 2, *sides, requires_grad=True)
    result = network(image)
    assert result.shape == (2, 3, *sides)
    result[0, :, 0, 0].sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in network.parameters())
    assert (image.grad[0, :, 8, 8].abs() > 0).any()  # by way of the bottom
    assert image.grad[1].abs().sum() == 0


def test_details_pass_by_the_bottom():
    network, image = UNet(1, 1, channels=[2, 3], activation="silu"), torch.randn(1, 1, 8, 8, requires_grad=True)
    for parameter in network.down[1].parameters():
        nn.init.zeros_(parameter)
    network(image)[0, 0, 4, 4].backward()
    assert image.grad[0, 0, 4, 4] != 0


@pytest.mark.parametrize("convolutions", [1, 2, 3])
def test_sections_have_their_convolutions(convolutions):
    network = UNet(1, 1, channels=[2, 3], convolutions=convolutions)
    for section in (*network.down, *network.up):
        assert sum(isinstance(layer, nn.Conv2d) for layer in section) == convolutions


def test_dense_layers_of_a_u_net_read_everything():
    torch.manual_seed(0)
    far = {}
    for hidden in ([], [7]):
        network = UNet(1, 1, channels=[2, 2], hidden=hidden, shape=(1, 32, 32), activation="silu")
        image = torch.zeros(1, 1, 32, 32, requires_grad=True)
        network(image)[0, 0, 0, 0].backward()
        far[len(hidden)] = bool(image.grad[0, 0, 31, 31] != 0)
    assert far == {0: False, 1: True}


def test_norms_of_a_u_net_are_of_a_channel():
    torch.manual_seed(0)
    convolution, norm, _ = UNet(1, 1, channels=[4], **NORMED).down[0]
    normed = norm(convolution(torch.randn(2, 1, 9, 9)))
    torch.testing.assert_close(normed.mean((2, 3)), torch.zeros(2, 4), atol=1e-6, rtol=0)
    torch.testing.assert_close(normed.var((2, 3), correction=0), torch.ones(2, 4), atol=1e-3, rtol=0)


class Picture(nn.Module):
    """Return an image whose pixels count its channels, rows and columns."""

    def __init__(self, inputs, shape):
        super().__init__()
        self.register_buffer("pixels", torch.arange(float(np.prod(shape))).reshape(1, *shape))

    def forward(self, latent):
        return self.pixels.expand(len(latent), -1, -1, -1)


@pytest.mark.parametrize(
    ("shape", "first"), [((8, 9), [0, 1, 2]), ((8, 9, 3), [0, 72, 144]), ((3, 8, 9), [0, 1, 2])], ids=str
)
def test_decoded_images_keep_their_layout(shape, first):
    space = Box(shape, np.zeros(shape), np.full(shape, 255), "uint8")
    decoder = Decoder(space, 4, network=Picture)
    assert decoder(torch.zeros(2, 4))[1, :3].tolist() == first


def test_decoders_make_numbers_of_any_space():
    space = Composite({"kind": Discrete(3), "place": Box((2,), np.zeros(2), np.ones(2))})
    assert Decoder(space, 4, hidden=[])(torch.zeros(2, 4)).shape == (2, 5)
    with pytest.raises(ConfigError, match="it makes 7 numbers, but"):
        Decoder(space, 4, network=lambda inputs, outputs: nn.Linear(inputs, 7))


@pytest.mark.parametrize(("shape", "network"), [((1,), None), ((8, 9), None), ((8, 9), Deconvolutions)])
def test_windows_are_decoded_step_by_step(shape, network):
    decoder = Decoder(Box(shape, np.zeros(shape), np.ones(shape)), 4, network=network)
    latent = torch.randn(3, 3, 4)
    decoded = decoder(latent)
    assert decoded.shape == (3, 3, decoder.size)
    for window, steps in zip(latent, decoded, strict=True):
        torch.testing.assert_close(decoder(window), steps)
