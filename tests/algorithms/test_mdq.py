"""A policy over bins, entry by entry, against all actions written out; and what it is distilled from."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from rlrun.algorithms.actor_critic.sac import Temperature, TemperatureLoss
from rlrun.algorithms.value_based.mdq import BinPolicy, BinPolicyLoss, BinTarget
from rlrun.core.spaces import Box, Spaces
from rlrun.nn import Critics, Rewards

from .fixed import CONTINUOUS, LINE, column, critics_of, sgd, write

PLANE = Spaces(LINE, Box((2,), np.full(2, -1.0, np.float32), np.full(2, 1.0, np.float32)))
BINS, ALPHA = 6, 0.7
VALUES = torch.linspace(-2.0, 3.0, BINS * BINS).reshape(BINS, BINS).sin() * 2.0  # Q of each pair of bins


class First(nn.Module):
    """F_0: the same whatever is seen."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, inputs):
        return self.logits.expand(len(inputs), -1)


class Second(First):
    """F_1: a row for each bin of the first entry, which is the last input."""

    def forward(self, inputs):
        return self.logits[((inputs[:, -1] + 1.0) * 0.5 * (BINS - 1)).round().long()]


def policy_of(spaces=PLANE, alpha=ALPHA, **options):
    temperature = Temperature(spaces, initial=alpha)
    return BinPolicy(spaces, temperature, **{"bins": BINS, "hidden": (), **options}), temperature


def soft():
    """Return a policy whose values are VALUES by hand."""
    policy, temperature = policy_of()
    best = ALPHA * (VALUES / ALPHA).logsumexp(-1) - ALPHA * 2 * math.log(BINS)
    policy.layers = nn.ModuleList([First(best), Second(VALUES.clone())])
    return policy, temperature


def log_prob(policy, pair):
    """Return what the policy says of a pair of bins."""
    remaining = iter(pair)
    c, logp = policy.choose(column(0), lambda scaled: torch.tensor([next(remaining)]))
    assert c[0].tolist() == pytest.approx([2 * index / (BINS - 1) - 1 for index in pair])
    return float(logp.detach())


def test_distribution_is_the_joint_softmax():
    policy, _ = soft()
    expected = (VALUES / ALPHA).flatten().log_softmax(-1)
    log_probs = [log_prob(policy, pair) for pair in product(range(BINS), repeat=2)]
    assert log_probs == pytest.approx(expected.tolist(), abs=1e-5)


def test_every_action_has_its_value():
    policy, _ = soft()
    c = torch.tensor([[2 * i / (BINS - 1) - 1, 2 * j / (BINS - 1) - 1] for i, j in product(range(BINS), repeat=2)])
    torch.testing.assert_close(policy(column(*[0] * len(c)), c).detach(), VALUES.flatten(), atol=1e-5, rtol=0)


def test_best_action_and_draws_by_entries():
    policy, _ = soft()
    first = int((VALUES / ALPHA).logsumexp(-1).argmax())
    best = [2 * index / (BINS - 1) - 1 for index in (first, int(VALUES[first].argmax()))]
    assert policy.act(column(0), explore=False)[0].tolist() == pytest.approx(best)
    torch.manual_seed(0)
    target_subset = policy.nearest(policy.act(column(*[0] * 20_000)))
    share = torch.bincount(target_subset[:, 0] * BINS + target_subset[:, 1], minlength=BINS * BINS) / 20_000
    torch.testing.assert_close(share, (VALUES / ALPHA).flatten().softmax(-1), atol=0.012, rtol=0)


def test_entries_are_read_as_nearest_bins():
    policy, _ = policy_of(CONTINUOUS)
    assert policy.nearest(column(-1.0, -0.79, -0.81, 0.21, 1.0)).flatten().tolist() == [0, 1, 0, 3, 5]
    assert policy.level(torch.arange(BINS)).tolist() == pytest.approx([-1.0, -0.6, -0.2, 0.2, 0.6, 1.0])


def certain(bin_, **options):
    """Return a policy of one entry that is all but sure of a bin."""
    policy, temperature = policy_of(CONTINUOUS, **options)
    logits = torch.zeros(BINS)
    logits[bin_] = 100.0
    policy.layers = nn.ModuleList([First(logits)])
    return policy, temperature


