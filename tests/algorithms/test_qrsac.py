"""Soft actor-critic by quantiles, worked by hand on networks of one layer."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from rlrun.algorithms.qrsac import FixedQuantileTarget, QuantilePolicyLoss
from rlrun.callbacks import CriticLoss
from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.schedules import Linear
from rlrun.core.spaces import Spaces
from rlrun.nn import Critics

from .fixed import CONTINUOUS, DISCRETE, LINE, MIXED, column, critics_of, policy_of, sgd, write

FLAT = [[0.0, 0.0], [0.0, 0.0]]  # of observation and action, for two quantiles


@pytest.fixture(autouse=True)
def _no_noise(monkeypatch):
    monkeypatch.setattr("torch.randn_like", torch.zeros_like)


def quantiles_of(*members):
    """Return critics of two quantiles each."""
    return write(Critics(CONTINUOUS, hidden=(), members=len(members), quantiles=2), *members)


def made(**options):
    """Return a target whose target critics differ from the networks.

    At next_observation 1 the sample is 1/2, of log-density -1.5, so the slow members say (1, 5) and (2, 3).
    """
    slow = ([[0.5, 1.0], [1.0, 2.0]], [0.0, 3.0]), (FLAT, [2.0, 3.0])
    critics = quantiles_of(*slow)
    policy, temperature = policy_of(CONTINUOUS, critics)
    target = FixedQuantileTarget(critics, policy, temperature, discount=0.9, **options)
    write(critics, *[(FLAT, [100.0, 100.0])] * 2)
    return target


def targets(target, **extra):
    """Return the targets of an interior step (or a truncated one) and of a terminal one, both with reward 1."""
    batch = target.begin_batch(column(1, 1), torch.ones(2), torch.tensor([False, True]), **extra)
    return batch["q_target"].tolist()


def test_target_is_the_smallest_of_each_slow_quantile():
    assert targets(made()) == [pytest.approx([1 + 0.9 * 1, 1 + 0.9 * 3], abs=1e-5), [1.0, 1.0]]


def test_target_may_be_that_of_the_member_with_the_smallest_mean():
    assert targets(made(least="member"))[0] == pytest.approx([1 + 0.9 * 2, 1 + 0.9 * 3], abs=1e-5)


def test_target_may_be_the_mean_of_members_less_their_deviation():
    # of (1, 2) and (5, 3): 1.5 and 4 less sqrt(1/2) and sqrt(2)
    wanted = [1 + 0.9 * (1.5 - 0.5**0.5), 1 + 0.9 * (4 - 2**0.5)]
    assert targets(made(least="deviation"))[0] == pytest.approx(wanted, abs=1e-5)


def test_entropy_counts_where_something_follows():
    q_target = targets(made(entropy_reward=True))
    assert q_target == [pytest.approx([1 + 0.9 * (1 + 0.3), 1 + 0.9 * (3 + 0.3)], abs=1e-5), [1.0, 1.0]]


def test_discount_of_the_batch_comes_first():
    assert targets(made(), discount=torch.tensor([0.5, 0.5]))[0] == pytest.approx([1.5, 2.5], abs=1e-5)


def test_loss_is_the_quantile_distance_summed_over_members():
    loss = CriticLoss(quantiles_of((FLAT, [0.0, 1.0]), (FLAT, [2.0, 2.0])), sgd, huber=1.0)
    losses = loss.loss(column(0, 0), column(0, 0), torch.tensor([[2.0, 2.0], [2.0, 2.0]]))
    assert losses.tolist() == pytest.approx([0.375, 0.375], abs=1e-5)


def test_error_is_the_distance_of_means():
    loss = CriticLoss(quantiles_of((FLAT, [0.0, 1.0]), (FLAT, [2.0, 2.0])), sgd, huber=1.0)
    loss.watched = True
    loss.backward(column(0), column(0), torch.tensor([[2.0, 5.0]]))
    assert loss.error(loss.elements).tolist() == pytest.approx([(3.0 + 1.5) / 2])  # from 3.5 to 0.5 and 2


@pytest.mark.parametrize(("least", "value"), [("quantile", (1 + 3) / 2), ("member", (2 + 3) / 2)])
def test_policy_follows_the_mean_of_the_least_quantiles(least, value):
    critics = quantiles_of((FLAT, [1.0, 5.0]), (FLAT, [2.0, 3.0]))
    policy, temperature = policy_of(CONTINUOUS, critics)
    loss = QuantilePolicyLoss(policy, sgd, critics=critics, temperature=temperature, least=least)
    losses, named = loss.loss(column(0))
    assert losses.tolist() == pytest.approx([-0.2 * 1.5 - value], abs=1e-5)
    assert named["policy_entropy"].tolist() == [pytest.approx([1.5], abs=1e-5)]


def test_quantiles_become_those_of_a_gaussian_reward():
    torch.manual_seed(0)
    critics = Critics(CONTINUOUS, hidden=(), members=1, quantiles=50)
    policy, temperature = policy_of(CONTINUOUS, critics)
    target = FixedQuantileTarget(critics, policy, temperature)
    rates = Linear(first=1.0, last=0.0, steps=300)
    loss = CriticLoss(critics, partial(torch.optim.Adam, lr=1.0), huber=1.0, schedule=rates)
    nothing, episode_end = torch.zeros(64, 1), torch.ones(64, dtype=torch.bool)
    for _ in range(300):
        target_subset = (torch.randperm(64) + torch.rand(64)) / 64  # one of each 64th of the distribution
        reward = 3.0 + 10.0 * torch.special.ndtri(target_subset)
        loss.backward(nothing, nothing, target.begin_batch(nothing, reward, episode_end)["q_target"])
    wanted = 3.0 + 10.0 * torch.special.ndtri((torch.arange(50) + 0.5) / 50)
    assert (critics.raw_output(column(0), column(0))[0, 0] - wanted).abs().max() < 1.0  # a tenth of the deviation
    assert float(critics(column(0), column(0)).detach()) == pytest.approx(3.0, abs=0.3)


@pytest.mark.parametrize("spaces", [DISCRETE, MIXED], ids=["discrete", "mixed"])
def test_choices_are_refused(spaces):
    critics = Critics(spaces, hidden=(), quantiles=2)
    policy, temperature = policy_of(Spaces(LINE, LINE), critics)
    with pytest.raises(SpaceError, match=r"^QRSAC handles continuous actions only; .* Discrete\(2\) \(algorithm=sac"):
        FixedQuantileTarget(critics, policy, temperature)


def test_critics_of_means_and_other_ways_to_choose_are_refused():
    critics = critics_of(CONTINUOUS, ([[0.0], [0.0]], [0.0]))
    policy, temperature = policy_of(CONTINUOUS, critics)
    with pytest.raises(ConfigError, match=r"algorithm\.quantiles"):
        FixedQuantileTarget(critics, policy, temperature)
    with pytest.raises(ConfigError, match=r"^least: wanted one of .*, got 'members' \(did you mean 'member'"):
        made(least="members")
