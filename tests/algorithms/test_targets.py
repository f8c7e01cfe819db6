"""Targets of critics, worked by hand on networks of one layer: their values, and how target networks move."""

import math
from typing import Any, NamedTuple

import pytest
import torch
from tests.training.batches import Served

from rlrun.algorithms.actor_critic.ddpg import DeterministicQTarget
from rlrun.algorithms.actor_critic.dsac import ImplicitQuantileTarget
from rlrun.algorithms.actor_critic.qrsac import FixedQuantileTarget
from rlrun.algorithms.actor_critic.sac import SoftQTarget
from rlrun.algorithms.actor_critic.sarsa import SarsaTarget
from rlrun.algorithms.value_based.dqn import QNetwork, QTarget
from rlrun.callbacks.losses.target import less_cost
from rlrun.core.errors import ConfigError
from rlrun.nn import Critics, ImplicitCritics, SoftPolicy, Temperature
from rlrun.training.trainer import Trainer

from .fixed import (
    CONTINUOUS,
    DISCRETE,
    MANY,
    MIXED,
    column,
    critics_of,
    deterministic,
    play,
    policy_of,
    q_network,
    targets,
    write,
)

pytestmark = pytest.mark.usefixtures("no_noise")

LOG_3 = math.log(3.0)
ENTROPY = 0.562335  # of (1/4, 3/4)
# At next_observation 1 the action is 1/2, so these say 2 + 3/2 + 1 = 4.5 and 7.5.
SLOPES = ([[2.0], [3.0]], [1.0]), ([[2.0], [3.0]], [4.0])
FAR = ([[0.0], [0.0]], [100.0])


def soft(spaces=CONTINUOUS, online=(FAR, FAR), slow=SLOPES, *, alphas=(0.2,), **options):
    critics = critics_of(spaces, *slow)
    target = SoftQTarget(critics, *policy_of(spaces, critics, alphas=alphas), discount=0.9, **options)
    write(critics, *online)
    return target


def of_choices(**options):
    # the smaller of the online members is (0, ln 3 / 2): at temperature 1/2 the policy is (1/4, 3/4)
    online = ([[0.0, 0.0]], [0.0, 2.0]), ([[0.0, 0.0]], [1.0, 0.5 * LOG_3])
    slow = ([[0.0, 0.0]], [4.0, 9.0]), ([[0.0, 0.0]], [5.0, 8.0])  # smaller: (4, 8)
    return soft(DISCRETE, online, slow, alphas=(0.5,), **options)


def mixed(**options):
    # with the sample 1/2, online says (0, ln 3 / 2) and slow (4, 8) + 1
    online, slow = ([[0.0, 0.0], [0.0, LOG_3]], [0.0, 0.0]), ([[0.0, 0.0], [2.0, 2.0]], [4.0, 8.0])
    return soft(MIXED, [online] * 2, [slow] * 2, alphas=(0.2, 0.5), **options)


def branches(**options):
    online, slow = ([[0.0] * 14], [0.0, 0.5 * LOG_3] * 7), ([[0.0] * 14], [1.0, 3.0] * 7)
    return soft(MANY, [online] * 2, [slow] * 2, alphas=(0.5,), **options)


def ddpg(**options):
    critics, policy = critics_of(CONTINUOUS, *SLOPES), deterministic(0.5)
    target = DeterministicQTarget(critics, policy, discount=0.9, **options)
    write(critics, FAR, FAR)
    play(policy, -0.9)
    return target


def sarsa(*, drawing=False, **options):
    critics = critics_of(CONTINUOUS, *SLOPES)
    arguments = policy_of(CONTINUOUS, critics) if drawing else (deterministic(0.5),)
    target = SarsaTarget(critics, *arguments, discount=0.9, **options)
    write(critics, FAR, FAR)
    return target


def dqn(online=((1.0, 2.0),), slow=((5.0, 3.0),), *, network=None, **options):
    target = QTarget(network or q_network(DISCRETE, *slow), discount=0.9, **options)
    write(target.network, *[([[0.0] * len(bias)], bias) for bias in online])
    return target


