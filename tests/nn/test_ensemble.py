import pytest
import torch
import torch.nn.functional as F

from rlrun.nn import MLP, Ensemble
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
