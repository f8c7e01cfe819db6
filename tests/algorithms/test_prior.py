"""Priors over actions: their densities, and what soft actor-critic makes of them."""

import math

import numpy as np
import pytest
import torch

from rlrun.algorithms.prior import SameActionPrior, UniformPrior
from rlrun.algorithms.sac import SoftQTarget, TemperatureLoss
from rlrun.callbacks import SoftPolicyLoss
from rlrun.core.spaces import Box, Spaces

from .fixed import CONTINUOUS, LINE, MIXED, column, critics_of, policy_of, sgd


def wide(size):
    return Spaces(LINE, Box((size,), np.full(size, -1.0, np.float32), np.full(size, 1.0, np.float32)))


def previous(*levels, known=True):
    return {"value": column(*levels), "known": torch.tensor([known] * len(levels))}


def near(value, mean, deviation):
    """Return the density of a normal distribution cut to [-1, 1]."""
    within = [0.5 * (1 + math.erf((end - mean) / deviation / math.sqrt(2))) for end in (-1.0, 1.0)]
    height = math.exp(-0.5 * ((value - mean) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))
    return height / (within[1] - within[0])


@pytest.mark.parametrize("size", [1, 6])
def test_uniform_density_is_of_a_box(size):
    assert UniformPrior(wide(size))(torch.rand(2, size)).tolist() == pytest.approx([-math.log(2**size)] * 2)


def test_density_after_actions_is_a_mixture():
    log_prior = SameActionPrior(CONTINUOUS, share=0.7, deviation=0.25)(column(0.3, -0.9), previous(0.5, -0.8))
    expected = [0.3 * near(c, 0.0, 2.0) + 0.7 * near(c, mean, 0.5) for c, mean in ((0.3, 0.5), (-0.9, -0.8))]
    assert log_prior.tolist() == pytest.approx(np.log(expected).tolist(), abs=1e-5)


def test_density_of_all_actions_is_one():
    points = torch.linspace(-1, 1, 20_001)
    for before, known in ((0.9, True), (0.9, False)):
        rows = {"value": torch.full((20_001, 1), before), "known": torch.full((20_001,), known)}
        density = SameActionPrior(CONTINUOUS)(points.unsqueeze(-1), rows).exp()
        assert float(torch.trapezoid(density, points)) == pytest.approx(1.0, abs=1e-4)


def test_first_action_has_a_symmetric_prior():
    prior, ends = SameActionPrior(wide(2)), torch.tensor([[-1.0, -1.0], [1.0, 1.0]])
    before = {"value": torch.ones(2, 2), "known": torch.tensor([False, False])}
    begun = prior(ends, before)
    assert float(begun[0]) == pytest.approx(float(begun[1]), abs=1e-6)
    going_on = prior(ends, before | {"known": torch.tensor([True, True])})
    assert float(going_on[0] - begun[0]) == pytest.approx(2 * math.log(0.1), abs=1e-6)  # far from the action before
    assert float(going_on[1] - begun[1]) > 2.0


def made(prior, *weights):
    """Return critics that say the same online and slow, a policy that plays 1/2 at log-density -1.5, and α 0.2."""
    critics = critics_of(CONTINUOUS, *[([[0.0], [weight]], [1.0]) for weight in weights])
    policy, temperature = policy_of(CONTINUOUS, critics)
    policy.prior = prior
    return critics, policy, temperature


@pytest.mark.usefixtures("no_noise")
def test_target_counts_the_prior_density():
    prior = SameActionPrior(CONTINUOUS)
    target = SoftQTarget(*made(prior, 3.0, 4.0), discount=0.99)
    inputs = (column(1, 1), torch.ones(2), torch.tensor([False, True]))
    q_target = target.begin_batch(*inputs, next_previous=previous(0.4, 0.4))["q_target"].tolist()
    log_prior = math.log(0.1 * near(0.5, 0.0, 2.0) + 0.9 * near(0.5, 0.4, 0.2))
    assert q_target == pytest.approx([1 + 0.99 * (1.0 + 1.5 + 0.2 * (1.5 + log_prior)), 1.0], abs=1e-5)


@pytest.mark.usefixtures("no_noise")
def test_policy_follows_the_prior():
    critics, policy, temperature = made(SameActionPrior(CONTINUOUS, share=0.999), 0.0)
    loss = SoftPolicyLoss(policy, sgd, critics=critics, temperature=temperature)
    before = previous(0.8)
    element, outputs, _ = loss.loss(column(0), before)
    log_prior = float(policy.prior(column(0.5), before))
    assert outputs["policy_entropy"].tolist() == [[pytest.approx(1.5 + log_prior, abs=1e-5)]]
    assert element.tolist() == pytest.approx([0.2 * (-1.5 - log_prior) - 1.0], abs=1e-5)
    loss.backward(column(0), before)
    assert float(policy.gaussian.mode(column(0)).detach()) > 0.5


def test_entropy_target_is_the_negative_divergence():
    spaces = wide(3)
    _, temperature = policy_of(CONTINUOUS, critics_of(CONTINUOUS, ([[0.0], [0.0]], [0.0])))
    loss = TemperatureLoss(temperature, sgd, spaces=spaces, divergence=3.0, target={"continuous": 7.0})
    assert loss.target.tolist() == [-9.0]


def test_choices_have_no_prior():
    before = {"value": {"level": column(0.1), "side": torch.tensor([1])}, "known": torch.tensor([True])}
    log_prior = SameActionPrior(MIXED)(column(0.1), before)
    assert float(log_prior) == pytest.approx(math.log(0.1 * near(0.1, 0.0, 2.0) + 0.9 * near(0.1, 0.1, 0.2)), abs=1e-5)
