"""Values against the returns that follow."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from rlrun import train
from rlrun.callbacks import CriticLoss, ValueBias
from rlrun.config import compose
from rlrun.env import make
from rlrun.errors import WiringError
from rlrun.experiment import Experiment
from rlrun.memory import RewardClip, RewardScale, Table
from rlrun.nn import Critics

LEFT = 5.0  # what the first critic says of the one choice, and the second says less of the other


class AlwaysLeft:
    outputs = ("action",)

    def __call__(self, observation, state=None, *, explore=True):
        assert not explore
        return {"action": np.zeros(len(observation), np.int64)}


class Fixed(Critics):
    def forward(self, observation, c=None):
        lanes = len(observation)
        return torch.stack(
            (torch.tensor([LEFT, 1.0]).expand(lanes, 2), torch.tensor([LEFT + 1.0, 0.0]).expand(lanes, 2))
        )


def measured(*adaptors, **options):
    env = make("CartPole-v1")
    critics = Fixed(env.spaces, hidden=[4])
    records = []

    class Told:
        def write(self, step, update, metrics, *, counted):
            records.append((step, update, metrics, counted))

    bias = ValueBias(
        env,
        AlwaysLeft(),
        Table(spaces=env.spaces, length=10, adaptors=adaptors),
        discount=0.5,
        every=10,
        logger=Told(),
        **options,
    )
    bias.begin_training({"q_loss": CriticLoss(critics, torch.optim.Adam)})
    for step in (4, 9, 10, 19, 23):
        bias.end_cycle(step // 2, step)
    bias.end_training(None)
    assert [(step, update, counted) for step, update, _, counted in records] == [(10, 5, True), (23, 11, True)]
    assert records[0][2] == records[1][2]
    return records[0][2]


def lengths(episodes):
    env, counts = gymnasium.make("CartPole-v1"), []
    for seed in range(episodes):
        env.reset(seed=seed)
        ended, count = False, 0
        while not ended:
            ended, count = env.step(0)[2], count + 1
        counts.append(count)
    return counts


def test_the_smallest_value_of_what_was_done_is_compared_with_what_followed():
    metrics = measured(episodes=3)
    returns = [2.0 - 2.0 ** (1 - steps) for length in lengths(3) for steps in range(1, length + 1)]  # 1 + 1/2 + 1/4 …
    expected = sum(returns) / len(returns)
    assert metrics == pytest.approx(
        {"value_bias/value": LEFT, "value_bias/return": expected, "value_bias/mean": LEFT - expected}
    )


def test_rewards_are_compared_as_they_are_learned_from():
    plain, scaled = measured(episodes=2), measured(RewardScale(3.0), RewardClip(-1.0, 2.0), episodes=2)
    assert scaled["value_bias/return"] == pytest.approx(2.0 * plain["value_bias/return"])
    assert scaled["value_bias/value"] == plain["value_bias/value"]


def test_what_no_episode_pays_is_refused():
    words = ["algorithm=sac", "env=pendulum", "+with=value_bias", "+with=rnd", "algorithm.hidden=[4]"]
    experiment = Experiment(compose(words))
    with pytest.raises(WiringError, match=r"callbacks\.value_bias: values of what Intrinsic adds to rewards"):
        experiment.trainer.callbacks["value_bias"].begin_training(experiment.trainer.callbacks)


def test_what_is_missing_of_an_episode_is_bootstrapped():
    metrics = measured(episodes=3, max_steps=3)  # 1 + (1 + 5 / 2) / 2 and 1 + 5 / 2
    assert metrics["value_bias/return"] == pytest.approx((2.75 + 3.5) / 2)


def test_someone_must_learn_critics():
    env = make("CartPole-v1")
    bias = ValueBias(env, AlwaysLeft(), Table(spaces=env.spaces, length=10), discount=0.9, every=1, logger=None)
    bias.name = "value_bias"
    with pytest.raises(WiringError, match=r"callbacks\.value_bias: no critics are trained"):
        bias.begin_training({})


@pytest.mark.parametrize("algorithm", ["action_repeat", "taac_l", "sarsa_recurrent"])
def test_critics_that_want_to_know_more_are_refused(algorithm):
    experiment = Experiment(compose([f"algorithm={algorithm}", "env=pendulum", "+with=value_bias"]))
    callbacks = experiment.trainer.callbacks
    with pytest.raises(WiringError, match="an observation and an action, and these want more"):
        callbacks["value_bias"].begin_training(callbacks)


class Noise(gymnasium.Env):
    """Whatever is done, rewards are noise around zero, so all values are 0."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._draw(), {}

    def step(self, action):
        self.steps += 1
        return self._draw(), float(self.np_random.normal()), False, self.steps >= 20, {}

    def _draw(self):
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)


def test_one_critic_over_estimates_more_than_the_smaller_of_two(tmp_path: Path):
    words = ["algorithm=td3", "env=gym", f"env.target={__name__}.Noise", "algorithm.hidden=[32,32]", "+with=value_bias"]
    words += ["algorithm.discount=0.9", "algorithm.batch_size=32", "algorithm.warmup_steps=100", "stop.env_steps=600"]
    words += ["algorithm.target_rate=0.05", "value_bias.every=600", "value_bias.episodes=16", "evaluation.every=0"]
    bias = {}
    for members in (1, 2):
        run = train([*words, f"algorithm.ensemble={members}"], run_dir=tmp_path / str(members)).run_dir
        records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        bias[members] = next(record["value_bias/mean"] for record in records if "value_bias/mean" in record)
    assert bias[1] > bias[2] + 0.05
