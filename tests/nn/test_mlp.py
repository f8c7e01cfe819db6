import pytest
import torch
from torch import nn

from rlrun.core.errors import ConfigError
from rlrun.nn import MLP, normal_, orthogonal_


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


def test_output_gain_scales_the_last_layer():
    network = MLP(4, 2, hidden=(4,), init="orthogonal", output_gain=0.01)
    torch.testing.assert_close(network[-1].weight @ network[-1].weight.T, 1e-4 * torch.eye(2))
    torch.testing.assert_close(network[0].weight @ network[0].weight.T, 2.0 * torch.eye(4))


def test_refusals_name_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'orthogonal'"):
        MLP(1, 1, init="ortogonal")
    with pytest.raises(ConfigError, match="did you mean 'relu'"):
        MLP(1, 1, activation="rely")
