"""Priorities, the scale of targets, and the bias of values."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from tests.algorithms.fixed import CONTINUOUS, DISCRETE, column, critics_of, write
from torch import nn

from rlrun.algorithms.actor_critic.dsac import ImplicitQuantileLoss
from rlrun.callbacks import CriticLoss, LossCallback, PriorityFeedback, TargetScale, ValueBias
from rlrun.commands.train import Experiment
from rlrun.config import compose
from rlrun.config.build import Builder
from rlrun.core.errors import ConfigError, RlrunError, WiringError
from rlrun.env import make
from rlrun.memory import RewardClip, RewardScale, Sample, Table
from rlrun.nn import Bins, Critics, ImplicitCritics, Rewards
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

    def error(self, elements, outputs):
        return elements


class Listener:
    """A table whose sampler keeps the priorities that it gets."""

    def __init__(self):
        self.received = []
        self.sampler = self

    def feedback(self, rows, priority):
        self.received.append(priority.tolist())


class Batches:
    """Serve batches of x, each the same in all groups but for a factor, as samples of the group's table."""

    def __init__(self, *batches, groups=("default",), names=("x",), tables=()):
        self.batches, self.groups, self.given, self.tables = batches, groups, names, list(tables)

    def names(self):
        return dict.fromkeys(self.groups, self.given)

    def __iter__(self):
        for batch in self.batches:
            x = torch.tensor(batch)
            yield {
                group: Sample(dict.fromkeys(self.given, 10.0**factor * x), [(self.tables[factor], None)])
                for factor, group in enumerate(self.groups)
            }


def priorities(loader, *, feedback=None, **callbacks):
    """Train; return the priorities that the table got."""
    table = Listener()
    loader.tables = [table]
    Trainer({**callbacks, "priority": PriorityFeedback(table, **(feedback or {}))}, loader).train()
    return table.received


def distance(**options):
    return Distance(nn.Linear(1, 1), sgd, **options)


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        (Batches([1.0, 5.5], [3.0, 2.0]), [[2.0, 2.5], [0.0, 1.0]]),
        (Batches([[1.0, 5.5], [3.0, 2.0]]), [[[2.0, 2.5], [0.0, 1.0]]]),  # windows keep their shape
        (Batches([1.0, 5.5], names=("x", "weight")), [[2.0, 2.5]]),  # weights do not count
    ],
)
def test_priorities_are_errors_of_each_batch(batches, expected):
    assert priorities(batches, loss=distance()) == expected


def test_first_loss_counts_by_default():
    losses = {"first": distance(), "other": Slope(nn.Linear(1, 1), sgd)}
    assert priorities(Batches([1.0, -5.0]), **losses) == [[2.0, 8.0]]
    assert priorities(Batches([1.0, -5.0]), feedback={"loss": "other"}, **losses) == [[1.0, 5.0]]


def test_data_groups_have_separate_tables():
    near, far = Listener(), Listener()
    callbacks = {
        "far": distance(data_group="far"),
        "near": distance(data_group="near"),
        "to_near": PriorityFeedback(near, data_group="near"),
        "to_far": PriorityFeedback(far, data_group="far"),
    }
    Trainer(callbacks, Batches([1.0, 4.0], groups=("near", "far"), tables=(near, far))).train()
    assert (near.received, far.received) == ([[2.0, 1.0]], [[7.0, 37.0]])


@pytest.mark.parametrize("loss", [None, "critic"])
def test_a_second_feedback_of_one_loss_is_refused(loss):
    callbacks = {
        "critic": distance(),
        "one": PriorityFeedback(Listener()),
        "two": PriorityFeedback(Listener(), loss=loss),
    }
    with pytest.raises(WiringError, match=r"callbacks\.one: callbacks\.two gives the errors of callbacks\.critic"):
        Trainer(callbacks, Batches([1.0, 4.0]))
    Trainer(callbacks | {"two": PriorityFeedback(Listener(), loss="other"), "other": distance()}, Batches([1.0, 4.0]))


class Skip(Callback):
    data_group = "default"

    def backward(self, update):
        if update == 2:
            raise SkipBatch


class Rarely(Distance):
    def backward(self, x, weight=None):
        return super().backward(x) if float(x) != 2.0 else None


