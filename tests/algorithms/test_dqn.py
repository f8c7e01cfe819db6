"""Deep Q-learning, worked by hand on networks of one layer."""

from functools import partial

import numpy as np
import pytest
import torch
from tests.nn.spaces_for_tests import ACTIONS, same

from rlrun.algorithms.value_based.dqn import QLoss, QNetwork, QTarget
from rlrun.callbacks.losses.critic import CriticLoss
from rlrun.core.errors import ConfigError
from rlrun.core.spaces import Spaces, leaves, map_tree, tree_of
from rlrun.nn import ActionCodec, Bins, Critics

from .fixed import DISCRETE, LINE, column, sgd, targets, write


def by_quantiles(*biases):
    """Return a Q-network of two quantiles of each of two choices, the same for every observation: [K · N] a member."""
    network = QNetwork(DISCRETE, hidden=(), members=len(biases), quantiles=2)
    return write(network, *[([[0.0] * 4], bias) for bias in biases])


def test_taken_choices_quantiles_are_compared():
    loss = QLoss(by_quantiles([9.0, 9.0, 0.0, 1.0]), sgd, huber=1.0)
    losses, *_ = loss.loss(column(0, 0), torch.tensor([1, 1]), torch.tensor([[2.0, 2.0], [0.0, 1.0]]))
    # u = (2, 1) for both targets; then u = (0, -1), (1, 0): h = (0, .5), (.5, 0), both times the share .25
    assert losses.tolist() == pytest.approx([0.375, (0.125 + 0.125) / 4])


def test_bins_have_scalar_targets():
    bins = Bins(2, least=0.0, largest=2.0, smoothing=1.0)
    network = QNetwork(DISCRETE, hidden=(), members=1, value_head=bins)
    write(network, ([[0.0] * 4], [0.0, 0.0, 0.0, np.log(3.0)]))  # means 1 and 0.25 / 2 + 0.75 * 1.5 = 1.25
    assert network.act(column(0)).tolist() == [1]
    target = QTarget(network, discount=0.9)
    assert targets(target).tolist() == pytest.approx([1 + 0.9 * 1.25, 1.0])
    loss, *_ = QLoss(network, sgd).loss(column(0), torch.tensor([1]), torch.ones(1))
    assert loss.tolist() == pytest.approx([-0.5 * np.log(3 / 16)], abs=1e-5)


class Sevens(Critics):
    def forward(self, observation, c=None):
        return 0.0 * super().forward(observation, c) + 7.0


class Constant(QNetwork):
    """A subclass that replaces the call alone."""

    def forward(self, observation, c=None):
        return 0.0 * super().forward(observation, c) + 7.0


def test_replaced_forward_is_learned_from():
    network = Constant(DISCRETE, hidden=(), members=1)
    loss, *_ = QLoss(network, sgd).loss(column(0, 0), torch.tensor([0, 1]), torch.tensor([4.0, 5.0]))
    assert loss.tolist() == pytest.approx([9.0, 4.0])
    assert targets(QTarget(network, discount=0.9)).tolist() == pytest.approx([1 + 0.9 * 7, 1.0])
    critics = Sevens(LINE, hidden=(), members=2)
    losses, *_ = CriticLoss(critics, sgd).loss(column(0), torch.zeros(1, 1), torch.zeros(1))
    assert losses.tolist() == pytest.approx([2 * 49.0])


def test_replaced_forward_gives_no_quantiles():
    with pytest.raises(ConfigError, match=r"Constant replaces forward.*value_head=Quantiles it replaces raw_output"):
        QLoss(Constant(DISCRETE, hidden=(), members=1, quantiles=4), sgd)


@pytest.mark.parametrize("kind", [kind for kind, space in ACTIONS.items() if ActionCodec(space).continuous == 0])
def test_rewarded_action_becomes_the_best(kind):
    torch.manual_seed(0)
    space = ACTIONS[kind]
    last = tree_of(space, [torch.tensor(leaf.choices).reshape(leaf.shape) - 1 for _, leaf in leaves(space)])
    action = map_tree(lambda choice: choice.expand(4, *choice.shape), last)
    network = QNetwork(Spaces(LINE, space), hidden=())
    loss = QLoss(network, partial(torch.optim.Adam, lr=0.2))
    for _ in range(60):
        loss.backward(torch.zeros(4, 1), action, torch.full((4,), 20.0))
    assert same(space, network.act(torch.zeros(4, 1)), action)


def test_plain_module_replaces_the_layers():
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
    assert torch.allclose(loss.loss(seen, torch.zeros(2, dtype=torch.int64), q_target)[0], expected)
