"""Prediction of later latents: its loss by hand, its target, masks at the end of episodes, and runs."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rlrun.algorithms.representation.spr import LaterLatent, Prediction, PredictionLoss
from rlrun.core.spaces import Box, Discrete, Spaces
from rlrun.nn import Critics, Latent

from .pixels import LEARNERS, run_of

PLANE = Box((2,), np.full(2, -np.inf), np.full(2, np.inf))


def prediction(*, projection=None):
    """Return a network whose features are the observation, and whose model adds (action 0: 1, action 1: -1) to each."""
    torch.manual_seed(0)
    critics = Critics(Spaces(PLANE, Discrete(2)), hidden=[4], encoder=functools.partial(nn.Linear, 2, 2))
    network = Prediction(Latent(critics, projection=projection), action=Discrete(2), hidden=[])
    with torch.no_grad():
        for layer in (critics.encoder, network.predictor):
            layer.weight.copy_(torch.eye(*layer.weight.shape))
            layer.bias.zero_()
        network.transition[-1].weight.copy_(torch.tensor([[1.0, 0.0, 1.0, -1.0], [0.0, 1.0, 1.0, -1.0]]))
        network.transition[-1].bias.zero_()
    return network


ROWS = {
    "origin": torch.tensor([[2.0, 0.0], [0.0, 1.0]]),
    "later_action": torch.tensor([[0, 1, 1], [1, 0, 0]]),
    "later_valid": torch.tensor([[True, True, False], [True, False, False]]),
}
LATER = torch.tensor([[[1.0, 3.0], [0.0, 5.0], [9.0, 9.0]], [[-2.0, 0.0], [9.0, 9.0], [9.0, 9.0]]])


def test_loss_is_known_by_hand():
    loss = PredictionLoss(prediction(), None)
    elements, _, metrics = loss.loss(**ROWS, later_latent=LATER)
    # row 0: (3, 1) against (1, 3), then (2, 0) against (0, 5); row 1: (-1, 0) against (-2, 0)
    torch.testing.assert_close(elements, torch.tensor([(1.0 - 0.6) + 1.0, 0.0]), rtol=0.0, atol=1e-6)
    similarity = metrics["representation/prediction_similarity"]
    torch.testing.assert_close(similarity, torch.tensor((0.6 + 0.0 + 1.0) / 3), rtol=0.0, atol=1e-6)


def test_features_are_projected_and_then_predicted():
    network = prediction(projection=3)
    for layer in (network.latent.projection, network.predictor):
        nn.init.normal_(layer.bias)
    nn.init.normal_(network.predictor.weight)
    features = torch.tensor([[[3.0, 1.0], [2.0, 0.0], [1.0, -1.0]], [[-1.0, 0.0], [0.0, 1.0], [1.0, 2.0]]])
    latent = F.linear(features, network.latent.projection.weight, network.latent.projection.bias)
    expected = F.linear(latent, network.predictor.weight, network.predictor.bias)
    torch.testing.assert_close(network(ROWS["origin"], ROWS["later_action"]), expected)


def test_every_part_learns():
    network = prediction(projection=3)
    PredictionLoss(network, None).loss(**ROWS, later_latent=torch.randn(2, 3, 3))[0].sum().backward()
    gradients = {name: weights.grad for name, weights in network.named_parameters()}
    assert [name for name, gradient in gradients.items() if gradient is None or not gradient.any()] == []


def test_steps_beyond_the_end_teach_nothing():
    gradients = []
    for beyond in (-7.0, 50.0):
        network, later = prediction(), LATER.clone()
        later[~ROWS["later_valid"]] = beyond
        later.requires_grad_()
        action = ROWS["later_action"].masked_fill(~ROWS["later_valid"], int(beyond > 0))
        loss = PredictionLoss(network, None).loss(**ROWS | {"later_action": action}, later_latent=later)[0].sum()
        loss.backward()
        gradients.append([parameter.grad for parameter in network.parameters()])
        assert later.grad[~ROWS["later_valid"]].eq(0).all()
    torch.testing.assert_close(*gradients)


def test_target_moves_with_its_projection():
    network = prediction(projection=3)
    target = LaterLatent(network.latent, tau=0.25)
    before = {name: value.clone() for name, value in network.latent.state_dict().items()}
    with torch.no_grad():
        for parameter in network.latent.parameters():
            parameter.add_(1.0)
    target.end_batch()
    expected = {name: value + 0.25 for name, value in before.items()}
    torch.testing.assert_close(dict(target.target_network.state_dict()), expected)
    latent = target.target(LATER)[0]["later_latent"]
    features = F.linear(LATER, expected["features.encoder.weight"], expected["features.encoder.bias"])
    torch.testing.assert_close(latent, F.linear(features, expected["projection.weight"], expected["projection.bias"]))
    assert not latent.requires_grad


def test_actions_are_needed_and_learned():
    torch.manual_seed(0)
    critics = Critics(Spaces(PLANE, Discrete(2)), hidden=[4], encoder=functools.partial(nn.Linear, 2, 16))
    network = Prediction(Latent(critics, projection=8), action=Discrete(2), hidden=[32])
    target = LaterLatent(network.latent, tau=0.05)
    loss = PredictionLoss(network, functools.partial(torch.optim.Adam, lr=3e-3))
    turns = torch.stack((torch.tensor([[0.0, -1.0], [1.0, 0.0]]), torch.tensor([[0.0, 1.0], [-1.0, 0.0]])))

    def batch():
        """Return observations that each action turns by a quarter, left or right."""
        observations, action = [torch.randn(64, 2)], torch.randint(2, (64, 3))
        for step in range(3):
            observations.append(torch.einsum("bij,bj->bi", turns[action[:, step]], observations[-1]))
        later = torch.stack(observations[1:], 1)
        return observations[0], action, target.begin_batch(later)["later_latent"], torch.ones(64, 3, dtype=torch.bool)

    for _ in range(200):
        loss.backward(*batch())
        target.end_batch()
    with torch.no_grad():
        origin, action, later, valid = batch()
        similar = loss.loss(origin, action, later, valid)[2]["representation/prediction_similarity"]
        other = loss.loss(origin, 1 - action, later, valid)[2]["representation/prediction_similarity"]
    assert similar > 0.9
    assert other < 0.6


@pytest.mark.parametrize("algorithm", LEARNERS)
def test_critics_learn_it_in_one_step(algorithm, tmp_path):
    metrics = run_of(algorithm, "spr", tmp_path)
    assert {"loss/q_loss", "loss/spr", "representation/prediction_similarity"} <= {*metrics}
    assert 0.0 < metrics["loss/spr"] < 10.0


def test_stored_actions_are_read(tmp_path):  # decisions have a number of steps, too
    assert 0.0 < run_of("sac", "action_repeat,spr", tmp_path)["loss/spr"] < 10.0
