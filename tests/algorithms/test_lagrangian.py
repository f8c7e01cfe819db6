"""Weights that hold rewards above thresholds, by hand and in whole runs."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import rlrun
from rlrun.algorithms.actor_critic.lagrangian import LagrangianWeights, RewardWeights
from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.spaces import Box, Spaces
from rlrun.env.toys import ConstrainedBandit

from .runs import REPLAY, ROLLOUT

pytestmark = pytest.mark.usefixtures("folder")

LINE = Box((1,), np.full(1, -1.0, np.float32), np.ones(1, np.float32))
SGD = partial(torch.optim.SGD, lr=1.0)


def paid(count=2):
    return SimpleNamespace(reward_sum=np.zeros(count), reward_steps=0)


def pay(seen, *rewards):
    """Add the rewards of single steps, [R] each."""
    for reward in rewards:
        seen.reward_sum = seen.reward_sum + np.array(reward, float)
        seen.reward_steps += 1


def weights(count=2, **options):
    return RewardWeights(Spaces(LINE, LINE, rewards=count), **options)


def learner(network, thresholds, *, optimizer=SGD, **options):
    seen = paid(len(network.raw))
    lagrangian = LagrangianWeights(network, optimizer, thresholds=thresholds, paid=seen, **options)
    return lagrangian, seen


def test_weights_begin_as_given():
    assert weights().raw.tolist() == pytest.approx([0.541325] * 2, abs=1e-6)  # softplus of it is 1
    assert weights(initial=[3.0, 1.0])().tolist() == pytest.approx([0.75, 0.25])
    large = weights(initial=30.0, normalize=False)
    assert large.raw.tolist() == [30.0, 30.0]  # beyond 20 softplus is the identity
    assert large().tolist() == [30.0, 30.0]


def test_weights_step_by_their_gradient():
    network = weights()
    lagrangian, seen = learner(network, [None, -0.25], optimizer=partial(torch.optim.SGD, lr=0.5))
    before = network.raw.detach().clone()
    pay(seen, [5.0, -1.0], [7.0, 0.0])  # mean cost 0.5: 0.25 too much
    lagrangian.end_batch(2)
    expected = before[1] + 0.5 * 0.25 * torch.sigmoid(before[1])
    assert network.raw.tolist() == pytest.approx([float(before[0]), float(expected)])
    assert lagrangian.metrics["reward_mean/1"] == -0.5


def test_exponential_weights_move_by_factors():
    network = weights(initial=[1.0, 2.0], normalize=False, transform="exp", largest=3.0)
    assert network().tolist() == pytest.approx([1.0, 2.0])
    lagrangian, seen = learner(network, [None, 0.0], optimizer=partial(torch.optim.SGD, lr=0.1))
    pay(seen, [0.0, -0.5])
    lagrangian.end_batch(1)  # the slope of exp is the weight itself
    assert network().tolist() == pytest.approx([1.0, 2.0 * np.exp(0.1 * 0.5 * 2.0)])
    pay(seen, [0.0, -50.0])
    lagrangian.end_batch(2)
    assert network().tolist() == pytest.approx([1.0, 3.0])
    with pytest.raises(ConfigError, match=r"lagrangian\.transform: wanted one of softplus, exp, got 'log'"):
        weights(transform="log")


def test_means_are_of_new_steps():
    lagrangian, seen = learner(weights(), [None, 0.0])
    for number, rewards in enumerate([[[1.0, 1.0]], [[2.0, 4.0], [2.0, 6.0]], [[0.0, 3.0]]], 1):
        pay(seen, *rewards)
        lagrangian.end_batch(10 * number)
        assert lagrangian.metrics["reward_mean/1"] == np.mean(rewards, 0)[1]


def test_exponential_mean_begins_unbiased():
    lagrangian, seen = learner(weights(), [None, 0.0], rate=0.1)
    means = []
    for number, reward in enumerate([1.0, 2.0, 3.0]):
        pay(seen, [0.0, reward])
        lagrangian.end_batch(number)
        means.append(lagrangian.metrics["reward_mean/1"])
    assert means == pytest.approx([1.0, 1.526316, 2.070110], abs=1e-6)


def test_weights_move_once_a_step():
    """A minibatch-epoch loop has many updates for the same rewards."""
    network = weights()
    lagrangian, seen = learner(network, [None, 0.0])
    pay(seen, [0.0, -1.0])
    lagrangian.end_batch(8)
    once = network.raw.tolist()
    for _ in range(5):
        lagrangian.end_batch(8)
    assert network.raw.tolist() == once
    pay(seen, [0.0, -1.0])
    lagrangian.end_batch(16)
    assert network.raw.tolist() != once


def test_a_weight_has_an_upper_bound():
    network = weights(normalize=False, largest=2.0)
    lagrangian, seen = learner(network, [None, 0.0], optimizer=partial(torch.optim.SGD, lr=100.0))
    pay(seen, [0.0, -1.0])
    lagrangian.end_batch(1)
    assert network().tolist() == pytest.approx([1.0, 2.0])


BANDIT = ("env=constrainedbandit", "lagrangian.thresholds=[null,-0.25]")
FAMILIES = {
    "sac-n-step": ("algorithm=sac", "algorithm.n_step=3", *REPLAY),
    "ppo": ("algorithm=ppo", "algorithm.batch_size=16", *ROLLOUT),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_any_algorithm_learns_weighed_sums(family, tmp_path):
    overrides = [*FAMILIES[family], *BANDIT, "+with=lagrangian", "lagrangian.lr=0.5"]
    result = rlrun.train(overrides, run_dir=tmp_path / "run")
    callbacks = result.trainer.callbacks
    network, collector = callbacks["reward_weights"].network, callbacks["collector"]
    weight = network().detach()
    assert float(weight[1]) > 0.55  # it began at a half, and the cost is too high by far
    adaptor = next(part for part in _adaptors(result.trainer.loader) if type(part).__name__ == "WeighRewards")
    rewards = torch.tensor([[-1.0, -0.5], [-0.25, -1.0]])
    assert adaptor({"reward": rewards}, None)["reward"].tolist() == pytest.approx((rewards @ weight).tolist())
    assert collector.tally.reward_steps == collector.steps
    assert collector.metrics["episode/return_1"] < 0.0
    if family.startswith("sac"):
        table = result.trainer.loader.table
        batch = table.sample(8)
        assert batch["reward"].shape == (8,)
        stored = (rows := batch.parts[0][1]).stored("reward", rows.index)
        assert stored.shape == (8, 2)
        assert torch.allclose(batch["reward"], stored @ weight)  # episodes of one step: nothing else is summed


def _adaptors(loader):
    return loader.adaptors if hasattr(loader, "adaptors") else loader.table.adaptors


CONSTRAINED = "env=constrainedbandit"
UNWEIGHED = r"reward has 2 numbers.*\+with=reward_weights or \+with=lagrangian"
UPDATED = "memory.adaptors.reward_norm.update=rollout"
CRITICS = (CONSTRAINED, "+with=[reward_weights,reward_critics]")
WEIGHED = "+with=reward_weights"
VALUES = (CONSTRAINED, "+with=[reward_weights,reward_values]")


@pytest.mark.parametrize(
    ("algorithm", "overrides", "message"),
    [
        ("sac", (CONSTRAINED,), UNWEIGHED),
        ("ppo", (CONSTRAINED,), UNWEIGHED),
        ("sac", ("env=pendulum", "+with=reward_weights"), "2 weights, and the reward has one plain number"),
        ("sac", (CONSTRAINED, "+with=reward_weights", "reward_weights=[1]"), "1 weight, and the reward has 2"),
        ("sac", ("env=pendulum", "+with=lagrangian", "lagrangian.thresholds=[null,0]"), "one plain number a step"),
        ("sac", (*BANDIT, "+with=lagrangian_evaluated", "evaluation.every=0"), "evaluation.every=0"),
        ("sac", (*BANDIT, "+with=[lagrangian,reward_norm]", UPDATED), "update=replay"),
        ("sac", (*BANDIT, "+with=lagrangian", "memory.export.path=minari:here/two-v0"), "one reward a step"),
        ("seditor", (*BANDIT, "+with=reward_critics"), "needs it, and algorithm=seditor lacks it"),
        ("dsac", (*CRITICS, "algorithm.discount=[0.9]"), "wanted one number, or one for each of 2 rewards"),
        (
            "dsac",
            ("env=pendulum", "+with=hlgauss", "hlgauss.least=0", "hlgauss.largest=1"),
            r"remove algorithm\.value_head \(\+with=hlgauss\)",
        ),
        (
            "ppo",
            CRITICS,
            r"q_loss.value_head.*leads nowhere; \+with=reward_critics needs it, and algorithm=ppo lacks it",
        ),
        (
            "sac",
            VALUES,
            r"advantages.rewards.*leads nowhere; \+with=reward_values needs it, and algorithm=sac lacks it",
        ),
        ("a2c", (CONSTRAINED, WEIGHED, "algorithm.discount=[0.9,0.5]"), "wanted one number, as one value is learned"),
        ("sac", (*CRITICS, "algorithm.discount=[0.9,0.5,0.1]"), "one for each of 2 rewards"),
        ("ppo", (*VALUES, "algorithm.discount=[0.9,0.5]"), r"algorithm\.discount: wanted a number, got \[0\.9, 0\.5\]"),
        (
            "sac",
            (CONSTRAINED, "+with=reward_critics"),
            r"memory.adaptors.reward_weights: \+with=reward_critics needs it.*add \+with=reward_weights, lagrangian or",
        ),
        ("sac", (*CRITICS, "+with=target_scale"), "no common deviation"),
        ("sac", (*CRITICS, "+with=rnd"), "Intrinsic adds to one reward a step, and they stay 2"),
        ("ppo", (*VALUES, "+with=rnd"), "remove .*reward_values"),
        ("sac", (*CRITICS, "+with=value_bias"), "one reward a step"),
    ],
)
def test_bad_overrides_are_refused(algorithm, overrides, message):
    with pytest.raises((ConfigError, SpaceError), match=message):
        rlrun.train([f"algorithm={algorithm}", *overrides], run_dir="run")
    assert not Path("run").exists()


def test_weights_come_before_other_adaptors(tmp_path):
    overrides = ["algorithm=sac", "+with=[rnd,reward_norm,lagrangian]", *BANDIT, *REPLAY]
    table = rlrun.train(overrides, run_dir=tmp_path / "run").trainer.loader.table
    kinds = [type(adaptor).__name__ for adaptor in table.adaptors]
    assert kinds.index("WeighRewards") == 0
    assert table.sample(4)["reward"].shape == (4,)


def test_forks_have_their_own_rewards(tmp_path):
    overrides = ["algorithm=sac", "+with=lagrangian", *BANDIT, *REPLAY]
    rlrun.train(overrides, run_dir=tmp_path / "run")
    forked = rlrun.train([], start=str(tmp_path / "run"), run_dir=tmp_path / "fork").trainer
    collector, lagrangian = (forked.callbacks[name] for name in ("collector", "reward_weights"))
    assert collector.tally.reward_steps == collector.steps == 12
    assert collector.tally.reward_sum[1] / collector.tally.reward_steps < 0.0
    assert lagrangian._read[1] == collector.tally.reward_steps
    assert -1.0 <= lagrangian.metrics["reward_mean/1"] <= 0.0


def test_evaluations_can_hold_the_constraint(tmp_path):
    overrides = ["algorithm=sac", "+with=lagrangian_evaluated", *BANDIT, *REPLAY, "lagrangian.lr=0.5"]
    overrides += ["evaluation.every=44", "evaluation.episodes=3"]
    result = rlrun.train(overrides, run_dir=tmp_path / "run")
    evaluator, lagrangian = (result.trainer.callbacks[name] for name in ("evaluation", "reward_weights"))
    assert lagrangian.paid is evaluator
    assert evaluator.reward_steps == 3 * (evaluator.reward_steps // 3) > 0
    assert lagrangian.metrics["reward_mean/1"] == pytest.approx(evaluator.last["mean_totals"][1], abs=0.5)
    assert float(lagrangian.network().detach()[1]) != 0.5


def test_fixed_weights_have_known_optima():
    env = ConstrainedBandit()
    actions = np.linspace(-1.0, 1.0, 401)
    sums = [np.dot([1.0, 2.0], env.step(np.array([action]))[1]) for action in actions]
    assert actions[int(np.argmax(sums))] == pytest.approx(1.0 - 2.0 / 4.0)
    sums = [np.dot([1 / 7, 6 / 7], env.step(np.array([action]))[1]) for action in actions]
    assert actions[int(np.argmax(sums))] == pytest.approx(-0.5)
    on_cliff = [ConstrainedBandit(cliff=0.5).step(np.array([action]))[1].tolist() for action in (0.5, 0.6)]
    assert on_cliff == [[-0.25, 0.0], [pytest.approx(-0.16), -1.0]]