@pytest.mark.parametrize(
    "callbacks", [{"skip": Skip(), "loss": distance()}, {"loss": Rarely(nn.Linear(1, 1), sgd)}], ids=["skip", "rarely"]
)
def test_batch_without_loss_has_no_errors(callbacks):
    assert priorities(Batches([1.0], [2.0], [5.0]), **callbacks) == [[2.0], [2.0]]


def test_scalar_loss_is_refused():
    class Summed(Distance):
        def loss(self, x):
            return super().loss(x).sum()

    with pytest.raises(RlrunError, match=r"the loss of callbacks\.sum is one number a batch"):
        priorities(Batches([1.0]), sum=Summed(nn.Linear(1, 1), sgd))


@pytest.mark.parametrize(
    ("feedback", "callbacks", "message"),
    [
        (
            {"loss": "q_los"},
            {"q_loss": distance()},
            r"wanted a loss of data group 'default', given q_los; .*'q_loss'\?",
        ),
        ({}, {}, "there is none"),
    ],
)
def test_missing_loss_is_refused(feedback, callbacks, message):
    with pytest.raises(WiringError, match=message):
        priorities(Batches([1.0]), feedback=feedback, **callbacks)


SPACES = make("Pendulum-v1").spaces
SGD = partial(torch.optim.SGD, lr=0.1)


def loss_of(**options):
    return CriticLoss(Critics(SPACES, hidden=[4], members=2), SGD, **options)


def batch(targets):
    count = len(targets)
    target = torch.tensor(targets)
    return {"observation": torch.zeros(count, 3), "action": torch.zeros(count, 1), "q_target": target}


def elements(loss, *scales, **inputs):
    """Return the loss of each element."""
    return loss.loss(**inputs, **dict(*scales))[0]


def errors(loss, *scales, **inputs):
    """Return the TD error of each element, as the priorities get it."""
    loss.watched = True
    assert torch.equal(loss.backward(**inputs, **dict(*scales))["td_error"], loss.elements)
    return loss.elements


def td_errors(huber, biases, targets, **options):
    """Return the error of each target where choice 1 was taken, by critics of values [K] for every observation."""
    loss = CriticLoss(critics_of(DISCRETE, *[([[0.0, 0.0]], list(bias)) for bias in biases]), sgd, huber=huber)
    loss.watched = True
    action = torch.ones(len(targets), dtype=torch.int64)
    loss.backward(column(*[0.0] * len(targets)), action, torch.tensor(targets), **options)
    return loss.elements.tolist()


ONE, TWO = [[7.0, 2.0]], [[7.0, 2.0], [7.0, 4.0]]


@pytest.mark.parametrize(
    ("huber", "biases", "targets", "expected"),
    [
        *((huber, ONE, [2.0, 2.25, 1.0, 12.0], [0.0, 0.25, 1.0, 10.0]) for huber in (None, 0.5, 1.0)),
        (None, TWO, [3.0, 9.0], [1.0, ((49 + 25) / 2) ** 0.5]),  # the root mean square of members
        (1.0, TWO, [13.0], [10.0]),  # large errors are averaged
    ],
)
def test_errors_follow_from_losses(huber, biases, targets, expected):
    assert td_errors(huber, biases, targets) == pytest.approx(expected, abs=1e-5)


def above(value, target):
    """Return the distance of values that are too high."""
    return (value - target).relu()


@pytest.mark.parametrize(("target", "loss", "error"), [(1.0, 4.0, 2.0), (3.0, 1.0, 1.0), (9.0, 0.0, 6.0)])
def test_distances_of_ones_own(target, loss, error):
    critics = critics_of(DISCRETE, *[([[0.0, 0.0]], list(bias)) for bias in TWO])  # values 2 and 4
    callback = CriticLoss(critics, sgd, distance=above)
    callback.watched = True
    elements, outputs, _ = callback.loss(column(0.0), torch.ones(1, dtype=torch.int64), torch.tensor([target]))
    assert elements.tolist() == [loss]  # summed over members
    assert callback.error(elements, outputs).tolist() == [error]


