"""Deterministic policy gradients, worked by hand on networks of one layer."""

import pytest

from rlrun.algorithms.actor_critic.ddpg import DeterministicPolicyLoss

from .fixed import CONTINUOUS, column, critics_of, deterministic, sgd


def policy_loss(**options):
    # at observation 0 and action a: 3 a + 1, and - a + 0.5
    critics = critics_of(CONTINUOUS, ([[0.0], [3.0]], [1.0]), ([[0.0], [-1.0]], [0.5]))
    return DeterministicPolicyLoss(deterministic(0.5), sgd, critics=critics, **options)


def test_size_of_actions_costs():
    assert policy_loss(action_weight=2.0).loss(column(0))[0].tolist() == pytest.approx([-2.5 + 2.0 * 0.25])


@pytest.mark.parametrize(("clip", "slope"), [(None, 3), (5.0, 3), (2.0, 2)])
def test_policy_follows_the_values_gradient(clip, slope):
    loss = policy_loss(action_gradient_clip=clip)
    assert loss.loss(column(0))[0].tolist() == pytest.approx([-2.5])
    bias = loss.policy.layers[-1].bias.item()
    loss.backward(column(0))
    # dQ/da · da/du = 3 (1 - 0.5²), and the learning rate is 1
    assert loss.policy.layers[-1].bias.item() - bias == pytest.approx(slope * 0.75)
