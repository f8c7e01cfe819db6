"""Dense layers, alone and of all members of an ensemble."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rlrun.core.errors import ConfigError
from rlrun.nn import MLP, Ensemble, normal_, orthogonal_
from rlrun.nn import ensemble as module


def stacked_and_plain(members=3, **options):
    """An ensemble and the members it must equal: the same draws make the same weights."""
    torch.manual_seed(0)
    stacked = Ensemble(4, 2, members=members, hidden=(8, 6), **options)
    torch.manual_seed(0)
    return stacked, [MLP(4, 2, hidden=(8, 6), **options) for _ in range(members)]


@pytest.fixture(params=["batched", "separate"])
def way(request, monkeypatch):
    monkeypatch.setattr(module, "LARGE", 1 if request.param == "separate" else 10**12)


@pytest.mark.parametrize("options", [{}, {"layer_norm": True, "activation": "tanh"}, {"init": "orthogonal"}], ids=str)
@pytest.mark.parametrize("members", [1, 2, 5])
def test_ensemble_equals_its_members(way, members, options):
    stacked, plain = stacked_and_plain(members, **options)
    value = torch.randn(7, 4)
    torch.testing.assert_close(stacked(value), torch.stack([member(value) for member in plain]))


def test_members_may_have_own_inputs(way):
    stacked, plain = stacked_and_plain()
    value = torch.randn(3, 7, 4)
    expected = torch.stack([member(part) for member, part in zip(plain, value, strict=True)])
    torch.testing.assert_close(stacked(value, shared=False), expected)


def test_leading_dimensions_are_kept(way):
    stacked, plain = stacked_and_plain()
    value = torch.randn(5, 7, 4)
    torch.testing.assert_close(stacked(value), torch.stack([member(value) for member in plain]))
    assert stacked(value[0, 0]).shape == (3, 2)
    assert stacked(value.expand(3, 5, 7, 4), shared=False).shape == (3, 5, 7, 2)


def test_gradients_equal_those_of_the_members(way):
    stacked, plain = stacked_and_plain(layer_norm=True)
    value = torch.randn(7, 4)
    stacked(value).square().sum().backward()
    torch.stack([member(value) for member in plain]).square().sum().backward()
    expected = torch.stack([member[3].weight.grad.T for member in plain])
    torch.testing.assert_close(stacked.layers[1].weight.grad, expected)
    expected = torch.stack([member[4].weight.grad for member in plain]).unsqueeze(1)
    torch.testing.assert_close(stacked.layers[1].norm_weight.grad, expected)


def test_members_begin_different():
    weight = stacked_and_plain()[0].layers[0].weight
    assert not torch.equal(weight[0], weight[1])


def test_dropout_acts_in_training_only(way):
    stacked = Ensemble(4, 1, members=2, hidden=(64,), dropout=0.5)
    value = torch.randn(3, 4)
    assert not torch.equal(stacked(value), stacked(value))
    with torch.no_grad():
        assert torch.equal(stacked(value), stacked(value))
        stacked.drops_always = True
        assert not torch.equal(stacked(value), stacked(value))
    stacked.eval()
    assert torch.equal(stacked(value), stacked(value))


def test_dropout_drops_its_share(way):
    stacked = Ensemble(1, 1, members=2, hidden=(10_000,), dropout=0.25, activation="elu")
    for layer in stacked.layers:
        torch.nn.init.ones_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    share = stacked(torch.ones(1, 1)) * 0.75 / 10_000
    assert F.l1_loss(share, torch.full((2, 1, 1), 0.75)) < 0.03


# --- alone


def kinds(network):
    return [type(layer).__name__ for layer in network]


def test_activation_follows_dropout_and_norm():
    network = MLP(3, 2, hidden=(5,), layer_norm=True, dropout=0.1, activation="tanh")
    assert kinds(network) == ["Linear", "Dropout", "LayerNorm", "Tanh", "Linear"]


def test_default_weights_are_those_of_torch():
    torch.manual_seed(0)
    ours = MLP(3, 2, hidden=(5,))
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    assert kinds(ours) == kinds(theirs)
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_initializers_know_convolutions():
    for layer in (nn.Conv1d(2, 4, 3), nn.Conv2d(2, 4, 3)):
        orthogonal_(layer, 1.0)
        torch.testing.assert_close(layer.weight.flatten(1) @ layer.weight.flatten(1).T, torch.eye(4))
        assert not layer.bias.any()


def test_initializer_may_be_a_function():
    network = MLP(100, 2, hidden=(100,), init=normal_)
    assert 0.009 < network[0].weight.detach().std() < 0.011


def test_xavier_weights_stay_in_their_range():
    weight = MLP(20, 2, hidden=(30,), init="xavier")[0].weight
    assert 0.3 < weight.detach().abs().max() <= (6 / 50) ** 0.5


@pytest.mark.parametrize("options", [{}, {"output_norm": True, "output_activation": "tanh"}], ids=["plain", "behind"])
def test_output_gain_scales_the_last_layer(options):
    network = MLP(4, 2, hidden=(4,), init="orthogonal", output_gain=0.01, **options)
    torch.testing.assert_close(network[2].weight @ network[2].weight.T, 1e-4 * torch.eye(2))
    torch.testing.assert_close(network[0].weight @ network[0].weight.T, 2.0 * torch.eye(4))


def test_refusals_name_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'orthogonal'"):
        MLP(1, 1, init="ortogonal")
    with pytest.raises(ConfigError, match="did you mean 'relu'"):
        MLP(1, 1, activation="rely")
