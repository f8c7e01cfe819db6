"""Deep Q-learning, worked by hand on networks of one layer."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from rlrun.algorithms.dqn import QLoss, QNetwork, QTarget
from rlrun.config import compose
from rlrun.core.errors import ConfigError, SpaceError
from rlrun.core.spaces import Composite, Discrete, MultiDiscrete, Spaces
from rlrun.memory import NStep, Table
from rlrun.nn import ActionCodec, Bins

from .fixed import COIN, CONTINUOUS, DISCRETE, LINE, MANY, MIXED, column, q_network, sgd, write

ZEROS = [[0.0, 0.0]]


def made(online, slow, **options):
    """Return a target whose target network differs from the network; biases [K], one list a member."""
    target = QTarget(q_network(DISCRETE, *slow), discount=0.9, **options)
    write(target.network, *[(ZEROS, bias) for bias in online])
    return target


def targets(target, **extra):
    batch = target.begin_batch(column(1, 1), torch.ones(2), torch.tensor([False, True]), **extra)
    return batch["q_target"].tolist()


def test_double_target_values_the_networks_choice():
    assert targets(made([[1.0, 2.0]], [[5.0, 3.0]])) == pytest.approx([1 + 0.9 * 3, 1.0])


def test_plain_target_values_the_slow_copys_choice():
    assert targets(made([[1.0, 2.0]], [[5.0, 3.0]], double=False)) == pytest.approx([1 + 0.9 * 5, 1.0])


def test_smallest_member_chooses_and_values():
    # smallest online (1, 0): choice 0, of which the slow members say 6 and 4
    assert targets(made([[1.0, 9.0], [3.0, 0.0]], [[6.0, 8.0], [4.0, 8.0]]))[0] == pytest.approx(1 + 0.9 * 4)


def test_discount_of_the_batch_comes_first():
    q_target = targets(made([[1.0, 2.0]], [[5.0, 3.0]]), discount=torch.tensor([0.5, 0.5]))
    assert q_target == pytest.approx([2.5, 1.0])


def by_quantiles(*biases):
    """Return a Q-network of two quantiles of each of two choices, the same for every observation: [K · N] a member."""
    network = QNetwork(DISCRETE, hidden=(), members=len(biases), quantiles=2)
    return write(network, *[([[0.0] * 4], bias) for bias in biases])


def test_quantile_target_is_the_distribution_of_the_choice_with_the_best_mean():
    target = QTarget(by_quantiles([5.0, 7.0, 1.0, 2.0], [6.0, 6.5, 3.0, 4.0]), discount=0.9)
    write(target.network, *[([[0.0] * 4], [0.0, 3.0, 1.0, 1.0])] * 2)  # means 1.5 and 1: choice 0
    # of which the slow members say (5, 7) and (6, 6.5)
    assert targets(target) == [pytest.approx([1 + 0.9 * 5, 1 + 0.9 * 6.5]), [1.0, 1.0]]
    assert targets(target, discount=torch.tensor([0.5, 0.5]))[0] == pytest.approx([3.5, 4.25])


def test_without_double_targets_the_slow_quantiles_choose():
    target = QTarget(by_quantiles([5.0, 7.0, 0.0, 20.0]), discount=0.9, double=False)
    write(target.network, ([[0.0] * 4], [9.0, 9.0, 1.0, 1.0]))
    assert targets(target)[0] == pytest.approx([1 + 0.9 * 0, 1 + 0.9 * 20])


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
    assert targets(target) == pytest.approx([1 + 0.9 * 1.25, 1.0])
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


def test_two_step_targets_look_two_steps_ahead():
    table = Table(spaces=DISCRETE, length=10, adaptors=[NStep(steps=2, discount=0.9)])
    for reward, truncated in ((1.0, False), (2.0, False), (4.0, True)):
        row = {"observation": np.full((1, 1), reward), "action": np.zeros(1), "reward": np.array([reward])}
        table.add(None, row | {"terminated": np.zeros(1, bool), "truncated": np.array([truncated])})
    table.close(None, np.zeros((1, 1)))
    batch = table.sample(64)
    names = ("next_observation", "reward", "terminated", "discount")
    q_target = made([[1.0, 2.0]], [[5.0, 3.0]]).begin_batch(*(batch[name] for name in names))["q_target"]
    by_start = dict(zip(batch["observation"].flatten().tolist(), q_target.tolist(), strict=True))
    # r0 + 0.9 r1 + 0.81 * 3, the same from 2, and one step from the truncated end, which bootstraps
    assert by_start == pytest.approx({1.0: 1 + 1.8 + 2.43, 2.0: 2 + 3.6 + 2.43, 4.0: 4 + 2.7}, abs=1e-5)


@pytest.mark.parametrize(("huber", "expected"), [(None, [0.25, 9.0]), (1.0, [0.125, 2.5]), (2.0, [0.125, 4.0])])
def test_distance_is_square_or_huber(huber, expected):
    loss = QLoss(q_network(DISCRETE, [0.0, 7.0]), sgd, huber=huber)
    assert loss.loss(column(0, 0), torch.tensor([0, 0]), torch.tensor([0.5, -3.0])).tolist() == pytest.approx(expected)


def test_losses_of_members_add_up():
    loss = QLoss(q_network(DISCRETE, [0.0, 1.0], [0.0, 3.0]), sgd)
    assert loss.loss(column(0), torch.tensor([1]), torch.zeros(1)).tolist() == [1.0 + 9.0]


def test_slow_copy_jumps_every_third_update():
    target = made([[1.0, 2.0]], [[5.0, 3.0]], tau=1.0, every=3)
    firsts = []
    for _ in range(4):
        target.end_batch()
        firsts.append(float(target.target(column(0))[0, 0, 0]))
    assert firsts == [5.0, 5.0, 1.0, 1.0]


def test_slow_copy_follows_by_the_rate():
    target = made([[1.0, 2.0]], [[5.0, 3.0]], tau=0.25)
    target.end_batch()
    assert target.target(column(0)).flatten().tolist() == [4.0, 2.75]


def test_continuous_actions_are_refused_by_name():
    with pytest.raises(SpaceError, match=r"^DQN handles discrete actions only; action part 'level' is Box\[1\]"):
        QNetwork(MIXED)
    with pytest.raises(SpaceError, match=r"the action space is Box\[1\]"):
        QNetwork(CONTINUOUS)


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


def test_slow_copy_is_saved():
    restored = made([[0.0, 0.0]], [[0.0, 0.0]])
    restored.load_state_dict(made([[1.0, 2.0]], [[5.0, 3.0]]).state_dict())
    assert restored.target(column(0)).flatten().tolist() == [5.0, 3.0]


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


def test_several_members_of_one_module_are_refused():
    with pytest.raises(ConfigError, match=r"networks.q.layers is one network; algorithm.ensemble=2"):
        QNetwork(DISCRETE, members=2, layers=torch.nn.Linear(1, 2))
