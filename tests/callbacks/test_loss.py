"""One optimiser, one network, and no gradient anywhere else."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from rlrun import storage
from rlrun.callback import Callback
from rlrun.callbacks import LossCallback
from rlrun.trainer import Trainer

sgd = partial(torch.optim.SGD, lr=1.0)


class Line(nn.Module):
    """w x, w = 1."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.w * x


class Plain(LossCallback):
    """The loss of an element is w x; its gradient is the mean of x."""

    def loss(self, x):
        return self.network(x)


class Squared(LossCallback):
    def loss(self, x):
        return (self.network(x) - 3.0).square()


class Summed(LossCallback):
    def loss(self, x):
        return self.network(x).sum()


def moved(loss, *arguments, **named):
    """Return how far one step took w."""
    loss.backward(*arguments, **named)
    return pytest.approx(float(loss.network.w.detach()) - 1.0, abs=1e-6)


def test_elements_are_averaged():
    assert moved(Plain(Line(), sgd), torch.tensor([1.0, 2.0, 6.0])) == -3.0


def test_scalar_is_taken_as_it_is():
    assert moved(Summed(Line(), sgd), torch.tensor([1.0, 2.0, 6.0])) == -9.0


def test_elements_are_weighted():
    weight = torch.tensor([1.0, 0.5, 0.0])
    assert moved(Plain(Line(), sgd), torch.tensor([1.0, 2.0, 6.0]), weight=weight) == -2.0 / 3


def test_weight_of_a_window_counts_for_each_of_its_steps():
    x = torch.tensor([[1.0, 3.0], [10.0, 10.0]])
    assert moved(Plain(Line(), sgd), x, weight=torch.tensor([1.0, 0.5])) == -(4 + 10) / 4


@pytest.mark.parametrize(("limit", "expected"), [(None, -3.0), (5.0, -3.0), (0.5, -0.5)])
def test_gradients_are_clipped_by_their_norm(limit, expected):
    loss = Plain(Line(), sgd, max_grad_norm=limit)
    assert moved(loss, torch.tensor([3.0])) == expected
    loss.name = "line"
    assert loss.metrics.get("grad_norm/line") == (None if limit is None else 3.0)


def test_schedule_sets_the_rate_of_each_update():
    loss = Plain(Line(), sgd, schedule=lambda update: (0.5, 0.25, 0.125)[update])
    positions = []
    for _ in range(3):
        loss.backward(torch.ones(1))
        positions.append(float(loss.network.w.detach()))
    assert positions == [0.5, 0.25, 0.125]


def test_gradients_of_other_networks_stay_as_they_are():
    class Through(LossCallback):
        def loss(self, x):
            return other(self.network(x))

    other, loss = Line(), Through(Line(), sgd)
    other.w.grad = torch.tensor(7.0)
    loss.backward(torch.ones(2))
    assert float(other.w.grad) == 7.0
    assert float(other.w.detach()) == 1.0
    assert float(loss.network.w.detach()) == 0.0


def test_gradients_do_not_pile_up():
    loss = Plain(Line(), sgd)
    loss.network.w.grad = torch.tensor(100.0)
    loss.backward(torch.ones(1))
    loss.backward(torch.ones(1))
    assert float(loss.network.w.detach()) == -1.0


def test_frozen_parameters_are_left_alone():
    network = nn.ModuleList([Line(), Line().requires_grad_(False)])
    loss = Plain(network, sgd)
    loss.network = lambda x: network[0](network[1](x))
    loss.backward(torch.ones(1))
    assert [float(part.w.detach()) for part in network] == [0.0, 1.0]


class Batches:
    def __init__(self, *names):
        self.given = names

    def names(self):
        return {"default": self.given}

    def __iter__(self):
        yield {"default": {name: torch.tensor([2.0, 4.0]) for name in self.given}}


class Naming(LossCallback):
    provides = ("doubled",)

    def loss(self, x, shift=None):
        value = self.network(x)
        return value if shift is None else value + shift, {"doubled": 2 * value.detach()}


class Reader(Callback):
    data_group = "default"

    def end_batch(self, doubled):
        self.found = doubled.tolist()


def test_named_results_reach_later_callbacks():
    reader = Reader()
    Trainer({"loss": Naming(Line(), sgd), "reader": reader}, Batches("x")).train()
    assert reader.found == [4.0, 8.0]


@pytest.mark.parametrize(("names", "expected"), [(("x",), 3.0), (("x", "shift"), 6.0), (("x", "weight"), 10.0)])
def test_optional_names_are_taken_where_they_exist(names, expected):
    loss = Naming(Line(), sgd)
    Trainer({"line": loss}, Batches(*names)).train()
    assert float(loss.metrics["loss/line"]) == expected  # mean of x, of x + shift, of x * weight


def test_network_without_parameters_is_only_evaluated():
    class Constant(LossCallback):
        def loss(self, x):
            assert not torch.is_grad_enabled()
            return x, {"doubled": 2 * x}

    loss = Constant(nn.Identity(), sgd)
    assert loss.backward(torch.ones(1))["doubled"].tolist() == [2.0]
    assert loss.metrics == {}
    loss.load_state_dict(loss.state_dict())


def adam_loss():
    torch.manual_seed(0)
    return Squared(
        nn.Linear(3, 2), partial(torch.optim.Adam, lr=0.1, fused=True), schedule=lambda update: 0.1 / (1 + update)
    )


def train(loss, batches):
    for seed in batches:
        loss.backward(torch.randn(5, 3, generator=torch.Generator().manual_seed(seed)))
    return torch.cat([parameter.detach().flatten() for parameter in loss.parameters])


def restored(state, weights, **what):
    loss = adam_loss()
    loss.network.load_state_dict(weights)
    loss.load_state_dict(state, **what)
    return loss


def test_restored_optimiser_makes_the_same_next_step(tmp_path):
    loss = adam_loss()
    train(loss, range(3))
    storage.save(tmp_path / "saved", {"loss": loss.state_dict(), "network": loss.network.state_dict()}, about={})
    saved = storage.load(tmp_path / "saved")
    expected = train(loss, (3, 4))
    assert torch.equal(train(restored(saved["loss"], saved["network"]), (3, 4)), expected)
    assert not torch.equal(train(restored(saved["loss"], saved["network"], optimiser=False), (3, 4)), expected)
    assert not torch.equal(train(restored(saved["loss"], saved["network"], numbers=False), (3, 4)), expected)


def test_explanation_counts_what_is_trained():
    assert adam_loss().note(lambda part: "networks.x") == "trains networks.x (adam, 8 parameters)"
    assert Plain(nn.Identity(), sgd).note(lambda part: "networks.x") == "evaluates networks.x"


def test_loss_must_be_written():
    with pytest.raises(TypeError, match="LossCallback does not define a loss"):
        LossCallback(Line(), sgd).backward()
