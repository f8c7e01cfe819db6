"""The soft target, worked by hand on networks of one layer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlrun.algorithms.sac import SoftQTarget
from rlrun.memory import NStep, Table

from .fixed import CONTINUOUS, DISCRETE, MANY, MIXED, column, critics_of, policy_of, write

LOG_3 = math.log(3.0)
ENTROPY = 0.562335  # of (1/4, 3/4)


@pytest.fixture(autouse=True)
def _no_noise(monkeypatch):
    monkeypatch.setattr("torch.randn_like", torch.zeros_like)


def made(spaces, online, slow, **options):
    """Return a target whose target critics differ from the online ones."""
    critics = critics_of(spaces, *slow)
    policy, temperature = policy_of(spaces, critics, **options)
    target = SoftQTarget(critics, policy, temperature, discount=0.99)
    write(critics, *online)
    return target


def continuous():
    # at next_observation 1 the sample is 1/2: slow members say 2 + 3/2 + 1 = 4.5 and 7.5; online 100
    slow = ([[2.0], [3.0]], [1.0]), ([[2.0], [3.0]], [4.0])
    return made(CONTINUOUS, [([[0.0], [0.0]], [100.0])] * 2, slow)


def discrete():
    # the smaller of the online members is (0, ln 3 / 2); at temperature 1/2 the policy is (1/4, 3/4)
    online = ([[0.0, 0.0]], [0.0, 2.0]), ([[0.0, 0.0]], [1.0, 0.5 * LOG_3])
    slow = ([[0.0, 0.0]], [4.0, 9.0]), ([[0.0, 0.0]], [5.0, 8.0])  # smaller: (4, 8)
    return made(DISCRETE, online, slow, alphas=(0.5,))


def mixed():
    # with the sample 1/2, online says (0, ln 3 / 2) and slow (4, 8) + 1
    online = [([[0.0, 0.0], [0.0, LOG_3]], [0.0, 0.0])] * 2
    slow = [([[0.0, 0.0], [2.0, 2.0]], [4.0, 8.0])] * 2
    return made(MIXED, online, slow, alphas=(0.2, 0.5))


def targets(target, **extra):
    """Return the targets of an interior step and of a terminal one, both with reward 1."""
    batch = target.begin_batch(column(1, 1), torch.ones(2), torch.tensor([False, True]), **extra)
    return batch["q_target"].tolist()


def test_continuous_target_is_the_smaller_slow_value_plus_entropy():
    assert targets(continuous())[0] == pytest.approx(1 + 0.99 * (4.5 + 0.2 * 1.5), abs=1e-5)


def test_discrete_target_is_the_expectation_under_the_online_policy():
    expected = 1 + 0.99 * (0.25 * 4 + 0.75 * 8 + 0.5 * ENTROPY)
    assert targets(discrete())[0] == pytest.approx(expected, abs=1e-5)


def test_mixed_target_counts_both_entropies_at_their_own_temperatures():
    expected = 1 + 0.99 * (0.25 * 5 + 0.75 * 9 + 0.5 * ENTROPY + 0.2 * 1.5)
    assert targets(mixed())[0] == pytest.approx(expected, abs=1e-5)


def test_branches_of_a_target_add_up():
    online, slow = ([[0.0] * 14], [0.0, 0.5 * LOG_3] * 7), ([[0.0] * 14], [1.0, 3.0] * 7)
    target = made(MANY, [online] * 2, [slow] * 2, alphas=(0.5,))
    expected = 1 + 0.99 * 7 * (0.25 * 1 + 0.75 * 3 + 0.5 * ENTROPY)
    assert targets(target)[0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("target", [continuous, discrete, mixed])
def test_terminal_step_counts_neither_value_nor_entropy(target):
    assert targets(target())[1] == 1.0


@pytest.mark.parametrize("target", [continuous, discrete, mixed])
def test_discount_of_the_batch_comes_first(target):
    interior = (targets(target())[0] - 1) / 0.99
    q_target = targets(target(), discount=torch.tensor([0.5, 0.5]))
    assert q_target == pytest.approx([1 + 0.5 * interior, 1.0], abs=1e-5)


def test_entropy_alone_is_worth_its_golden_number():
    target = made(CONTINUOUS, [([[0.0], [0.0]], [0.0])], [([[0.0], [0.0]], [0.0])])
    batch = target.begin_batch(column(1, 1), torch.zeros(2), torch.tensor([False, True]))
    assert batch["q_target"].tolist() == pytest.approx([0.297, 0.0], abs=1e-6)


def stored_steps():
    """Return a batch of three stored steps: from 0 (goes on), from 1 (truncated), from 2 (terminated)."""
    table = Table(spaces=CONTINUOUS, length=10, adaptors=[NStep(steps=1, discount=0.99)])
    for seen, terminated, truncated in ((0.0, False, False), (1.0, False, True), (2.0, True, False)):
        row = {"observation": np.array([[seen]]), "action": np.zeros((1, 1)), "reward": np.ones(1)}
        table.add(None, row | {"terminated": np.array([terminated]), "truncated": np.array([truncated])})
        if terminated or truncated:
            table.close(None, np.ones((1, 1)))
    return table.sample(64)


def test_truncated_step_still_bootstraps_with_entropy():
    batch = stored_steps()
    result = continuous().begin_batch(
        *(batch[name] for name in ("next_observation", "reward", "terminated", "discount"))
    )
    by_start = dict(zip(batch["observation"].flatten().tolist(), result["q_target"].tolist(), strict=True))
    assert by_start == pytest.approx({0.0: 5.752, 1.0: 5.752, 2.0: 1.0}, abs=1e-5)


def test_target_takes_no_gradient():
    batch = mixed().begin_batch(column(1), torch.ones(1), torch.tensor([False]))
    assert not batch["q_target"].requires_grad


def test_slow_critics_move_by_the_rate():
    critics = critics_of(CONTINUOUS, ([[0.0], [0.0]], [0.0]))
    policy, temperature = policy_of(CONTINUOUS, critics)
    target = SoftQTarget(critics, policy, temperature, tau=0.25)
    write(critics, ([[1.0], [2.0]], [4.0]))
    target.end_batch()
    target.end_batch()
    slow = target.target.layers.layers[0]
    assert slow.weight.flatten().tolist() == [0.4375, 0.875]
    assert slow.bias.flatten().tolist() == [1.75]


def test_slow_critics_are_saved():
    saved = continuous().state_dict()
    restored = made(CONTINUOUS, [([[0.0], [0.0]], [0.0])] * 2, [([[0.0], [0.0]], [0.0])] * 2)
    restored.load_state_dict(saved)
    assert targets(restored) == targets(continuous())
