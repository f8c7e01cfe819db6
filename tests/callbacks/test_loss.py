"""A loss steps its network, and no other, by one optimizer."""

from functools import partial

import pytest
import torch
from tests.callbacks.batches import Batches
from torch import nn

from rlrun.callbacks import JointLoss, LossCallback, Schedule
from rlrun.callbacks.losses.diagnostics import update_ratio
from rlrun.core.errors import ConfigError, DataError, WiringError
from rlrun.core.schedules import Linear
from rlrun.nn import MLP, Ensemble
from rlrun.training.callback import Callback
from rlrun.training.trainer import Trainer

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


class Summed(LossCallback):
    def loss(self, x):
        return self.network(x).sum()


def moved(loss, *arguments, **named):
    """Return how far one step took w."""
    loss.backward(*arguments, **named)
    return pytest.approx(float(loss.network.w.detach()) - 1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "x", "weight", "expected"),
    [
        (Plain, [1.0, 2.0, 6.0], None, -3.0),  # the mean
        (Summed, [1.0, 2.0, 6.0], None, -9.0),  # a scalar as it is
        (Plain, [1.0, 2.0, 6.0], [1.0, 0.5, 0.0], -2.0 / 3),
        (Plain, [[1.0, 3.0], [10.0, 10.0]], [1.0, 0.5], -(4 + 10) / 4),  # a weight of a window
        # a loss of windows, which have the mean weight of their steps; padding has the weight 0
        (Plain, [1.0, 2.0, 3.0, 4.0], [[step / 2] * 4 for step in range(4)], -2.5),
        (Plain, [1.0, 10.0], [[2.0, 0.0], [1.0, 1.0]], -(1 + 10) / 2),
        (Plain, [1.0, 10.0], [[3.0, 0.0, 0.0], [1.0, 1.0, 2.5]], -(1 + 15) / 2),
        (Plain, [[[1.0, 3.0], [5.0, 5.0]]], [[2.0, 0.5]], -(4 + 2.5) / 2),  # several numbers of each step
    ],
)
def test_elements_are_weighted_and_averaged(kind, x, weight, expected):
    given = {} if weight is None else {"weight": torch.tensor(weight)}
    assert moved(kind(Line(), sgd), torch.tensor(x), **given) == expected


@pytest.mark.parametrize(
    ("shape", "weight"),
    [
        ([], [4]),
        ([], [4, 3]),
        ([3], [4]),
        ([8], [4]),
        ([2, 4], [4]),  # members in front
        ([1, 4], [4]),
        ([3], [4, 3]),  # steps
        ([2, 4, 3], [4, 3]),
        ([4, 2], [4, 3]),
        ([3, 4], [4, 3]),
        ([12], [4, 3]),
    ],
    ids=str,
)
@pytest.mark.parametrize("joint", [False, True])
def test_loss_of_other_elements_than_have_weights_is_refused(shape, weight, joint):
    class Shaped(LossCallback):
        def loss(self, x):
            return self.network(torch.ones(shape))

    loss = Shaped(Line(), None if joint else sgd)
    loss = JointLoss(sgd, terms={"line": loss}) if joint else loss
    batches = Batches(x=torch.ones(4), weight=torch.ones(weight))
    with pytest.raises(WiringError, match=r"callbacks\.line\.loss: its shape is") as raised:
        Trainer({"line": loss}, batches).train()
    assert f"{shape}, and its batch has a weight for each of {weight}" in str(raised.value)


@pytest.mark.parametrize(("limit", "expected"), [(None, -3.0), (5.0, -3.0), (0.5, -0.5)])
def test_gradients_are_clipped_by_their_norm(limit, expected):
    loss = Plain(Line(), sgd, max_grad_norm=limit)
    loss.name = "line"
    assert moved(loss, torch.tensor([3.0])) == expected
    assert loss.metrics.get("grad_norm/line") == (None if limit is None else 3.0)


@pytest.mark.parametrize(("limit", "expected"), [(None, -1.5), (1.0, -1.0), (2.0, -1.5)])
def test_weights_scale_gradients_before_they_are_clipped(limit, expected):
    loss = Plain(Line(), sgd, max_grad_norm=limit, loss_weight=0.5)
    loss.name = "line"
    assert moved(loss, torch.tensor([3.0])) == expected
    assert float(loss.metrics["loss/line"]) == 3.0


def test_adam_alone_hardly_sees_a_weight():
    networks = [Line(), Line()]
    for network, weight in zip(networks, (1.0, 0.1), strict=True):
        loss = Plain(network, partial(torch.optim.Adam, lr=0.1), loss_weight=weight)
        for _ in range(3):
            loss.backward(torch.tensor([3.0]))
    assert float(networks[0].w.detach()) == pytest.approx(float(networks[1].w.detach()), rel=1e-5)


@pytest.mark.parametrize("weight", ["half", float("nan")])
def test_weights_are_numbers(weight):
    with pytest.raises(ConfigError, match="loss_weight: wanted a number"):
        Plain(Line(), sgd, loss_weight=weight)