@pytest.mark.parametrize("huber", [0.5, 2.0])
def test_distances_equal_hubers(huber):
    quantiles = Critics(CONTINUOUS, hidden=(), members=2, quantiles=3)
    reward_quantiles = Critics(CONTINUOUS, hidden=(), members=2, value_head=Rewards([1.0, 2.0]))
    inputs = column(0.5, -0.2), column(0.1, 0.3)
    smooth, delta = (kind(reduction="none", **{key: huber}) for kind, key in KINDS)
    for critics, distance, target in (
        (quantiles, smooth, torch.randn(2, 4)),  # Huber's divided by the threshold
        (quantiles, smooth, torch.randn(2)),
        (reward_quantiles, delta, torch.randn(2, 2)),
        (critics_of(CONTINUOUS, ([[1.0], [1.0]], [0.0])), delta, torch.randn(2)),
    ):
        wanted, got = (
            CriticLoss(critics, sgd, **{key: value}) for key, value in (("huber", huber), ("distance", distance))
        )
        torch.testing.assert_close(got.loss(*inputs, target)[0], wanted.loss(*inputs, target)[0])
    implicit = ImplicitCritics(CONTINUOUS, hidden=(4,), members=2)
    options = {"fractions": 3, "fixed": True}
    losses = [
        ImplicitQuantileLoss(implicit, sgd, **options, huber=h, distance=d) for h, d in ((huber, None), (None, smooth))
    ]
    given = *inputs, torch.randn(2, 4), torch.full((2, 4), 0.25)
    torch.testing.assert_close(losses[1].loss(*given)[0], losses[0].loss(*given)[0])


KINDS = (nn.SmoothL1Loss, "beta"), (nn.HuberLoss, "delta")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distance": nn.L1Loss()}, r"distance: wanted that of each entry \[2, 3\], .*; got \[\]"),
        (
            {"distance": nn.L1Loss(reduction="none"), "huber": 1.0},
            "distance: it replaces huber=1; add algorithm.huber=null",
        ),
        ({"distance": "l1"}, "such as .*SmoothL1Loss.*, got 'l1'"),
        ({"distance": torch.sqrt}, "distance: TypeError: sqrt"),
    ],
)
def test_distances_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        CriticLoss(critics_of(CONTINUOUS, ([[1.0], [1.0]], [0.0])), sgd, **options)


def test_bins_have_no_distance():
    with pytest.raises(ConfigError, match="bins are learned by classification"):
        CriticLoss(
            Critics(CONTINUOUS, hidden=(), value_head=Bins(5, least=0.0, largest=1.0)),
            sgd,
            distance=nn.L1Loss(reduction="none"),
        )


@pytest.mark.parametrize("algorithm", ["sac", "qrsac", "dsac", "taac", "mdq", "ddpg", "iql", "sarsa", "oac"])
def test_every_loss_of_critics_takes_a_distance(algorithm):
    distance = "+callbacks.q_loss.distance={_target_: torch.nn.L1Loss, reduction: none}"
    config = compose([f"algorithm={algorithm}", "env=pendulum", "preset=null", "algorithm.huber=null", distance]).config
    loss = Builder(config).get("callbacks.q_loss")
    assert isinstance(loss.measure["by"], nn.L1Loss)


def test_quantiles_differ_by_their_means():
    flat = [[0.0, 0.0], [0.0, 0.0]]
    critics = Critics(CONTINUOUS, hidden=(), members=2, quantiles=2)
    loss = CriticLoss(write(critics, (flat, [0.0, 1.0]), (flat, [2.0, 2.0])), sgd, huber=1.0)
    loss.watched = True
    loss.backward(column(0), column(0), torch.tensor([[2.0, 5.0]]))
    assert loss.elements.tolist() == pytest.approx([(3.0 + 1.5) / 2])  # from 3.5 to 0.5 and 2


def test_differences_are_scaled_by_running_deviation():
    loss = loss_of()
    scale, inputs = TargetScale(loss), batch([-100.0, 300.0])
    plain = elements(loss, **inputs)
    given = scale.begin_batch(inputs["q_target"])  # mean 100, deviation 200
    torch.testing.assert_close(elements(loss, given, **inputs), plain / 200.0**2)
    scale.begin_batch(torch.tensor([500.0]))  # the second of updates at speed 8 counts 8 / 9
    mean, square = 100.0 / 9 + 500.0 * 8 / 9, 50_000.0 / 9 + 250_000.0 * 8 / 9
    assert float(scale.metrics["target/mean"]) == pytest.approx(mean, rel=1e-5)
    assert float(scale.metrics["target/deviation"]) == pytest.approx((square - mean**2) ** 0.5, rel=1e-5)


