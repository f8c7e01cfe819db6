"""Deterministic policy gradients, worked by hand on networks of one layer."""

from __future__ import annotations

import math

import pytest
import torch

from rlrun.algorithms.ddpg import DeterministicPolicyLoss, DeterministicQTarget
from rlrun.callbacks import CriticLoss
from rlrun.core.errors import ConfigError, SpaceError
from rlrun.nn import DeterministicPolicy
from rlrun.training.trainer import Trainer

from .fixed import CONTINUOUS, DISCRETE, MIXED, column, critics_of, sgd, write


def policy_of(level):
    """Return a policy that plays the same action whatever it sees."""
    return play(DeterministicPolicy(CONTINUOUS, hidden=()), level)


def play(policy, level):
    with torch.no_grad():
        policy.layers[-1].weight.zero_()
        policy.layers[-1].bias.fill_(math.atanh(level))
    return policy


def made(**options):
    """Return a target whose target networks differ from the networks.

    At next_observation 1 the target policy plays 1/2, so the target critics say 2 + 3/2 + 1 = 4.5 and 7.5.
    """
    critics, policy = critics_of(CONTINUOUS, ([[2.0], [3.0]], [1.0]), ([[2.0], [3.0]], [4.0])), policy_of(0.5)
    target = DeterministicQTarget(critics, policy, discount=0.9, **options)
    write(critics, *[([[0.0], [0.0]], [100.0])] * 2)
    play(policy, -0.9)
    return target


def targets(target, **extra):
    """Return the targets of an interior step and of a terminal one, both with reward 1."""
    batch = target.begin_batch(column(1, 1), torch.ones(2), torch.tensor([False, True]), **extra)
    return batch["q_target"].tolist()


def test_target_is_the_smallest_slow_value_of_the_slow_policys_action():
    assert targets(made()) == pytest.approx([1 + 0.9 * 4.5, 1.0])


def test_discount_of_the_batch_comes_first():
    assert targets(made(), discount=torch.tensor([0.5, 0.5])) == pytest.approx([1 + 0.5 * 4.5, 1.0])


@pytest.mark.parametrize(
    ("target_subset", "level"),
    [(1.0, 0.7), (-2.0, 0.1), (10.0, 1.0), (-10.0, 0.0)],  # σ 0.2: within the limit; 0.5 on both sides, and the bound
)
def test_noise_around_the_targets_action_is_limited(monkeypatch, target_subset, level):
    monkeypatch.setattr("torch.randn_like", lambda like: torch.full_like(like, target_subset))
    q_target = targets(made(noise=0.2, noise_limit=0.5))
    assert q_target == pytest.approx([1 + 0.9 * (2 + 3 * level + 1), 1.0], abs=1e-5)


def test_both_slow_copies_move_together_every_second_update():
    target = made(tau=1.0, every=2)
    levels = []
    for _ in range(2):
        target.end_batch()
        levels.append(float(target.target.get_submodule("policy")(column(1))))
    assert levels == pytest.approx([0.5, -0.9])
    assert float(target.target.get_submodule("critics")(column(1), column(0)).amin()) == 100.0


BATCH = {"next_observation": column(1), "reward": torch.ones(1), "terminated": torch.tensor([False])}


class Alternating:
    """Batches of two groups in turn."""

    def names(self):
        return dict.fromkeys(("default", "other"), tuple(BATCH))

    def __iter__(self):
        return iter([{group: BATCH} for _ in range(3) for group in ("default", "other")])


def test_a_target_network_counts_the_updates_of_its_own_group():
    target = made(tau=1.0, every=2)
    Trainer({"q_target": target}, Alternating()).train()
    policy = target.target.get_submodule("policy")
    assert float(policy(column(1))) == pytest.approx(-0.9)  # moved once, after its second update
    resumed = made(tau=1.0, every=2)
    resumed.load_state_dict(target.state_dict())
    assert resumed.turns == target.turns == 3


def test_loss_of_critics_is_summed_over_them():
    loss = CriticLoss(critics_of(CONTINUOUS, ([[0.0], [1.0]], [0.0]), ([[0.0], [1.0]], [2.0])), sgd)
    # they say 0.5 and 2.5 of the action 0.5, whose target is 1
    assert loss.loss(column(0), column(0.5), torch.tensor([1.0])).tolist() == pytest.approx([0.25 + 2.25])


def policy_loss(**options):
    # at observation 0 and action a: 3 a + 1, and - a + 0.5
    critics = critics_of(CONTINUOUS, ([[0.0], [3.0]], [1.0]), ([[0.0], [-1.0]], [0.5]))
    return DeterministicPolicyLoss(policy_of(0.5), sgd, critics=critics, **options)


@pytest.mark.parametrize(("actor_q", "expected"), [("first", -2.5), ("min", 0.0)])
def test_policy_follows_its_guide(actor_q, expected):
    assert policy_loss(actor_q=actor_q).loss(column(0)).tolist() == pytest.approx([expected], abs=1e-6)


def test_size_of_actions_costs():
    assert policy_loss(action_weight=2.0).loss(column(0)).tolist() == pytest.approx([-2.5 + 2.0 * 0.25])


def test_policy_steps_along_the_gradient_of_the_value_and_leaves_critics_alone():
    loss = policy_loss()
    before = [parameter.clone() for parameter in loss.critics.parameters()]
    bias = loss.policy.layers[-1].bias.item()
    loss.backward(column(0))
    # dQ/da · da/du = 3 (1 - 0.5²), and the learning rate is 1
    assert loss.policy.layers[-1].bias.item() - bias == pytest.approx(3 * 0.75)
    assert all(torch.equal(*pair) for pair in zip(before, loss.critics.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in loss.critics.parameters())


def test_policy_learns_at_every_second_update_also_after_a_resume():
    loss, moves = policy_loss(every=2), []
    for update in range(6):
        before = loss.policy.layers[-1].bias.clone()
        loss.backward(column(0))
        moves.append(not torch.equal(before, loss.policy.layers[-1].bias))
        if update == 2:
            state, loss = loss.state_dict(), policy_loss(every=2)
            loss.load_state_dict(state)
    assert moves == [False, True, False, True, False, True]


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match=r"actor_q: wanted one of first, min, mean, got 'frist'.*first"):
        policy_loss(actor_q="frist")
    for spaces in (DISCRETE, MIXED):
        with pytest.raises(SpaceError, match="actions that are numbers"):
            DeterministicPolicy(spaces)
