"""Implicit Q-learning, worked by hand on networks of one layer."""

import math

import pytest
import torch

from rlrun.algorithms.actor_critic.iql import AdvantageWeightedLoss, ImplicitQTarget, ValueLoss
from rlrun.nn import Critics, Policy, Rewards, Value

from .fixed import CONTINUOUS, DISCRETE, column, critics_of, evaluate_loss, fill, sgd, write

TWO = [1.0, 2.0, 6.0, 8.0], [4.0, 3.0, 5.0, 9.0]  # of a member: choice 0 reward 0, choice 0 reward 1, …


def value_of(slope, bias):
    """Return V(s) = slope · s + bias."""
    value = Value(CONTINUOUS, hidden=())
    fill(value.layers[-1], bias)
    torch.nn.init.constant_(value.layers[-1].weight, slope)
    return value


def policy_of(spaces):
    """Return a policy of mean 0 and deviation 1 under the tanh, and equal choices."""
    policy = Policy(spaces, hidden=())
    fill(policy.head.layer, 0.0, 0.0)
    return policy


def density(c):
    """Return log p of c by hand: a standard normal at atanh c, over the slope 1 - c²."""
    return -0.5 * math.atanh(c) ** 2 - 0.5 * math.log(2 * math.pi) - math.log(1 - c**2)


def test_targets_use_values_and_smallest_critic():
    critics = critics_of(CONTINUOUS, ([[2.0], [3.0]], [1.0]), ([[2.0], [3.0]], [4.0]))
    target = ImplicitQTarget(critics, value_of(2.0, 0.5), discount=0.9)
    write(critics, *[([[0.0], [0.0]], [100.0])] * 2)  # the target networks are as before
    batch = target.begin_batch(column(1, 1), column(0.5, -1), column(3, 3), torch.ones(2), torch.tensor([False, True]))
    assert batch["q_target"].tolist() == pytest.approx([1 + 0.9 * 6.5, 1.0])
    assert batch["action_value"].tolist() == pytest.approx([2 + 1.5 + 1, 2 - 3 + 1])
    ahead = target.begin_batch(
        column(1), column(0), column(3), torch.ones(1), torch.tensor([False]), torch.tensor([0.5])
    )
    assert ahead["q_target"].tolist() == pytest.approx([1 + 0.5 * 6.5])


def test_each_reward_has_values_by_hand():
    head = Rewards([2.0, -1.0])
    critics = write(Critics(DISCRETE, hidden=(), members=2, value_head=head), *[([[0.0] * 4], bias) for bias in TWO])
    value = Value(DISCRETE, hidden=(), value_head=head)
    fill(value.layers[-1], 2.0, 4.0)
    flags, reward = torch.tensor([False, True]), torch.tensor([[1.0, 3.0]] * 2)
    target, loss = ImplicitQTarget(critics, value, discount=[0.9, 0.5]), ValueLoss(value, sgd, expectile=0.8)
    batch = target.begin_batch(column(0, 0), torch.tensor([0, 1]), column(0, 0), reward, flags)
    assert batch["q_target"].tolist() == [pytest.approx([1 + 0.9 * 2, 3 + 0.5 * 4]), [1.0, 3.0]]
    assert batch["action_value"].tolist() == [[1.0, 3.0], [5.0, 9.0]]
    elements, outputs, _ = loss.loss(column(0, 0), batch["action_value"])
    assert outputs["advantage"].tolist() == [2 * -1 - -1, 2 * 3 - 5]  # the sum says which action is a good one
    assert elements.tolist() == pytest.approx([0.2 * (1 + 1) / 2, 0.8 * (9 + 25) / 2])


def test_taken_choice_counts():
    critics = critics_of(DISCRETE, ([[0.0, 0.0]], [1.0, 5.0]), ([[0.0, 0.0]], [3.0, 4.0]))
    batch = ImplicitQTarget(critics, value_of(0.0, 0.0)).begin_batch(
        column(0, 0), torch.tensor([0, 1]), column(0, 0), torch.zeros(2), torch.tensor([False, False])
    )
    assert batch["action_value"].tolist() == [1.0, 4.0]


def test_value_follows_the_expectile():
    loss = ValueLoss(value_of(0.0, 2.0), sgd, expectile=0.8)
    outputs = loss.backward(column(0, 0), torch.tensor([3.0, 1.0]))
    assert outputs["advantage"].tolist() == pytest.approx([1.0, -1.0])
    assert not outputs["advantage"].requires_grad  # the policy's loss must not reach the value network
    assert float(loss.metrics[f"loss/{loss.name}"]) == pytest.approx(0.5)
    # the mean of -2 · 0.8 · 1 and 2 · 0.2 · 1 is the gradient, and the learning rate is 1
    assert loss.network.layers[-1].bias.item() == pytest.approx(2.6)


def test_weights_of_actions_are_limited():
    loss = AdvantageWeightedLoss(policy_of(CONTINUOUS), sgd, temperature=0.5, edge=0.05)
    advantage = torch.tensor([0.0, 1.0, 3.0])  # exp(6) is more than a hundred
    losses, _, metrics = evaluate_loss(loss, column(0, 0, 0), column(0.3, -0.4, 1.0), advantage)
    expected = [-density(0.3), -7.389056 * density(-0.4), -100.0 * density(0.95)]
    assert losses.tolist() == pytest.approx(expected, rel=1e-5)
    assert float(metrics["imitation/limited"]) == pytest.approx(1 / 3)
    assert float(metrics["imitation/weight"]) == pytest.approx((1 + 7.389056 + 100) / 3)


def test_policy_weighs_choices():
    loss = AdvantageWeightedLoss(policy_of(DISCRETE), sgd)
    losses, *_ = loss.loss(column(0, 0), torch.tensor([0, 1]), torch.tensor([2.0, 6.0]))
    assert losses.tolist() == pytest.approx([7.389056 * math.log(2), 100.0 * math.log(2)], rel=1e-5)