@pytest.mark.parametrize("huber", [None, 1.0])
def test_errors_have_units_of_rewards(huber):
    inputs, losses = batch([50.0, -70.0]), [loss_of(huber=huber) for _ in range(2)]
    losses[1].network.load_state_dict(losses[0].network.state_dict())
    before = errors(losses[0], **inputs)
    after = errors(losses[1], TargetScale(losses[1]).begin_batch(inputs["q_target"]), **inputs)
    torch.testing.assert_close(after, before, rtol=0.05, atol=0.0)  # of two members with nearly the same error


def test_padding_leaves_target_scale_alone():
    padded, plain = TargetScale(loss_of()), TargetScale(loss_of())
    windows, valid = torch.tensor([[1.0, 5.0], [3.0, 900.0]]), torch.tensor([[True, True], [True, False]])
    scales = padded.begin_batch(windows, valid), plain.begin_batch(torch.tensor([1.0, 5.0, 3.0]))
    assert torch.equal(*[scale["target_scale"] for scale in scales])


def test_target_scale_without_reader_is_refused():
    callbacks = {"loss": distance(), "scale": TargetScale(loss_of())}
    with pytest.raises(WiringError, match=r"callbacks\.scale: nobody asks for 'target_scale'"):
        Trainer(callbacks, Batches([1.0], names=("x", "q_target")))


def test_target_scale_needs_scalar_critics():
    with pytest.raises(ConfigError, match="wanted the loss of critics, got a LossCallback"):
        TargetScale(LossCallback(torch.nn.Linear(1, 1), SGD))
    bins = CriticLoss(Critics(SPACES, hidden=[4], value_head=Bins(11, least=-1.0, largest=1.0)), SGD)
    with pytest.raises(ConfigError, match="bins are learned by classification"):
        TargetScale(bins)
    with pytest.raises(ConfigError, match="speed: wanted a number above 0, got 0"):
        TargetScale(loss_of(), speed=0)


LEFT = 5.0  # value of the first choice by the first critic


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

    class Records:
        def write(self, step, update, metrics, *, counted):
            records.append((step, update, metrics, counted))

    bias = ValueBias(
        env,
        AlwaysLeft(),
        Table(spaces=env.spaces, length=10, adaptors=adaptors),
        discount=0.5,
        every=10,
        logger=Records(),
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


def test_smallest_value_is_compared_with_return():
    metrics = measured(episodes=3)
    returns = [2.0 - 2.0 ** (1 - steps) for length in lengths(3) for steps in range(1, length + 1)]  # 1 + 1/2 + 1/4 …
    expected = sum(returns) / len(returns)
    assert metrics == pytest.approx(
        {"value_bias/value": LEFT, "value_bias/return": expected, "value_bias/mean": LEFT - expected}
    )


def test_rewards_are_adapted_as_in_learning():
    plain, scaled = measured(episodes=2), measured(RewardScale(3.0), RewardClip(-1.0, 2.0), episodes=2)
    assert scaled["value_bias/return"] == pytest.approx(2.0 * plain["value_bias/return"])
    assert scaled["value_bias/value"] == plain["value_bias/value"]


def test_cut_episode_is_bootstrapped():
    metrics = measured(episodes=3, max_steps=3)  # 1 + (1 + 5 / 2) / 2 and 1 + 5 / 2
    assert metrics["value_bias/return"] == pytest.approx((2.75 + 3.5) / 2)


def test_value_bias_needs_critics():
    env = make("CartPole-v1")
    bias = ValueBias(env, AlwaysLeft(), Table(spaces=env.spaces, length=10), discount=0.9, every=1, logger=None)
    bias.name = "value_bias"
    with pytest.raises(WiringError, match=r"callbacks\.value_bias: no critics are trained"):
        bias.begin_training({})


MORE = "an observation and an action as inputs, and these need more"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm=action_repeat"], MORE),
        (["algorithm=sac", "+with=rnd"], r"callbacks\.value_bias: Intrinsic adds rewards that no evaluated"),
    ],
)
def test_unsuited_critics_are_refused(overrides, message):
    callbacks = Experiment(compose([*overrides, "env=pendulum", "+with=value_bias"])).trainer.callbacks
    with pytest.raises(WiringError, match=message):
        callbacks["value_bias"].begin_training(callbacks)
