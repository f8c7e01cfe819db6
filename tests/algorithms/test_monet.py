"""MONet: masks that divide pixels, the likelihood of their mixture, divergences, and agreement with true segments."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from torch import distributions as D
from torch import nn

from rlrun.algorithms.density.monet import ImageError, MONet, MONetLoss, ari, used
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box
from rlrun.nn import SpatialBroadcast, UNet
from rlrun.ops import adjusted_rand_index


def space(*shape):
    return Box(shape, np.zeros(shape), np.full(shape, 255), "uint8")


SMALL = {"attention": functools.partial(UNet, channels=[3, 5], convolutions=1, instance_norm=True), "hidden": [8]}
SMALL["decoder"] = functools.partial(SpatialBroadcast, channels=[4])


def network(shape=(8, 9, 3), **options):
    torch.manual_seed(0)
    return MONet({"observation": space(*shape)}, **{"latent": 2, **SMALL, **options})


def images(*shape, rows=2):
    return torch.randint(0, 256, (rows, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("recurrent", [True, False], ids=["recurrent", "at once"])
@pytest.mark.parametrize("shape", [(8, 9), (8, 9, 3), (3, 8, 9)], ids=str)
def test_masks_divide_each_pixel(shape, recurrent):
    monet = network(shape, slots=4, recurrent_attention=recurrent)
    observation = images(*shape)
    image = monet.pixels(observation)
    log_masks = monet.log_masks(image)
    assert log_masks.shape == (2, 4, 8, 9)
    torch.testing.assert_close(log_masks.exp().sum(1), torch.ones(2, 8, 9))
    assert log_masks.exp().std() > 1e-3
    output = monet(observation)
    torch.testing.assert_close(output["masks"], log_masks.exp())
    assert output["image"].shape == (2, math.prod(shape))


class Halves(nn.Module):
    """Logits of a share 1 / 4 for the slot, whatever the image; scopes that it saw are kept."""

    def __init__(self, inputs):
        super().__init__()
        self.inputs, self.scopes = inputs, []

    def forward(self, image):
        assert image.shape[1] == self.inputs
        self.scopes.append(image[:, -1])
        return torch.tensor([1.0, 3.0]).log()[:, None, None].expand(len(image), 2, *image.shape[2:]).to(image.dtype)


def test_a_slot_takes_of_what_is_left():
    monet = network(attention=Halves)
    monet.attention.scopes.clear()
    masks = monet(images(8, 9, 3))["masks"]
    assert [scope.unique().item() for scope in monet.attention.scopes] == pytest.approx([1.0, 0.75])
    assert masks[0, :, 2, 3].tolist() == pytest.approx([0.25, 0.75 * 0.25, 0.75 * 0.75])


@pytest.mark.parametrize("shape", [(8, 9), (8, 9, 3), (3, 8, 9)], ids=str)
def test_pixels_keep_their_place(shape):
    monet, observation = network(shape), images(*shape)
    image = monet.pixels(observation)
    row, column, channel = 5, 7, 0 if len(shape) == 2 else 2
    place = {(8, 9): (row, column), (8, 9, 3): (row, column, channel), (3, 8, 9): (channel, row, column)}[shape]
    assert image[1, channel, row, column].item() == pytest.approx(observation[1][place].item() / 255.0)
    monet.decode = lambda latents: (image.unsqueeze(1).expand(-1, 3, -1, -1, -1), None)
    torch.testing.assert_close(ImageError(monet.space)(monet(observation), observation), torch.zeros(2))


def test_likelihood_is_that_of_a_mixture():
    monet = network(deviation=0.3, background_deviation=0.2)
    draw = torch.Generator().manual_seed(2)
    image, pictures = (
        torch.rand(2, 3, 8, 9, generator=draw).double(),
        torch.rand(2, 3, 3, 8, 9, generator=draw).double(),
    )
    log_masks = torch.randn(2, 3, 8, 9, generator=draw).double().log_softmax(1)
    expected = torch.zeros(2, dtype=torch.float64)
    for row, y, x in itertools.product(range(2), range(8), range(9)):
        density = sum(
            math.exp(log_masks[row, slot, y, x])
            * math.prod(
                math.exp(-0.5 * ((image[row, c, y, x] - pictures[row, slot, c, y, x]) / deviation) ** 2)
                / (deviation * math.sqrt(2.0 * math.pi))
                for c in range(3)
            )
            for slot, deviation in enumerate([0.2, 0.3, 0.3])
        )
        expected[row] += math.log(density)
    monet.deviation = torch.tensor([0.2, 0.3, 0.3], dtype=torch.float64)
    torch.testing.assert_close(monet.log_likelihood(image, log_masks, pictures), expected, rtol=1e-12, atol=0)
    assert MONet({"observation": space(8, 9, 3)}, **SMALL).deviation.tolist() == pytest.approx([0.09, 0.11, 0.11])


def test_the_loss_weighs_three_terms():
    monet, observation = network(), images(8, 9, 3)
    torch.manual_seed(3)
    loss, _, metrics = MONetLoss(monet, None, beta=0.25, gamma=2.0).loss(observation)
    image = monet.pixels(observation)
    log_masks = monet.log_masks(image)
    mean, log_deviation = monet.posterior(image, log_masks)
    posterior = D.Normal(mean, log_deviation.exp())
    torch.manual_seed(3)
    pictures, decoded = monet.decode(posterior.mean + posterior.stddev * torch.randn_like(mean))
    divergence = D.kl_divergence(posterior, D.Normal(0.0, 1.0)).sum((1, 2))
    pixels = (D.Categorical(logits=part.movedim(1, -1)) for part in (log_masks, decoded))
    of_masks = D.kl_divergence(*pixels).sum((1, 2))
    torch.testing.assert_close(metrics["monet/divergence"], divergence)
    torch.testing.assert_close(metrics["monet/masks"], of_masks)
    reconstruction = -monet.log_likelihood(image, log_masks, pictures)
    torch.testing.assert_close(loss, reconstruction + 0.25 * divergence + 2.0 * of_masks)


def test_deviations_are_roots_of_variances():
    monet = network()
    image = monet.pixels(images(8, 9, 3))
    log_masks = monet.log_masks(image)
    seen = torch.cat((image, log_masks[:, 1:2].exp()), 1)
    mean, log_variance = monet.encoder(seen).chunk(2, -1)
    posterior = monet.posterior(image, log_masks)
    torch.testing.assert_close(posterior[0][:, 1], mean)
    torch.testing.assert_close(posterior[1][:, 1].exp().square(), log_variance.exp())


def test_every_part_learns():
    monet = network()
    MONetLoss(monet, None).loss(images(8, 9, 3))[0].sum().backward()
    silent = [name for name, weights in monet.named_parameters() if not weights.grad.abs().sum() > 0]
    assert silent == []


LABELS = [  # clusters, true ones, and their agreement
    ([0, 0, 1, 1], [1, 1, 2, 2], 1.0),
    ([0, 0, 1, 2], [0, 0, 1, 1], 4 / 7),
    ([0, 1, 0, 1], [0, 0, 1, 1], -0.5),
    ([0, 0, 0, 0], [0, 0, 1, 1], 0.0),
    ([3, 3, 3, 3], [1, 1, 1, 1], 1.0),
    ([0, 1, 2, 3], [1, 1, 1, 1], 0.0),
]


@pytest.mark.parametrize(("cluster", "truth", "agreement"), LABELS)
def test_agreement_of_known_clusters(cluster, truth, agreement):
    cluster, truth = torch.tensor([cluster]), torch.tensor([truth])
    assert adjusted_rand_index(cluster, truth, truth >= 0).tolist() == pytest.approx([agreement])


def test_agreement_equals_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    draw = torch.Generator().manual_seed(4)
    cluster = torch.randint(0, 4, (20, 50), generator=draw)
    truth = torch.where(
        torch.rand(20, 50, generator=draw) < 0.7, cluster % 3, torch.randint(0, 3, (20, 50), generator=draw)
    )
    counted = torch.rand(20, 50, generator=draw) < torch.linspace(0.0, 1.0, 20).unsqueeze(-1)
    wanted = [
        metrics.adjusted_rand_score(true[flags], guess[flags])
        for guess, true, flags in zip(cluster, truth, counted, strict=True)
    ]
    assert adjusted_rand_index(cluster, truth, counted).tolist() == pytest.approx(wanted, abs=1e-12)


def test_the_background_does_not_count():
    segmentation = torch.tensor([[[0, 0, 1], [1, 2, 2]]], dtype=torch.uint8)
    slots = torch.tensor([[[0, 1, 2], [2, 0, 0]]])  # the background is in two slots, one of them that of an object
    masks = nn.functional.one_hot(slots, 3).movedim(-1, 1).float()
    assert ari({"masks": masks}, segmentation).tolist() == [1.0]
    assert ari({"masks": masks[:, [0]]}, segmentation).tolist() == [0.0]


@pytest.mark.parametrize(
    ("segmentation", "got"),
    [
        (torch.zeros(1, 1, 3, dtype=torch.uint8), r"got torch.uint8 \[1, 3\]; .*metrics.ari=null omits it"),
        (torch.zeros(1, 2, 3), r"got torch.float32 \[2, 3\]"),
    ],
    ids=["sides", "fractions"],
)
def test_segments_that_are_none(segmentation, got):
    with pytest.raises(ConfigError, match=rf"segmentation: wanted whole numbers \[2, 3\] of an image, {got}"):
        ari({"masks": torch.ones(1, 2, 2, 3)}, segmentation)


def test_slots_with_pixels_are_used():
    masks = torch.zeros(2, 3, 10, 10)
    masks[:, 0] = 1.0
    masks[0, :, 0, 0] = torch.tensor([0.0, 1.0, 0.0])  # one pixel of 200
    assert used(masks).item() == 1.0
    masks[1, :, 0, 0] = torch.tensor([0.0, 1.0, 0.0])
    assert used(masks).item() == 2.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": (12,)}, "MONet wants images, 8 pixels a side; it is"),
        ({"slots": 1}, "slots must be at least 2"),
        ({"latent": 0}, "latent must be at least 1"),
        ({"deviation": 0.0}, "deviation: wanted a number above 0"),
        ({"background_deviation": math.nan}, "background_deviation: wanted a number above 0"),
        ({"attention": functools.partial(UNet, outputs=3)}, r"attention: 216 logits .* wanted are 2 × 8 × 9"),
        ({"attention": functools.partial(UNet, hidden=[4], shape=())}, "hidden: dense layers want the shape"),
        ({"attention": functools.partial(UNet, convolutions=0)}, "convolutions must be at least 1"),
        ({"attention": functools.partial(UNet, channels=[])}, "the number of channels must be at least 1, not 0"),
        ({"decoder": functools.partial(SpatialBroadcast, shape=(3, 8, 9))}, "decoder: it makes 216 numbers"),
    ],
)
def test_networks_that_cannot_be(options, message):
    with pytest.raises(ConfigError, match=message):
        network(**options)


@pytest.mark.parametrize("name", ["beta", "gamma"])
def test_negative_weights_are_refused(name):
    with pytest.raises(ConfigError, match=f"{name} must be at least 0"):
        MONetLoss(network(), None, **{name: -0.1})


def test_data_without_images_are_refused():
    with pytest.raises(ConfigError, match="there is none"):
        MONet({"label": space(8, 9)})


def test_the_bias_of_all_masks_has_no_gradient():
    """It changes no mask, so any gradient would be rounding errors, which Adam follows."""
    part = network()
    MONetLoss(part, None).loss(images(8, 9, 3))[0].sum().backward()
    (gradient,) = [value.grad for name, value in part.decoder.named_parameters() if "parametrizations" in name]
    assert gradient.shape == (4,)
    assert gradient[-1] == 0.0
    assert (gradient[:-1] != 0.0).all()
