"""Values of the policy as it acts, worked by hand on networks of one layer."""

from __future__ import annotations

import math

import pytest
import torch

from rlrun.algorithms.ddpg import QLoss
from rlrun.algorithms.sarsa import QTarget
from rlrun.errors import SpaceError
from rlrun.memory import Table
from rlrun.nn import DeterministicPolicy

from .fixed import CONTINUOUS, DISCRETE, MIXED, column, critics_of, policy_of, sgd, write


@pytest.fixture(autouse=True)
def _no_noise(monkeypatch):
    monkeypatch.setattr("torch.randn_like", torch.zeros_like)


def sure(level):
    policy = DeterministicPolicy(CONTINUOUS, hidden=())
    with torch.no_grad():
        policy.layers[-1].weight.zero_()
        policy.layers[-1].bias.fill_(math.atanh(level))
    return policy


def made(*, drawing, **options):
    """Return a target whose slow critics differ from the online ones.

    At next_observation 1 the policy of now plays 1/2, so the slow critics say 2 + 3/2 + 1 = 4.5 and 7.5.
    """
    critics = critics_of(CONTINUOUS, ([[2.0], [3.0]], [1.0]), ([[2.0], [3.0]], [4.0]))
    given = policy_of(CONTINUOUS, critics) if drawing else (sure(0.5),)
    target = QTarget(critics, *given, discount=0.9, **options)
    write(critics, *[([[0.0], [0.0]], [100.0])] * 2)
    return target


def targets(target, **extra):
    """Return the targets of an interior or cut off step and of a terminal one, both with reward 1."""
    return target.begin_batch(column(1, 1), torch.ones(2), torch.tensor([False, True]), **extra)["q_target"].tolist()


@pytest.mark.parametrize("drawing", [True, False])
def test_target_is_the_smallest_slow_value_of_the_policys_own_action(drawing):
    assert targets(made(drawing=drawing)) == pytest.approx([1 + 0.9 * 4.5, 1.0], abs=1e-5)


def test_policy_is_that_of_now_and_critics_are_slow():
    target = made(drawing=False, rate=1.0)
    with torch.no_grad():
        target.policy.layers[-1].bias.fill_(math.atanh(-0.5))
    assert targets(target) == pytest.approx([1 + 0.9 * 1.5, 1.0], abs=1e-5)
    target.end_batch(1)
    assert targets(target) == pytest.approx([1 + 0.9 * 100.0, 1.0], abs=1e-3)


def test_entropy_is_paid_if_asked_for_but_not_behind_the_end():
    assert targets(made(drawing=True, entropy_reward=True)) == pytest.approx(
        [1 + 0.9 * (4.5 + 0.2 * 1.5), 1.0], abs=1e-5
    )


def test_discount_of_the_batch_comes_first():
    assert targets(made(drawing=True), discount=torch.tensor([0.5, 0.5])) == pytest.approx(
        [1 + 0.5 * 4.5, 1.0], abs=1e-5
    )


@pytest.mark.parametrize(("drawn", "level"), [(1.0, 0.7), (-2.0, 0.1), (10.0, 1.0), (-10.0, 0.0)])
def test_noise_around_a_sure_action_is_limited(monkeypatch, drawn, level):
    monkeypatch.setattr("torch.randn_like", lambda like: torch.full_like(like, drawn))
    expected = [1 + 0.9 * (2 + 3 * level + 1), 1.0]
    assert targets(made(drawing=False, noise=0.2, noise_limit=0.5)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_every_arrival_of_an_episode_counts_once_and_its_beginning_never(ending):
    """Golden number 15: rows (r_t + γ d_t v_t - q_t)² of MID, MID, LAST; the FIRST that follows gives none."""
    table = Table(spaces=CONTINUOUS, length=20)
    rewards, observations, actions = [1.0, 2.0, -3.0], [0.1, 0.2, 0.3, 0.4], [0.5, -0.5, 0.25]
    for step in range(3):
        flags = {name: [step == 2 and name == ending] for name in ("terminated", "truncated")}
        row = {"observation": [[observations[step]]], "action": [[actions[step]]], "reward": [rewards[step]]}
        table.add(None, row | flags)
    table.close(None, [[observations[3]]])
    nothing = {"terminated": [False], "truncated": [False]}
    table.add(None, {"observation": [[9.0]], "action": [[0.0]], "reward": [0.0]} | nothing)  # the next episode's first

    critics = critics_of(CONTINUOUS, ([[2.0], [3.0]], [1.0]))
    target, loss = QTarget(critics, sure(0.5), discount=0.9), QLoss(critics, sgd)
    batch = table.sample(200)
    given = {name: batch[name] for name in ("next_observation", "reward", "terminated")}
    found = loss.loss(batch["observation"], batch["action"], target.begin_batch(**given)["q_target"])
    value, taken = (
        [2 * o + 1.5 + 1 for o in observations],
        [2 * o + 3 * a + 1 for o, a in zip(observations, actions, strict=False)],
    )
    counts = [1.0, 1.0, float(ending == "truncated")]
    rows = [(rewards[t] + 0.9 * counts[t] * value[t + 1] - taken[t]) ** 2 for t in range(3)]
    assert sorted(set(batch["observation"].flatten().tolist())) == pytest.approx(observations[:3])
    for observation, element in zip(batch["observation"].flatten(), found, strict=True):
        assert float(element.detach()) == pytest.approx(rows[round(float(observation) * 10) - 1], abs=1e-4)


@pytest.mark.parametrize("spaces", [DISCRETE, MIXED])
def test_choices_are_refused(spaces):
    critics = critics_of(spaces, ([[0.0, 0.0]] * (1 + (spaces is MIXED)), [0.0, 0.0]))
    with pytest.raises(SpaceError, match="Sarsa is for actions that are numbers"):
        QTarget(critics, sure(0.5))
