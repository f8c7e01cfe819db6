"""Contrast of views: its loss by explicit logits, its target, masks of padding, and runs that learn and resume."""

import functools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rlrun.algorithms.representation.curl import Contrast, ContrastLoss, PositiveLatent
from rlrun.callbacks import CriticLoss, JointLoss
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Box, Discrete, Spaces
from rlrun.memory import RandomShift, Views
from rlrun.nn import Convolutions, Critics, Encoder, Latent

from .pixels import LEARNERS, run_of

VECTOR = Box((3,), np.full(3, -np.inf), np.full(3, np.inf))
PICTURE = Box((16, 16, 1), np.zeros((16, 16, 1)), np.full((16, 16, 1), 255), dtype="uint8")
LINEAR = functools.partial(nn.Linear, 3, 5)
CONVOLUTIONS = functools.partial(Convolutions, channels=[8], kernels=[4], strides=[2])
SGD = functools.partial(torch.optim.SGD, lr=0.05)


def critics(observation=VECTOR, *, encoder=LINEAR, **options):
    return Critics(Spaces(observation, Discrete(2)), hidden=[4], encoder=encoder, **options)


def contrast(*, projection=None, **options):
    torch.manual_seed(0)
    network = Contrast(Latent(critics(), projection=projection), **options)
    nn.init.normal_(network.weight)
    return network