def test_schedule_sets_rate_of_updates():
    loss = Plain(Line(), sgd, schedule=lambda update: (0.5, 0.25, 0.125)[update])
    positions = []
    for _ in range(3):
        loss.backward(torch.ones(1))
        positions.append(float(loss.network.w.detach()))
    assert positions == [0.5, 0.25, 0.125]


CLIPPED = {  # gradients (3, 4) and 0.5 of parameters (6, 8) and 0, to at most 1, or at most a twentieth of a norm
    "global": (1.0, [3 / 25.25**0.5, 4 / 25.25**0.5], 0.5 / 25.25**0.5),
    "parameter": (1.0, [0.6, 0.8], 0.5),
    "value": (1.0, [1.0, 1.0], 0.5),
    "adaptive": (0.05, [0.3, 0.4], 5e-5),  # norms 10, and 0, which counts as 0.001
    "none": (None, [3.0, 4.0], 0.5),
}


class Two(nn.Module):
    """3 a + 4 b + c / 2."""

    def __init__(self):
        super().__init__()
        self.ab, self.c = nn.Parameter(torch.tensor([6.0, 8.0])), nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x * (self.ab @ torch.tensor([3.0, 4.0]) + self.c / 2)


@pytest.mark.parametrize("by", CLIPPED)
def test_gradients_are_clipped_by_each_norm(by):
    limit, ab, c = CLIPPED[by]
    loss = Plain(Two(), sgd, max_grad_norm=limit, grad_clip=by)
    loss.name = "two"
    loss.backward(torch.ones(1))
    torch.testing.assert_close(loss.network.ab.grad, torch.tensor(ab), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(loss.network.c.grad, torch.tensor(c), atol=1e-6, rtol=1e-4)
    assert float(loss.metrics["grad_norm/two"]) == pytest.approx(25.25**0.5)


def test_invalid_clipping_is_refused():
    with pytest.raises(ConfigError, match=r"grad_clip: wanted one of global, .*got 'norms'"):
        Plain(Line(), sgd, grad_clip="norms")
    with pytest.raises(ConfigError, match="grad_clip 'value' needs a limit: max_grad_norm"):
        Plain(Line(), sgd, grad_clip="value")


def test_learning_rate_comes_by_name():
    first, second = Plain(Line(), sgd), Plain(Line(), sgd, schedule=lambda update: 0.25)
    rate = Schedule("learning_rate", Linear(1.0, 0.0, steps=4))  # 0.75 and 0.5 at updates 1 and 2
    Trainer({"first": first, "second": second, "rate": rate}, Batches("x", times=2)).train()
    assert float(first.network.w.detach()) == 1.0 - 3.0 * (0.75 + 0.5)
    assert float(second.network.w.detach()) == 1.0 - 3.0 * (0.25 + 0.25)  # its own goes before
    assert first.metrics["learning_rate/first"] == 0.5
    assert second.metrics["learning_rate/second"] == 0.25


def test_learning_rate_is_optional():
    loss = Plain(Line(), sgd)
    (step,) = Trainer({"loss": loss}, Batches("x")).plan.steps["backward"]
    assert step.asks == ("x",)
    loss.name = "loss"
    loss.backward(torch.ones(1))
    assert loss.metrics["learning_rate/loss"] == loss.optimizer.param_groups[0]["lr"]  # logged all the same


def test_gradients_of_other_networks_are_unchanged():
    class Through(LossCallback):
        def loss(self, x):
            return downstream(self.network(x))

    downstream, loss = Line(), Through(Line(), sgd)
    downstream.w.grad = torch.tensor(7.0)
    loss.backward(torch.ones(2))
    assert float(downstream.w.grad) == 7.0
    assert float(downstream.w.detach()) == 1.0
    assert float(loss.network.w.detach()) == 0.0


def test_gradients_do_not_accumulate():
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


class Naming(LossCallback):
    provides = ("doubled",)

    def loss(self, x, shift=None):
        value = self.network(x)
        return value if shift is None else value + shift, {"doubled": 2 * value.detach()}, {}


class Reader(Callback):
    data_group = "default"

    def end_batch(self, doubled):
        self.found = doubled.tolist()


def test_named_results_reach_later_callbacks():
    reader = Reader()
    Trainer({"loss": Naming(Line(), sgd), "reader": reader}, Batches("x")).train()
    assert reader.found == [4.0, 8.0]


@pytest.mark.parametrize(("names", "expected"), [(("x",), 3.0), (("x", "shift"), 6.0), (("x", "weight"), 10.0)])
def test_optional_names_are_used(names, expected):
    loss = Naming(Line(), sgd)
    Trainer({"line": loss}, Batches(*names)).train()
    assert float(loss.metrics["loss/line"]) == expected  # mean of x, of x + shift, of x * weight


def test_network_without_parameters_is_only_evaluated():
    class Constant(LossCallback):
        def loss(self, x):
            assert not torch.is_grad_enabled()
            return x, {"doubled": 2 * x}, {}

    loss = Constant(nn.Identity(), sgd)
    assert loss.backward(torch.ones(1))["doubled"].tolist() == [2.0]
    assert loss.metrics == {}
    loss.load_state_dict(loss.state_dict())


def test_loss_must_be_written():
    with pytest.raises(TypeError, match="LossCallback does not define a loss"):
        LossCallback(Line(), sgd).backward()


@pytest.mark.parametrize(
    "asks", [lambda loss: loss.metrics, Plain.state_dict, None], ids=["log", "checkpoint", "nobody"]
)
def test_infinite_loss_is_named(asks, monkeypatch):
    monkeypatch.setattr("rlrun.callbacks.losses.diagnostics.CHECKED_TOGETHER", 4)
    loss = Plain(Line(), sgd)
    loss.name = "line"
    for x in (1.0, 2.0, float("inf")):
        loss.backward(torch.tensor([x]))
    with pytest.raises(DataError, match=r"callbacks\.line: the loss is -inf at its update 3;"):
        asks(loss) if asks is not None else loss.backward(torch.tensor([1.0]))


def test_scheduler_of_torch_is_refused():
    with pytest.raises(
        ConfigError, match=r"schedule: wanted a function of the number of updates, as rlrun\.core\.schedules"
    ):
        Plain(Line(), sgd, schedule=partial(torch.optim.lr_scheduler.LinearLR, total_iters=5))


# --- how a network takes its updates


ADAM = partial(torch.optim.Adam, lr=0.01)


class Fit(LossCallback):
    def loss(self, observation):
        return (self.network(observation) - 1.0).square().flatten(1).mean(1)


def fitted(network, updates=3, optimizer=ADAM):
    loss = Fit(network, optimizer)
    loss.name = "fit"
    for _ in range(updates):
        loss.backward(torch.randn(16, 3))
    return loss


@pytest.mark.parametrize("fused", [False, True])
def test_update_ratio_is_step_over_weights(fused):
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


def test_update_ratio_needs_adam_and_matrices():
    assert "update_ratio/fit" not in fitted(MLP(3, 2), optimizer=partial(torch.optim.SGD, lr=0.01)).metrics
    assert update_ratio(torch.optim.Adam([nn.Parameter(torch.ones(3))])) is None


def test_units_without_gradient_are_dead():
    torch.manual_seed(0)
    network = MLP(3, 2, hidden=(8, 8), init="orthogonal")
    whole = float(fitted(network, updates=1).metrics["dead_units/fit"])
    with torch.no_grad():
        network[0].bias[:4] = -1e3
    assert float(fitted(network, updates=1).metrics["dead_units/fit"]) >= max(whole, 4 / 16)
    assert whole < 4 / 16


def test_units_of_every_member_count():
    torch.manual_seed(0)
    network = Ensemble(3, 1, members=2, hidden=(8,), activation="tanh")
    with torch.no_grad():
        network.layers[0].bias[0] = 100.0  # all units of the first member are at the end of tanh
    assert float(fitted(network, updates=1).metrics["dead_units/fit"]) == 0.5


def test_reading_metrics_changes_nothing():
    torch.manual_seed(0)
    loss = fitted(MLP(3, 2, hidden=(8,)))
    weights = [parameter.detach().clone() for parameter in loss.parameters]
    state = torch.random.get_rng_state()
    assert dict(loss.metrics) == dict(loss.metrics)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(*pair) for pair in zip(weights, loss.parameters, strict=True))


