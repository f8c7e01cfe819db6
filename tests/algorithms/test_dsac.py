"""Distributional soft actor-critic, worked by hand on critics whose quantiles are linear."""

import math

import pytest
import torch
import torch.nn.functional as F

from rlrun import ops
from rlrun.algorithms.actor_critic.dsac import ImplicitQuantileLoss, ImplicitQuantilePolicyLoss, ImplicitQuantileTarget
from rlrun.algorithms.actor_critic.qrsac import QuantilePolicyLoss
from rlrun.algorithms.actor_critic.sac import TemperatureLoss
from rlrun.nn import ActionCodec, Critics, ImplicitCritics, Temperature

from .fixed import CONTINUOUS, column, evaluate_loss, policy_of, sgd, write

pytestmark = pytest.mark.usefixtures("no_noise")

DRAWN = ops.Fractions(torch.tensor([[0.1, 0.6]]), torch.tensor([[0.2, 0.8]]))


class Lines(torch.nn.Module):
    """Tells slope · τ + level, one line a member, whatever it sees."""

    codec = ActionCodec(CONTINUOUS)

    def __init__(self, *lines):
        super().__init__()
        self.lines = torch.nn.Parameter(torch.tensor(lines).float())
        self.members = len(lines)

    def raw_output(self, observation, c, points):
        slope, level = self.lines.T
        return slope[:, None, None] * points + level[:, None, None]


@pytest.fixture
def target_subset(monkeypatch):
    monkeypatch.setattr(ops, "sampled_fractions", lambda lead, count, like: DRAWN)


def targets(temperature=None, **options):
    """Return the targets of an interior step and of a terminal one, both with reward 1, and the shares."""
    critics = Lines((8.0, -1.0), (2.0, 1.5))  # at .25 and .75: (1, 5) and (2, 3)
    policy, learned = policy_of(CONTINUOUS, critics)  # of log-density -1.5
    target = ImplicitQuantileTarget(critics, policy, temperature or learned, discount=0.9, fractions=2, **options)
    with torch.no_grad():
        critics.lines.fill_(100.0)  # the target critics stay
    batch = target.begin_batch(column(1, 1), torch.ones(2), torch.tensor([False, True]))
    return batch["q_target"].tolist(), batch["target_widths"].tolist()


@pytest.mark.parametrize(("least", "value"), [("quantile", (1, 3)), ("member", (2, 3))])
def test_target_is_the_least_distribution(least, value):
    q_target, widths = targets(fixed=True, least=least, entropy_reward=True)
    assert q_target == [pytest.approx([1 + 0.9 * (quantile + 0.3) for quantile in value], abs=1e-5), [1.0, 1.0]]
    assert widths == [0.5, 0.5]
    assert targets(fixed=True, least=least)[0][0] == pytest.approx([1 + 0.9 * quantile for quantile in value], abs=1e-5)


def test_target_returns_sampled_shares(target_subset):
    q_target, widths = targets(least="member")  # (-0.2, 3.8) has the mean 3, (1.7, 2.7) the mean 2.5
    assert q_target[0] == pytest.approx([1 + 0.9 * 1.7, 1 + 0.9 * 2.7], abs=1e-5)
    assert widths == [pytest.approx([0.2, 0.8])]


def test_loss_weighs_targets_by_shares():
    loss = ImplicitQuantileLoss(Lines((2.0, -0.5), (0.0, 2.0)), sgd, fractions=2, fixed=True)  # (0, 1) and (2, 2)
    loss.watched = True
    batch = column(0), column(0), torch.tensor([[2.0, 0.0]]), torch.tensor([[0.9, 0.1]])
    # of (0, 1): .375 for both pairs with 2, 0 and .125 with 0; of (2, 2): nothing, and h(-2) = 1.5 by .75 and .25
    wanted = (0.9 * 0.75 + 0.1 * 0.125) / 2 + 0.1 * 1.5 / 2
    assert loss.loss(*batch)[0].tolist() == pytest.approx([wanted], abs=1e-5)
    loss.backward(*batch)
    assert loss.elements.tolist() == pytest.approx([(1.3 + 0.2) / 2])  # of means .5 and 2, from 1.8
    assert float(loss.metrics["value/mean"]) == pytest.approx(1.25)