def target_of(policy):
    """Return a target whose target critics say 2 o + 3 a + 1 and 2 o + 3 a + 4, and the online ones 100."""
    critics = critics_of(CONTINUOUS, ([[2.0], [3.0]], [1.0]), ([[2.0], [3.0]], [4.0]))
    target = BinTarget(critics, policy, discount=0.9)
    write(critics, *[([[0.0], [0.0]], [100.0])] * 2)
    return target


def test_target_pays_divergence_from_uniform():
    target = target_of(certain(3)[0])  # plays 0.2, so target critics say 3.6; and knows log 6 nats more than nothing
    inputs = (column(1, 1), torch.ones(2), torch.tensor([False, True]))
    q_target = target.begin_batch(*inputs)["q_target"].tolist()
    assert q_target == pytest.approx([1 + 0.9 * (3.6 - ALPHA * math.log(BINS)), 1.0], abs=1e-5)
    q_target = target.begin_batch(*inputs, discount=torch.tensor([0.5, 0.5]))["q_target"].tolist()
    assert q_target == pytest.approx([1 + 0.5 * (3.6 - ALPHA * math.log(BINS)), 1.0], abs=1e-5)


def test_each_reward_has_a_target():
    critics = Critics(CONTINUOUS, hidden=(), members=1, value_head=Rewards([2.0, -1.0]))
    target = BinTarget(write(critics, ([[2.0, 0.0], [3.0, 1.0]], [1.0, 0.0])), certain(3)[0], discount=0.9)
    rewards, cost = torch.tensor([[1.0, 2.0]] * 2), ALPHA * math.log(BINS)
    q_target = target.begin_batch(column(1, 1), rewards, torch.tensor([False, True]))["q_target"].tolist()
    assert q_target == [pytest.approx([1 + 0.9 * (3.6 - cost), 2 + 0.9 * (0.2 - cost)], abs=1e-5), [1.0, 2.0]]
    assert target.evaluated(column(1), column(0.2)).tolist() == pytest.approx([2 * 3.6 - 0.2])  # what the policy learns


def test_even_bins_cost_nothing():
    policy, _ = certain(3)
    with torch.no_grad():
        policy.layers[0].logits.zero_()
    target = target_of(policy)
    values = {round(1 + 0.9 * (2 + 3 * level + 1), 4) for level in policy.level(torch.arange(BINS)).tolist()}
    q_target = target.begin_batch(column(*[1] * 60), torch.ones(60), torch.zeros(60, dtype=torch.bool))["q_target"]
    assert {round(float(value), 4) for value in q_target} <= values


def test_policy_learns_the_target_networks_value(monkeypatch):
    monkeypatch.setattr("torch.randn_like", torch.ones_like)
    policy, _ = certain(3)
    loss = BinPolicyLoss(policy, sgd, slow=target_of(policy), noise=0.05)
    element, outputs, _ = loss.loss(column(1))
    # at 0.2 + 0.05 target critics say 3.75; the policy says 100 + 0.7 log 6, the bin being the same
    difference = 100.0 + ALPHA * math.log(BINS) - 3.75
    assert element.tolist() == pytest.approx([difference**2], rel=1e-5)
    assert outputs["policy_entropy"].tolist() == [[pytest.approx(math.log(2 / BINS), abs=1e-5)]]
    loss.backward(column(1))
    expected = [100.0 - 2 * difference if bin_ == 3 else 0.0 for bin_ in range(BINS)]
    assert policy.layers[0].logits.tolist() == pytest.approx(expected, rel=1e-5)


def test_entropy_target_is_of_the_density():
    spaces, policy = CONTINUOUS, policy_of(CONTINUOUS, bins=21)
    loss = TemperatureLoss(policy[1], sgd, spaces=spaces, share={"continuous": math.exp(-1.0) / 2.0})
    assert float(loss.target) + math.log(21 / 2) == pytest.approx(1.351375, abs=1e-5)
    with torch.no_grad():
        for parameter in policy[0].parameters():
            parameter.zero_()
    critics = critics_of(spaces, ([[0.0], [0.0]], [0.0]))
    _, outputs, _ = BinPolicyLoss(policy[0], sgd, slow=BinTarget(critics, policy[0])).loss(column(0))
    assert float(outputs["policy_entropy"]) == pytest.approx(math.log(2.0), abs=1e-5)  # of the even density