def test_loss_without_gradient_is_refused():
    class Detached(Plain):
        def loss(self, x):
            return super().loss(x).detach()

    with pytest.raises(WiringError, match=r"callbacks\.\.loss: the loss has no gradient"):
        Detached(Line(), partial(torch.optim.SGD, lr=1.0)).backward(torch.ones(3))


class Weighs(LossCallback):
    """Weighs its elements itself, by an argument of any name."""

    def loss(self, x, w):
        return self.network(x) * w


class Called(LossCallback):
    """Asks for weights, and may get them by another name."""

    def loss(self, x, weight):
        return self.network(x) * weight


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(
    ("kind", "inputs", "expected"), [(Weighs, {"w": "weight"}, -3.0), (Called, {"weight": "mine"}, -1.0)]
)
def test_a_loss_that_weighs_is_not_weighted_again(kind, inputs, expected, joint):
    loss = kind(Line(), None if joint else sgd)
    loss.inputs = inputs
    whole = JointLoss(sgd, terms={"line": loss}) if joint else loss
    batches = Batches(x=torch.ones(2), weight=torch.tensor([2.0, 4.0]), mine=torch.ones(2))
    Trainer({"line": whole}, batches).train()
    assert float(loss.network.w.detach()) - 1.0 == pytest.approx(expected)


def test_errors_of_an_earlier_update_are_dropped():
    loss = Plain(Line(), sgd, every=2)
    loss.watched = True
    for number in range(3):
        loss.backward(torch.ones(2))
        assert (loss.elements is not None) == (number == 1)


@pytest.mark.parametrize("limit", [-1, 0, "much", [1.0]])
def test_a_limit_of_gradients_is_a_number_above_0_or_null(limit):
    with pytest.raises(ConfigError, match="max_grad_norm: wanted a number above 0"):
        Plain(Line(), sgd, max_grad_norm=limit)