@pytest.mark.parametrize(("least", "value"), [("quantile", 0.2 * -0.2 + 0.8 * 2.7), ("member", 2.5)])
def test_policy_follows_the_sampled_mean(target_subset, least, value):
    critics = Lines((8.0, -1.0), (2.0, 1.5))
    policy, temperature = policy_of(CONTINUOUS, critics)
    loss = ImplicitQuantilePolicyLoss(policy, sgd, critics=critics, temperature=temperature, fractions=2, least=least)
    assert loss.loss(column(0))[0].tolist() == pytest.approx([-0.2 * 1.5 - value], abs=1e-5)


@pytest.mark.parametrize(("least", "value"), [("quantile", (1 + 3) / 2), ("member", (2 + 3) / 2)])
def test_policy_follows_the_least_fixed_quantiles(least, value):
    flat = [[0.0, 0.0], [0.0, 0.0]]  # of observation and action, for two quantiles
    critics = Critics(CONTINUOUS, hidden=(), members=2, quantiles=2)
    policy, temperature = policy_of(CONTINUOUS, write(critics, (flat, [1.0, 5.0]), (flat, [2.0, 3.0])))
    loss = QuantilePolicyLoss(policy, sgd, critics=critics, temperature=temperature, least=least)
    losses, outputs, _ = loss.loss(column(0))
    assert losses.tolist() == pytest.approx([-0.2 * 1.5 - value], abs=1e-5)
    assert outputs["policy_entropy"].tolist() == [pytest.approx([1.5], abs=1e-5)]


# --- a temperature of each action


@pytest.mark.parametrize(("largest", "price"), [(None, 0.4 * 0.5 / math.sqrt(2)), (0.1, 0.1)])
@pytest.mark.parametrize(("least", "value"), [("quantile", 0.2 * -0.2 + 0.8 * 2.7), ("member", 2.5)])
def test_entropy_costs_the_critics_deviation(target_subset, largest, price, least, value):
    critics = Lines((8.0, -1.0), (2.0, 1.5))  # of means 3 and 2.5
    temperature = Temperature(CONTINUOUS, epistemic=0.4, largest=largest)
    policy, _ = policy_of(CONTINUOUS, critics)
    loss = ImplicitQuantilePolicyLoss(policy, sgd, critics=critics, temperature=temperature, fractions=2, least=least)
    losses, outputs, metrics = evaluate_loss(loss, column(0))
    assert losses.tolist() == pytest.approx([-1.5 * price - value], abs=1e-5)
    assert outputs["policy_entropy"].tolist() == [pytest.approx([1.5])]
    assert float(metrics["temperature/continuous"]) == pytest.approx(price)


def test_epistemic_temperature_has_no_gradient():
    temperature = Temperature(CONTINUOUS, epistemic=0.4)
    assert not temperature.of_each(torch.ones(2, 3, requires_grad=True)).requires_grad
    loss = TemperatureLoss(temperature, sgd, spaces=CONTINUOUS)
    loss.backward(column(2.0, 4.0))
    assert loss.optimizer is None
    assert {name: float(value) for name, value in loss.metrics.items()} == {"entropy/continuous": 3.0}


def test_epistemic_targets_count_no_entropy():
    q_target, _ = targets(Temperature(CONTINUOUS, epistemic=0.4), fixed=True, least="member", entropy_reward=True)
    assert q_target[0] == pytest.approx([1 + 0.9 * 2, 1 + 0.9 * 3], abs=1e-5)


# --- critics


def test_implicit_critics_follow_their_equations():
    torch.manual_seed(0)
    network = ImplicitCritics(CONTINUOUS, hidden=(5, 4), members=2, cosines=3, count=6)
    observation, c, points = column(0.3, -0.7), column(0.1, 0.9), torch.rand(2, 7)
    quantiles, inputs = network.raw_output(observation, c, points), torch.cat((observation, c), -1)
    turns = torch.stack([(math.pi * k * points).cos() for k in (1, 2, 3)], -1)

    def dense(layer, value):
        return value @ layer.weight[1] + layer.bias[1]

    features = dense(network.features.layers[1], dense(network.features.layers[0], inputs).relu()).relu()
    value = features[:, None] * dense(network.fractions.layers[0], turns).sigmoid()
    value = F.layer_norm(dense(network.head.layers[0], value), (4,)).relu()
    torch.testing.assert_close(quantiles[1], dense(network.head.layers[1], value).squeeze(-1))
    middles = ops.fixed_fractions(6, like=c).points.expand(2, 6)
    torch.testing.assert_close(network(observation, c), network.raw_output(observation, c, middles).mean(-1))