def quantile_dqn(online, *slow, **options):
    """Return the target of a Q-network with two quantiles of each of two choices."""
    network = write(QNetwork(DISCRETE, hidden=(), members=len(slow), quantiles=2), *[([[0.0] * 4], b) for b in slow])
    return dqn([online] * len(slow), network=network, **options)


def qrsac(**options):
    # of two quantiles each, at next_observation 1 and the sample 1/2: (1, 5) and (2, 3)
    flat = [[0.0, 0.0], [0.0, 0.0]]
    slow = ([[0.5, 1.0], [1.0, 2.0]], [0.0, 3.0]), (flat, [2.0, 3.0])
    critics = write(Critics(CONTINUOUS, hidden=(), members=2, quantiles=2), *slow)
    target = FixedQuantileTarget(critics, *policy_of(CONTINUOUS, critics), discount=0.9, **options)
    write(critics, *[(flat, [100.0, 100.0])] * 2)
    return target


class Case(NamedTuple):
    """A target, and the value (or quantiles) that it bootstraps from."""

    make: Any
    value: Any
    options: dict[str, Any] = {}


CASES = {
    "sac": Case(soft, 4.5 + 0.2 * 1.5),
    "sac of choices": Case(of_choices, 0.25 * 4 + 0.75 * 8 + 0.5 * ENTROPY),
    "sac of both": Case(mixed, 0.25 * 5 + 0.75 * 9 + 0.5 * ENTROPY + 0.2 * 1.5),
    "sac of branches": Case(branches, 7 * (0.25 * 1 + 0.75 * 3 + 0.5 * ENTROPY)),
    "sac without entropy": Case(soft, 4.5, {"entropy_reward": False}),
    "sac of choices without entropy": Case(of_choices, 0.25 * 4 + 0.75 * 8, {"entropy_reward": False}),
    "sac of both without entropy": Case(mixed, 0.25 * 5 + 0.75 * 9, {"entropy_reward": False}),
    # both rows have the mean entropy
    "sac of both with centered entropy": Case(mixed, 0.25 * 5 + 0.75 * 9, {"entropy_reward": "centered"}),
    "sarsa with centered entropy": Case(sarsa, 4.5, {"drawing": True, "entropy_reward": "centered"}),
    "qrsac with centered entropy": Case(qrsac, [1.0, 3.0], {"entropy_reward": "centered"}),
    "ddpg": Case(ddpg, 4.5),
    "sarsa": Case(sarsa, 4.5),
    "sarsa of a sample": Case(sarsa, 4.5, {"drawing": True}),
    "sarsa with entropy": Case(sarsa, 4.5 + 0.2 * 1.5, {"drawing": True, "entropy_reward": True}),
    "dqn": Case(dqn, 3.0),
    "dqn without double": Case(dqn, 5.0, {"double": False}),
    # the smallest online values are (1, 0): choice 0, of which the slow members say 6 and 4
    "dqn of members": Case(dqn, 4.0, {"online": ((1.0, 9.0), (3.0, 0.0)), "slow": ((6.0, 8.0), (4.0, 8.0))}),
    # online means are 1.5 and 1: choice 0, of which the slow members say (5, 7) and (6, 6.5)
    "dqn of quantiles": Case(
        lambda **options: quantile_dqn([0.0, 3.0, 1.0, 1.0], [5.0, 7.0, 1.0, 2.0], [6.0, 6.5, 3.0, 4.0], **options),
        [5.0, 6.5],
    ),
    "dqn of quantiles without double": Case(
        lambda **options: quantile_dqn([9.0, 9.0, 1.0, 1.0], [5.0, 7.0, 0.0, 20.0], double=False, **options),
        [0.0, 20.0],
    ),
    "qrsac": Case(qrsac, [1.0, 3.0]),
    "qrsac of a member": Case(qrsac, [2.0, 3.0], {"least": "member"}),
    # of (1, 2) and (5, 3): the means 1.5 and 4 less the deviations sqrt(1/2) and sqrt(2)
    "qrsac by deviation": Case(qrsac, [1.5 - 0.5**0.5, 4 - 2**0.5], {"least": "deviation"}),
    "qrsac with entropy": Case(qrsac, [1.3, 3.3], {"entropy_reward": True}),
}
EVERY_TARGET = pytest.mark.parametrize("name", CASES)


