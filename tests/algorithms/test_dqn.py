"""Deep Q-learning, worked by hand on networks of one layer."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from rlrun.algorithms.dqn import QLoss, QNetwork, QTarget
from rlrun.config import compose
from rlrun.core.spaces import Composite, Discrete, MultiDiscrete, Spaces
from rlrun.nn import ActionCodec, Bins

from .fixed import COIN, DISCRETE, LINE, MANY, column, q_network, sgd, targets, write


def by_quantiles(*biases):
    """Return a Q-network of two quantiles of each of two choices, the same for every observation: [K · N] a member."""
    network = QNetwork(DISCRETE, hidden=(), members=len(biases), quantiles=2)
    return write(network, *[([[0.0] * 4], bias) for bias in biases])


def test_quantiles_of_the_choice_taken_are_compared():
    loss = QLoss(by_quantiles([9.0, 9.0, 0.0, 1.0]), sgd, huber=1.0)
    losses = loss.loss(column(0, 0), torch.tensor([1, 1]), torch.tensor([[2.0, 2.0], [0.0, 1.0]]))
    # u = (2, 1) for both targets; then u = (0, -1), (1, 0): h = (0, .5), (.5, 0), both times the share .25
    assert losses.tolist() == pytest.approx([0.375, (0.125 + 0.125) / 4])


def test_bins_have_one_number_for_a_target():
    bins = Bins(2, least=0.0, largest=2.0, smoothing=1.0)
    network = QNetwork(DISCRETE, hidden=(), members=1, value_head=bins)
    write(network, ([[0.0] * 4], [0.0, 0.0, 0.0, np.log(3.0)]))  # means 1 and 0.25 / 2 + 0.75 * 1.5 = 1.25
    assert network.act(column(0)).tolist() == [1]
    target = QTarget(network, discount=0.9)
    assert targets(target).tolist() == pytest.approx([1 + 0.9 * 1.25, 1.0])
    loss = QLoss(network, sgd).loss(column(0), torch.tensor([1]), torch.ones(1))
    assert loss.tolist() == pytest.approx([-0.5 * np.log(3 / 16)], abs=1e-5)


class Own(torch.nn.Module):
    """A network of one's own: it has what `rlrun.nn` says that DQN calls, and no more."""

    def __init__(self):
        super().__init__()
        self.codec = ActionCodec(DISCRETE)
        self.level = torch.nn.Parameter(torch.tensor([1.0, 3.0]))

    def forward(self, observation):
        return (observation * self.level).unsqueeze(0)


def test_a_network_of_ones_own_is_asked_for_values_of_observations():
    loss = QLoss(Own(), sgd)
    assert loss.loss(column(1, 2), torch.tensor([0, 1]), torch.zeros(2)).tolist() == pytest.approx([1.0, 36.0])


def test_losses_of_members_add_up():
    loss = QLoss(q_network(DISCRETE, [0.0, 1.0], [0.0, 3.0]), sgd)
    assert loss.loss(column(0), torch.tensor([1]), torch.zeros(1)).tolist() == [1.0 + 9.0]


SPACES = {
    "one": COIN,
    "several": MultiDiscrete(np.array([2, 3]), np.zeros(2, np.int64)),
    "bits": MultiDiscrete(np.array([2, 2, 2]), np.zeros(3, np.int64), "int8"),
    "bits in rows": MultiDiscrete(np.full((2, 2), 2), np.zeros((2, 2), np.int64), "int8"),
    "dict": Composite({"a": Discrete(2, start=5), "b": Composite({"0": Discrete(3)})}),
    "additive": MANY.action,
}


def last_choices(space, count):
    """Return the action that takes the last choice everywhere."""
    if isinstance(space, Composite):
        return {name: last_choices(part, count) for name, part in space.parts.items()}
    return torch.tensor(space.choices).reshape(space.shape).expand(count, *space.shape) - 1


def equal(one, other):
    if isinstance(one, dict):
        return all(equal(one[name], other[name]) for name in one)
    return torch.equal(one, other)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_rewarded_action_becomes_the_best(space):
    torch.manual_seed(0)
    network = QNetwork(Spaces(LINE, space), hidden=())
    loss = QLoss(network, partial(torch.optim.Adam, lr=0.2))
    for _ in range(60):
        loss.backward(torch.zeros(4, 1), last_choices(space, 4), torch.full((4,), 20.0))
    assert equal(network.act(torch.zeros(2, 1)), last_choices(space, 2))


def test_the_loss_is_squared_where_no_preset_says_otherwise():
    assert compose(["algorithm=dqn", "env=cartpole", "preset=null"]).config.algorithm.huber is None
    presets = [f"dqn_{name}" for name in ("bitflip", "cartpole", "chain", "corridor", "dueling_cartpole")]
    assert {compose([f"preset={name}"]).config.algorithm.huber for name in presets} == {1.0}


@pytest.mark.parametrize(("huber", "expected"), [(None, 3.0), (1.0, 11 / 3)])
def test_a_squared_loss_learns_the_mean_of_outcomes(huber, expected):
    loss = QLoss(q_network(DISCRETE, [0.0, 0.0]), sgd, huber=huber)
    rows = {"observation": column(*[0] * 4), "action": torch.zeros(4, dtype=torch.int64)}
    rows["q_target"] = torch.tensor([0.0, 4.0, 4.0, 4.0])
    optimizer = torch.optim.SGD(loss.network.parameters(), lr=0.2)
    for _ in range(200):
        optimizer.zero_grad()
        loss.loss(**rows).mean().backward()
        optimizer.step()
    assert loss.network(column(0))[0, 0, 0].item() == pytest.approx(expected, abs=0.01)


def test_a_plain_module_stands_for_the_layers():
    layers = torch.nn.Linear(1, 2)
    network = QNetwork(DISCRETE, layers=layers)
    seen = column(1, -2)
    assert torch.equal(network(seen), layers(seen).unsqueeze(0))
    assert torch.equal(network.act(seen), layers(seen).argmax(-1))
    assert [parameter.shape for parameter in network.parameters()] == [(2, 1), (2,)]
    target = QTarget(network, discount=0.9)
    loss = QLoss(network, sgd)
    batch = {"next_observation": seen, "reward": torch.ones(2), "terminated": torch.tensor([False, True])}
    q_target = target.begin_batch(**batch)["q_target"]
    expected = torch.nn.functional.mse_loss(layers(seen)[:, 0], q_target, reduction="none")
    assert torch.allclose(loss.loss(seen, torch.zeros(2, dtype=torch.int64), q_target), expected)
