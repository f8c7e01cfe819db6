"""How networks take their updates, as metrics."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from rlrun.callbacks.loss import LossCallback, dead_units, hidden_layers, update_ratio
from rlrun.callbacks.target import TargetCallback
from rlrun.collect.statistics import Tally, observed
from rlrun.core.spaces import Box, Composite, Discrete
from rlrun.nn import MLP, Ensemble, Normalizer

ADAM = partial(torch.optim.Adam, lr=0.01)


class Fit(LossCallback):
    def loss(self, observation):
        return (self.network(observation) - 1.0).square().flatten(1).mean(1)


def fitted(network, updates=3, optimizer=ADAM, observation=None):
    loss = Fit(network, optimizer)
    loss.name = "fit"
    for _ in range(updates):
        loss.backward(torch.randn(16, 3) if observation is None else observation)
    return loss


@pytest.mark.parametrize("fused", [False, True])
def test_update_ratio_is_the_newest_step_over_the_weights(fused):
    torch.manual_seed(0)
    network = MLP(3, 2, hidden=(8, 8))
    loss = fitted(network, optimizer=partial(ADAM, fused=fused))
    matrices = [parameter for parameter in network.parameters() if parameter.dim() > 1]
    before = [matrix.detach().clone() for matrix in matrices]
    loss.backward(torch.randn(16, 3))
    with torch.no_grad():
        moved = torch.cat([(new - old).flatten() for new, old in zip(matrices, before, strict=True)]).norm()
        size = torch.cat([matrix.flatten() for matrix in matrices]).norm()
    assert float(loss.metrics["update_ratio/fit"]) == pytest.approx(float(moved / size), rel=1e-3)


def test_other_optimizers_and_single_numbers_have_no_update_ratio():
    assert "update_ratio/fit" not in fitted(MLP(3, 2), optimizer=partial(torch.optim.SGD, lr=0.01)).metrics
    assert update_ratio(torch.optim.Adam([nn.Parameter(torch.ones(3))])) is None


def episode_end(layer, units):
    """Push some units of a layer so far down that they are off whatever comes."""
    with torch.no_grad():
        layer.bias.flatten()[:units] = -1e3


def test_units_that_are_off_for_all_rows_count_as_dead():
    torch.manual_seed(0)
    network = MLP(3, 2, hidden=(8, 8), init="orthogonal")
    whole = float(fitted(network, updates=1).metrics["dead_units/fit"])
    episode_end(network[0], 4)
    assert float(fitted(network, updates=1).metrics["dead_units/fit"]) >= max(whole, 4 / 16)
    assert whole < 4 / 16


def test_units_of_every_member_of_an_ensemble_count():
    torch.manual_seed(0)
    network = Ensemble(3, 1, members=2, hidden=(8,), activation="tanh")
    with torch.no_grad():
        network.layers[0].bias[0] = 100.0  # all units of the first member are at the end of tanh
    loss = Fit(network, ADAM)
    loss.name = "fit"
    loss.backward(torch.randn(16, 3))
    assert float(loss.metrics["dead_units/fit"]) == 0.5


def test_layers_count_as_hidden_where_an_activation_follows():
    network = MLP(3, 2, hidden=(8, 8), layer_norm=True)
    assert hidden_layers(network) == [layer for layer in network if isinstance(layer, nn.Linear)][:-1]
    assert hidden_layers(nn.Linear(3, 2)) == []
    assert dead_units([]) is None


def test_reading_metrics_draws_no_number_and_changes_nothing():
    torch.manual_seed(0)
    loss = fitted(MLP(3, 2, hidden=(8,)))
    weights = [parameter.detach().clone() for parameter in loss.parameters]
    state = torch.random.get_rng_state()
    assert dict(loss.metrics) == dict(loss.metrics)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(*pair) for pair in zip(weights, loss.parameters, strict=True))


def test_distance_of_a_slow_copy_is_a_share_of_its_network():
    network = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        network.weight[:] = torch.tensor([[3.0, 4.0]])
    target = TargetCallback(network, tau=0.5)
    target.name = "q"
    target.bootstrap(torch.zeros(1), torch.zeros(1, dtype=torch.bool), torch.zeros(1), None)
    assert float(target.metrics["target_distance/q"]) == 0.0
    with torch.no_grad():
        network.weight *= 2.0
    assert float(target.metrics["target_distance/q"]) == 0.5
    target.end_batch()
    assert float(target.metrics["target_distance/q"]) == 0.25


SPACE = Composite({"place": Box((2,), -np.ones(2), np.ones(2)), "sign": Discrete(3)})


def test_size_of_observations_is_that_of_their_numbers():
    tree = {"place": np.array([[3.0, 4.0], [3.0, 4.0]], np.float32), "sign": np.array([1, 2])}
    assert observed(tree, SPACE) == {"observation/size": pytest.approx(12.5**0.5)}
    assert observed({"sign": np.array([1, 2])}, Composite({"sign": Discrete(3)})) == {}


def test_size_of_observations_is_that_behind_a_normalizer():
    normalizer = Normalizer([1])
    normalizer.update(torch.tensor([[0.0], [20.0]]))  # mean 10, deviation 10
    metrics = observed(np.array([[40.0]], np.float32), Box((1,), np.zeros(1), np.ones(1)), (normalizer,))
    assert metrics == {"observation/size": pytest.approx(3.0)}
    assert observed(np.array([[40.0]], np.float32), Box((1,), np.zeros(1), np.ones(1)), (normalizer, abs)) == {}


def test_share_of_episodes_that_were_cut_off_comes_back():
    tally, restored = Tally(2, 0, window=3), Tally(2, 0, window=3)
    assert "episode/truncated" not in tally.metrics
    for truncated in (False, True, True, True):
        tally.end(np.array([0]), np.array([truncated]))
    tally.end(np.array([1]), np.array([False]))
    assert tally.metrics["episode/truncated"] == pytest.approx(2 / 3)
    restored.load_state_dict(tally.state_dict())
    assert restored.metrics == tally.metrics
    old = {name: value for name, value in tally.state_dict().items() if name != "truncated"}
    restored.load_state_dict(old)  # of a run before this was counted
    assert "episode/truncated" not in restored.metrics
