"""Causal cloning: its losses by hand, and an expert whose noise plain cloning takes for the policy."""

from functools import partial

import numpy as np
import pytest
import torch

from rlrun.algorithms.bc import BCLoss
from rlrun.algorithms.causal_bc import CausalBCLoss, Residual, ResidualLoss
from rlrun.nn import Policy

from .fixed import CONTINUOUS, deterministic, fill, sgd

GAIN, STEPS = 0.3, 6_000
OBSERVED, DONE = 0.3, 0.09  # scales, so that actions stay where tanh is straight


def windows(*rows):
    """Return windows [B, T, 1]."""
    return torch.tensor(rows).float().unsqueeze(-1)


def made(*, level, slope, bias, **options):
    """Return both losses: a policy that plays `level`, and f(s) = slope · s + bias."""
    policy, residual = deterministic(level), Residual(CONTINUOUS, hidden=())
    fill(residual.layers[-1], bias)
    torch.nn.init.constant_(residual.layers[-1].weight, slope)
    return CausalBCLoss(policy, sgd, residual=residual, bc_weight=0.5), ResidualLoss(residual, sgd, **options)


def test_losses_by_hand():
    """Errors are 0.5 and -0.5 in the last rows; f says 2 and -1 of the first ones."""
    policy, residual = made(level=0.5, slope=3.0, bias=-1.0, penalty=0.1)
    observation, action = windows([1.0, 7.0], [0.0, 8.0]), windows([9.0, 1.0], [9.0, 0.0])
    losses, outputs, _ = policy.loss(observation, action)
    assert outputs["residual"].flatten().tolist() == pytest.approx([0.5, -0.5])
    assert losses.tolist() == pytest.approx([2 * 0.5 * 2 + 0.5 * 0.25, 2 * -0.5 * -1 + 0.5 * 0.25])
    size = ((4 + 1) / 2) ** 0.5
    residual_loss = residual.loss(observation, outputs["residual"]).tolist()
    assert residual_loss == pytest.approx([4 - 2 * 0.5 * 2 + 0.1 * size, 1 - 2 * -0.5 * -1 + 0.1 * size])


def test_policy_follows_the_predicted_residual():
    policy, residual = made(level=0.0, slope=0.0, bias=1.0)
    outputs = policy.backward(windows([0.0, 0.0]), windows([0.0, 0.5]))
    # the gradient is - (2 f + 2 · 0.5 · e), tanh has slope 1 at 0, and the learning rate is 1
    assert policy.network.layers[-1].bias.item() == pytest.approx(2.5)
    assert residual.network.layers[-1].bias.item() == 1.0
    residual.penalty = 0.0
    residual.backward(windows([0.0, 0.0]), outputs["residual"])
    assert residual.network.layers[-1].bias.item() == pytest.approx(1.0 - (2.0 - 2 * 0.5))
    assert policy.network.layers[-1].bias.item() == pytest.approx(2.5)


def test_zero_residual_has_no_gradient():
    _, residual = made(level=0.0, slope=0.0, bias=0.0, penalty=1.0)
    residual.backward(windows([0.0, 0.0]), torch.zeros(1, 1))
    assert residual.network.layers[-1].bias.item() == 0.0


def expert():
    """Return what an expert saw and did [N, 2, 1]: its noise of a step moves the next state, and half of it stays."""
    generator = np.random.default_rng(0)
    own, drift = generator.standard_normal(STEPS + 1), generator.standard_normal(STEPS)
    noise, state = own[1:] + own[:-1], np.zeros(STEPS)
    for step in range(1, STEPS):
        state[step] = 0.8 * state[step - 1] + noise[step - 1] + drift[step]
    seen, done = OBSERVED * state, DONE * (GAIN * state + noise)
    return tuple(torch.tensor(np.stack((of[:-1], of[1:]), 1)).float().unsqueeze(-1) for of in (seen, done))


def off(play, observation):
    """Return how far a policy's slope is from the expert's, as a share of that."""
    with torch.no_grad():
        played = play(observation[:, 1])
    slope = float((played * observation[:, 1]).sum() / observation[:, 1].square().sum())
    return abs(slope / (GAIN * DONE / OBSERVED) - 1.0)


def test_causal_cloning_ignores_lasting_noise():
    observation, action = expert()
    plain = BCLoss(Policy(CONTINUOUS, hidden=()), partial(torch.optim.Adam, lr=0.03), objective="mode")
    policy, residual = made(level=0.0, slope=0.0, bias=0.0)
    policy = CausalBCLoss(policy.network, partial(torch.optim.Adam, lr=0.01), residual=residual.network)
    residual = ResidualLoss(residual.network, partial(torch.optim.Adam, lr=0.1))
    for _ in range(150):
        plain.backward(observation[:, 1], action[:, 1])
        outputs = policy.backward(observation, action)
        residual.backward(observation, outputs["residual"])
    assert off(plain.network.mode, observation) >= 0.20
    assert off(policy.network, observation) <= 0.08