@pytest.mark.parametrize("projection", [None, 4])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.1, "normalize": True}])
def test_loss_is_the_formula(projection, options):
    network = contrast(projection=projection, **options)
    target, loss = PositiveLatent(network.latent, tau=0.1), ContrastLoss(network, None)
    anchor, positive = torch.randn(2, 6, 3)
    weight = network.latent.features.encoder
    anchors, positives = (F.linear(view, weight.weight, weight.bias) for view in (anchor, positive))
    if projection is not None:
        layer = network.latent.projection
        anchors, positives = (F.linear(view, layer.weight, layer.bias) for view in (anchors, positives))
    if options:
        anchors, positives = (view / view.norm(dim=1, keepdim=True) for view in (anchors, positives))
    logits = torch.einsum("iy,yz,jz->ij", anchors, network.weight, positives) / options.get("temperature", 1.0)
    outputs, _ = target.target(positive)
    elements, _, metrics = loss.loss(anchor, **outputs)
    expected = (logits.exp().sum(1) / logits.diagonal().exp()).log()
    torch.testing.assert_close(elements, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(elements.mean(), F.cross_entropy(logits, torch.arange(6)), rtol=0.0, atol=1e-6)
    right = (logits.argmax(1) == torch.arange(6)).float()
    torch.testing.assert_close(metrics["representation/contrast_accuracy"], right)


def test_every_part_learns():
    network = contrast(projection=4)
    ContrastLoss(network, None).loss(torch.randn(6, 3), torch.randn(6, 4))[0].sum().backward()
    gradients = {name: weights.grad for name, weights in network.named_parameters()}
    assert [name for name, gradient in gradients.items() if gradient is None or not gradient.any()] == []


def test_large_scores_stay_finite():
    network = contrast(temperature=1e-4)
    elements, _, _ = ContrastLoss(network, None).loss(torch.randn(4, 3), 1e3 * torch.randn(4, 5))
    assert elements.isfinite().all()


def test_padding_is_no_negative():
    network, loss = contrast(), ContrastLoss(contrast(), None)
    anchor, positive = torch.randn(2, 3, 3), torch.randn(2, 3, 5)  # windows of three steps
    valid = torch.tensor([[True, True, True], [True, True, False]])
    elements, _, _ = loss.loss(anchor, positive, valid)
    assert elements.shape == (2, 3)
    alone, _, _ = ContrastLoss(network, None).loss(anchor.flatten(0, 1)[:5], positive.flatten(0, 1)[:5])
    torch.testing.assert_close(elements.flatten()[:5], alone)
    assert elements.isfinite().all()  # also of the padding, which has no weight


def test_target_moves_with_its_projection():
    network = contrast(projection=4)
    target = PositiveLatent(network.latent, tau=0.25)
    before = {name: value.clone() for name, value in network.latent.state_dict().items()}
    assert {*before} == {f"{part}.{name}" for part in ("features.encoder", "projection") for name in ("weight", "bias")}
    expected = before
    for _ in range(3):
        with torch.no_grad():
            for parameter in network.latent.parameters():
                parameter.add_(1.0)
        target.end_batch()
        expected = {
            name: expected[name] + 0.25 * (value - expected[name])
            for name, value in network.latent.state_dict().items()
        }
        torch.testing.assert_close(dict(target.target_network.state_dict()), expected)
    moved = target.target(torch.ones(2, 3))[0]["positive_latent"]
    features = F.linear(torch.ones(2, 3), expected["features.encoder.weight"], expected["features.encoder.bias"])
    torch.testing.assert_close(moved, F.linear(features, expected["projection.weight"], expected["projection.bias"]))
    assert not moved.requires_grad
    assert {*target.state_dict()["target"]} == {*before}


def test_one_step_trains_both_losses():
    network = critics()
    curl = Contrast(Latent(network, projection=4))
    joint = JointLoss(SGD, terms={"q_loss": CriticLoss(network, None), "curl": ContrastLoss(curl, None)})
    names = [name for name in joint.names if name.startswith("curl.")]
    assert sorted(names) == ["curl.latent.projection.bias", "curl.latent.projection.weight", "curl.weight"]
    before = {name: value.clone() for name, value in joint.network.state_dict().items()}
    values = {"observation": torch.randn(6, 3), "action": torch.randint(2, (6,)), "q_target": torch.randn(6)}
    values |= {"anchor": torch.randn(6, 3), "positive_latent": torch.randn(6, 4)}
    arguments = joint.hook("backward").arguments
    joint.backward(*[values[name] for name, argument in arguments.items() if argument.default is argument.empty])
    still = [name for name, value in joint.network.state_dict().items() if torch.equal(value, before[name])]
    assert still == []


def test_views_of_toy_images_are_told_apart():
    torch.manual_seed(0)
    encoder = functools.partial(Encoder, images=CONVOLUTIONS, features=64)
    network = Contrast(Latent(critics(PICTURE, encoder=encoder), projection=32))
    target, loss = PositiveLatent(network.latent, tau=0.05), ContrastLoss(network, functools.partial(torch.optim.Adam))
    spaces = Spaces(PICTURE, Discrete(2))
    views = Views(spaces, changes={"shift": functools.partial(RandomShift, pixels=2)})
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (256, 4, 4, 1), generator=draw, dtype=torch.uint8)
    images = images.repeat_interleave(4, 1).repeat_interleave(4, 2)  # blocks of one color
    for _ in range(200):
        batch = views({"observation": images[torch.randint(256, (32,), generator=draw)]}, None)
        outputs = target.begin_batch(batch["positive"])
        loss.backward(batch["anchor"], outputs["positive_latent"])
        target.end_batch()
    metrics = loss.metrics
    assert float(metrics["loss/"]) < 0.5 * math.log(32)
    assert float(metrics["representation/contrast_accuracy"]) > 0.5


@pytest.mark.parametrize("algorithm", LEARNERS)
def test_critics_learn_it_in_one_step(algorithm, tmp_path):
    metrics = run_of(algorithm, "curl", tmp_path)
    assert {"loss/q_loss", "loss/curl", "target_distance/curl_target"} <= {*metrics}
    assert 0.0 < metrics["loss/curl"] < 1.5 * math.log(16)


def test_joint_losses_are_known_to_others(tmp_path):
    more = ["callbacks.parameter_logs.outputs=true", "value_bias.every=20", "value_bias.episodes=2"]
    metrics = run_of("sac", "target_scale,parameter_logs,value_bias,curl", tmp_path, *more)
    assert {"target/deviation", "value_bias/mean", "output/q_loss_q_loss_layers/q50"} <= {*metrics}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Latent(critics(encoder=None)), "no layers in its encoder.*torch.nn.LazyLinear"),
        (lambda: Latent(critics(encoder=None, core="gru")), "has a state here.*remove algorithm.recurrent"),
        (lambda: Latent(critics(), projection=0), "projection"),
        (lambda: contrast(temperature=0.0), "curl.temperature: wanted a number above 0, got 0.0"),
    ],
)
def test_parts_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
