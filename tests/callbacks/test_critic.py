"""What goes with the losses of critics: priorities, the scale of targets, values against returns."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from rlrun import train
from rlrun.callbacks import CriticLoss, LossCallback, PriorityFeedback, TargetScale, ValueBias
from rlrun.commands.train import Experiment
from rlrun.config import compose
from rlrun.core.errors import ConfigError, RlrunError, WiringError
from rlrun.env import make
from rlrun.memory import RewardClip, RewardScale, Table
from rlrun.nn import Bins, Critics
from rlrun.training.callback import Callback, SkipBatch
from rlrun.training.trainer import Trainer

sgd = partial(torch.optim.SGD, lr=0.0)


class Distance(LossCallback):
    """The loss of an element is the square of its distance from three."""

    def loss(self, x):
        return (x - 3.0 + 0.0 * self.network(x[..., None])[..., 0]).square()


class Slope(LossCallback):
    def loss(self, x):
        return x.abs() + 0.0 * self.network(x[..., None])[..., 0]

    def error(self, elements):
        return elements


class Listener:
    """Remembers what it was told."""

    def __init__(self):
        self.told = []

    def feedback(self, priority):
        self.told.append(priority.tolist())


class Batches:
    """Serve batches of x, each the same in all groups but for a factor."""

    def __init__(self, *batches, groups=("default",), names=("x",)):
        self.batches, self.groups, self.given = batches, groups, names

    def names(self):
        return dict.fromkeys(self.groups, self.given)

    def __iter__(self):
        for batch in self.batches:
            x = torch.tensor(batch)
            yield {group: dict.fromkeys(self.given, 10.0**factor * x) for factor, group in enumerate(self.groups)}


def told(loader, *, feedback=None, **callbacks):
    """Train; return what the table was told."""
    table = Listener()
    Trainer({**callbacks, "priority": PriorityFeedback(table, **(feedback or {}))}, loader).train()
    return table.told


def distance(**options):
    return Distance(nn.Linear(1, 1), sgd, **options)


def test_table_is_told_the_errors_of_each_batch():
    assert told(Batches([1.0, 5.5], [3.0, 2.0]), loss=distance()) == [[2.0, 2.5], [0.0, 1.0]]


def test_errors_of_windows_keep_their_shape():
    assert told(Batches([[1.0, 5.5], [3.0, 2.0]]), loss=distance()) == [[[2.0, 2.5], [0.0, 1.0]]]


def test_weights_do_not_count():
    assert told(Batches([1.0, 5.5], names=("x", "weight")), loss=distance()) == [[2.0, 2.5]]


def test_first_loss_counts_unless_another_is_named():
    losses = {"first": distance(), "other": Slope(nn.Linear(1, 1), sgd)}
    assert told(Batches([1.0, -5.0]), **losses) == [[2.0, 8.0]]
    assert told(Batches([1.0, -5.0]), feedback={"loss": "other"}, **losses) == [[1.0, 5.0]]


def test_each_data_group_has_a_table_of_its_own():
    near, far = Listener(), Listener()
    callbacks = {
        "far": distance(data_group="far"),
        "near": distance(data_group="near"),
        "to_near": PriorityFeedback(near, data_group="near"),
        "to_far": PriorityFeedback(far, data_group="far"),
    }
    Trainer(callbacks, Batches([1.0, 4.0], groups=("near", "far"))).train()
    assert (near.told, far.told) == ([[2.0, 1.0]], [[7.0, 37.0]])


def test_a_batch_that_is_skipped_has_no_errors():
    class Skip(Callback):
        data_group = "default"

        def backward(self, update):
            if update == 2:
                raise SkipBatch

    assert told(Batches([1.0], [2.0], [5.0]), skip=Skip(), loss=distance()) == [[2.0], [2.0]]


def test_a_loss_without_a_turn_has_no_errors():
    class Every(Distance):
        def backward(self, x, weight=None):
            return super().backward(x) if float(x) != 2.0 else None

    assert told(Batches([1.0], [2.0], [5.0]), loss=Every(nn.Linear(1, 1), sgd)) == [[2.0], [2.0]]


def test_one_loss_a_batch_is_refused():
    class Summed(Distance):
        def loss(self, x):
            return super().loss(x).sum()

    with pytest.raises(RlrunError, match=r"the loss of callbacks\.sum is one number a batch"):
        told(Batches([1.0]), sum=Summed(nn.Linear(1, 1), sgd))


def test_unknown_loss_is_refused_with_the_nearest():
    wanted = (
        r"callbacks.priority.loss: wanted a loss of data group 'default', given q_los; .* \(did you mean 'q_loss'\?\)"
    )
    with pytest.raises(WiringError, match=wanted):
        told(Batches([1.0]), feedback={"loss": "q_los"}, q_loss=distance())


def test_missing_loss_is_refused():
    with pytest.raises(WiringError, match="there is none"):
        told(Batches([1.0]))


def test_nothing_is_kept_where_nobody_watches():
    loss = distance()
    loss.backward(torch.ones(3))
    assert loss.elements is None


SPACES = make("Pendulum-v1").spaces
SGD = partial(torch.optim.SGD, lr=0.1)


def loss_of(**options):
    return CriticLoss(Critics(SPACES, hidden=[4], members=2), SGD, **options)


def batch(targets):
    count = len(targets)
    target = torch.tensor(targets)
    return {"observation": torch.zeros(count, 3), "action": torch.zeros(count, 1), "q_target": target}


def test_differences_are_divided_by_the_deviation_of_targets_so_far():
    loss = loss_of()
    scale, inputs = TargetScale(loss), batch([-100.0, 300.0])
    plain = loss.loss(**inputs)
    scale.begin_batch(inputs["q_target"])  # mean 100, deviation 200
    torch.testing.assert_close(loss.loss(**inputs), plain / 200.0**2)
    scale.begin_batch(torch.tensor([500.0]))  # the second of updates at speed 8 counts 8 / 9
    mean, square = 100.0 / 9 + 500.0 * 8 / 9, 50_000.0 / 9 + 250_000.0 * 8 / 9
    assert float(scale.metrics["target/mean"]) == pytest.approx(mean, rel=1e-5)
    assert float(scale.metrics["target/deviation"]) == pytest.approx((square - mean**2) ** 0.5, rel=1e-5)


@pytest.mark.parametrize("huber", [None, 1.0])
def test_errors_are_told_in_the_units_of_rewards(huber):
    loss = loss_of(huber=huber)
    inputs = batch([50.0, -70.0])
    before = loss.error(loss.loss(**inputs))
    TargetScale(loss).begin_batch(inputs["q_target"])
    after = loss.error(loss.loss(**inputs))
    torch.testing.assert_close(after, before, rtol=0.05, atol=0.0)  # of two members with nearly the same error


def test_padding_leaves_target_scale_alone():
    padded, plain = TargetScale(loss_of()), TargetScale(loss_of())
    padded.begin_batch(torch.tensor([[1.0, 5.0], [3.0, 900.0]]), torch.tensor([[True, True], [True, False]]))
    plain.begin_batch(torch.tensor([1.0, 5.0, 3.0]))
    assert torch.equal(padded.loss.scale, plain.loss.scale)


def test_target_scale_continues_after_load():
    first, second = TargetScale(loss_of()), TargetScale(loss_of())
    first.begin_batch(torch.tensor([1.0, 5.0]))
    second.load_state_dict(first.state_dict())
    for scale in (first, second):
        scale.begin_batch(torch.tensor([7.0, 9.0]))
    assert torch.equal(first.loss.scale, second.loss.scale)


def test_what_has_no_scale_is_refused():
    with pytest.raises(ConfigError, match="wanted the loss of critics, got a LossCallback"):
        TargetScale(LossCallback(torch.nn.Linear(1, 1), SGD))
    bins = CriticLoss(Critics(SPACES, hidden=[4], value_head=Bins(11, least=-1.0, largest=1.0)), SGD)
    with pytest.raises(ConfigError, match="bins are learned by classification"):
        TargetScale(bins)
    with pytest.raises(ConfigError, match="speed: wanted a number above 0, got 0"):
        TargetScale(loss_of(), speed=0)


LEFT = 5.0  # what the first critic says of the one choice, and the second says less of the other


class AlwaysLeft:
    outputs = ("action",)

    def __call__(self, observation, state=None, *, explore=True):
        assert not explore
        return {"action": np.zeros(len(observation), np.int64)}


class Fixed(Critics):
    def forward(self, observation, c=None):
        envs = len(observation)
        return torch.stack((torch.tensor([LEFT, 1.0]).expand(envs, 2), torch.tensor([LEFT + 1.0, 0.0]).expand(envs, 2)))


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
        episode_end, count = False, 0
        while not episode_end:
            episode_end, count = env.step(0)[2], count + 1
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
    overrides = ["algorithm=sac", "env=pendulum", "+with=value_bias", "+with=rnd", "algorithm.hidden=[4]"]
    experiment = Experiment(compose(overrides))
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
    overrides = [
        "algorithm=td3",
        "env=gym",
        f"env.target={__name__}.Noise",
        "algorithm.hidden=[32,32]",
        "+with=value_bias",
    ]
    overrides += [
        "algorithm.discount=0.9",
        "algorithm.batch_size=32",
        "algorithm.warmup_steps=100",
        "stop.env_steps=600",
    ]
    overrides += ["algorithm.tau=0.05", "value_bias.every=600", "value_bias.episodes=16", "evaluation.every=0"]
    bias = {}
    for members in (1, 2):
        run = train([*overrides, f"algorithm.ensemble={members}"], run_dir=tmp_path / str(members)).run_dir
        records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        bias[members] = next(record["value_bias/mean"] for record in records if "value_bias/mean" in record)
    assert bias[1] > bias[2] + 0.05