def made(name, **options):
    return CASES[name].make(**CASES[name].options, **options)


@EVERY_TARGET
def test_targets_by_hand(name):
    target, value = made(name), torch.tensor(CASES[name].value)
    expected = torch.stack([1 + 0.9 * value, torch.ones_like(value)])
    torch.testing.assert_close(targets(target), expected, atol=1e-4, rtol=0)
    expected = torch.stack([1 + 0.5 * value, torch.ones_like(value)])
    actual = targets(target, discount=torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
    assert not actual.requires_grad


def test_centered_entropy_pays_for_more_than_the_mean():
    value, cost = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 1.5])
    assert less_cost(value, cost, True).tolist() == [0.5, 0.5]
    assert less_cost(value, cost, "centered").tolist() == [1.5, 1.5]
    assert less_cost(value, cost, "centered", torch.tensor([True, False])).tolist() == [1.0, 1.0]  # 0.5 is the mean
    with pytest.raises(ConfigError, match="entropy_reward: wanted true, false or centered, got 'center'"):
        soft(entropy_reward="center")


def test_dsac_centers_its_entropy():
    arguments = {"fractions": 2, "fixed": True, "entropy_reward": "centered"}
    for epistemic, expected in ((None, "centered"), (0.04, False)):
        critics = ImplicitCritics(CONTINUOUS, hidden=(4,), members=2)
        temperature = Temperature(CONTINUOUS, epistemic=epistemic)
        policy = SoftPolicy(CONTINUOUS, critics=critics, temperature=temperature, hidden=(4,))
        assert ImplicitQuantileTarget(critics, policy, temperature, **arguments).entropy_reward == expected


@pytest.mark.parametrize(("tau", "every"), [(0.25, 1), (1.0, 3)])
@EVERY_TARGET
def test_target_networks_move_when_due(name, tau, every):
    target = made(name, tau=tau, every=every)
    network, slow_network = target.network, target.target_network
    before = [parameter.clone() for parameter in slow_network.parameters()]
    for turn in range(1, every + 1):
        target.end_batch()
        share = tau if turn == every else 0.0
        for slow, now, online in zip(before, slow_network.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(now, slow + share * (online.detach() - slow))


@pytest.mark.parametrize("make", [ddpg, sarsa])
@pytest.mark.parametrize(
    ("noise", "level"),
    [(1.0, 0.7), (-2.0, 0.1), (10.0, 1.0), (-10.0, 0.0)],  # σ 0.2: within the limit; 0.5 on both sides, and the bound
)
def test_noise_around_actions_is_limited(make, noise, level, monkeypatch):
    monkeypatch.setattr("torch.randn_like", lambda like: torch.full_like(like, noise))
    q_target = targets(make(noise=0.2, noise_limit=0.5))
    assert q_target.tolist() == pytest.approx([1 + 0.9 * (2 + 3 * level + 1), 1.0], abs=1e-5)


def test_sarsa_follows_the_newest_policy():
    target = sarsa()
    play(target.policy, -0.5)
    assert targets(target).tolist() == pytest.approx([1 + 0.9 * 1.5, 1.0], abs=1e-5)


BATCH = {"next_observation": column(1), "reward": torch.ones(1), "terminated": torch.tensor([False])}


def test_targets_count_their_groups_updates():
    target = ddpg(tau=1.0, every=2)
    Trainer({"q_target": target}, Served(*[{"default": BATCH}, {"other": BATCH}] * 3)).train()
    policy = target.target_network.get_submodule("policy")
    assert float(policy(column(1))) == pytest.approx(-0.9)  # moved once, after its second update
    assert target.turns == 3
