"""Several losses make one step of one optimizer, as their sum in a loop of torch does."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from tests.callbacks.batches import Batches
from torch import nn

from rlrun.callbacks import JointLoss, LossCallback, replaced
from rlrun.callbacks.losses.loss import BonusLoss
from rlrun.core.errors import ConfigError, WiringError, shown
from rlrun.core.schedules import Linear
from rlrun.nn import grouped
from rlrun.training.callback import Callback
from rlrun.training.trainer import Trainer

ADAMW = partial(torch.optim.AdamW, lr=0.05, weight_decay=0.1)
SGD = partial(torch.optim.SGD, lr=0.1)
ROWS = {
    "x": torch.randn(8, 3, generator=torch.Generator().manual_seed(1)),
    "y": torch.randn(8, generator=torch.Generator().manual_seed(2)),
    "weight": torch.rand(8, generator=torch.Generator().manual_seed(3)),
}


class Fit(LossCallback):
    """[B] or, of more than one output, [B, T]."""

    provides = ("fitted",)

    def loss(self, x, y):
        fitted = self.network(x)
        return (fitted - y[:, None]).square(), {"fitted": fitted}, {"fit/mean": fitted}


class Small(LossCallback):
    def loss(self, fitted, shift=None):
        return fitted.abs().mean(-1)


class Norm(LossCallback):
    def loss(self, x):
        return self.network(x).square().mean(-1)


class Counting(LossCallback):
    def __init__(self, network, optimizer=None):
        super().__init__(network, optimizer)
        self.network.register_buffer("seen", torch.zeros(()))

    def loss(self, x):
        return self.network(x).square(), {"updates": {"network.seen": self.network.seen + len(x)}}, {}


class Reader(Callback):
    data_group = "default"

    def end_batch(self, fitted):
        self.fitted = fitted


def networks():
    torch.manual_seed(0)
    trunk = nn.Linear(3, 4)
    return nn.Sequential(trunk, nn.Tanh(), nn.Linear(4, 2)), nn.Sequential(trunk, nn.Tanh(), nn.Linear(4, 1))


def joint(optimizer=ADAMW, **options):
    """Two terms that share a layer, of which the second one reads what the first provides."""
    first, second = networks()
    terms = {"fit": Fit(first, None), "small": Small(second, None)}
    return JointLoss(optimizer, terms=terms, loss_weight={"small": 0.3}, **options)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("names", [("x", "y"), ("x", "y", "weight")])
def test_terms_step_as_their_sum_does(names, clip):
    loss, reader = joint(max_grad_norm=clip), Reader()
    rows = {name: ROWS[name] for name in names}
    Trainer({"sum": loss, "reader": reader}, Batches(times=6, **rows)).train()
    first, second = networks()
    parameters = list({id(p): p for network in (first, second) for p in network.parameters()}.values())
    optimizer, weight = ADAMW(parameters), rows.get("weight", torch.ones(8))
    for _ in range(6):
        fitted = first(ROWS["x"])
        fit = ((fitted - ROWS["y"][:, None]).square() * weight[:, None]).mean()
        small = (fitted.abs().mean(-1) * weight).mean()
        optimizer.zero_grad(set_to_none=True)
        (fit + 0.3 * small).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
    ours = [p for term in loss.terms.values() for p in term.network.parameters()]
    theirs = [p for network in (first, second) for p in network.parameters()]
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    metrics = loss.metrics
    torch.testing.assert_close(metrics["loss/sum"], metrics["loss/fit"] + 0.3 * metrics["loss/small"])
    torch.testing.assert_close(metrics["loss/fit"], fit.detach())
    assert not reader.fitted.requires_grad


@pytest.mark.parametrize(("weights", "factor"), [(None, 1.0), ({"fit": 3.0}, 3.0), (0.5, 0.5)])
def test_weights_of_terms_and_of_the_sum(weights, factor):
    network = nn.Linear(3, 1)
    weight = network.weight.detach().clone()
    fit = Fit(network, None, loss_weight=2.0)
    (gradient,) = torch.autograd.grad(fit.loss(ROWS["x"], ROWS["y"])[0].mean(), [network.weight])
    joint = JointLoss(SGD, terms={"fit": fit}, loss_weight=weights)
    joint.backward(ROWS["x"], ROWS["y"])
    torch.testing.assert_close(network.weight, weight - 0.1 * 2.0 * factor * gradient)


def test_decay_and_rates_by_term_and_name():
    network = nn.Sequential(nn.Linear(1, 1), nn.LayerNorm(1))
    head = nn.Linear(1, 1)
    for module in (network[0], head):
        nn.init.constant_(module.weight, 2.0)
        nn.init.constant_(module.bias, 3.0)
    groups = {
        "decayed": {"modules": ["Linear"], "names": ["weight"], "weight_decay": 0.5},
        "slow": {"names": ["head"], "lr": 0.01},
    }

    class Sum(LossCallback):
        def loss(self, x):
            return sum(parameter.sum() for parameter in self.network.parameters())

    recipe = partial(grouped, optimizer=SGD, groups=groups, lr=0.1)
    terms = {"body": Sum(network, None), "head": Sum(head, None)}
    loss = JointLoss(recipe, terms=terms, loss_weight={"head": 4.0})
    Trainer({"loss": loss}, Batches("x")).train()
    assert network[0].weight.item() == pytest.approx(2.0 - 0.1 * (1.0 + 0.5 * 2.0))
    assert network[0].bias.item() == pytest.approx(3.0 - 0.1)
    assert (network[1].weight.item(), network[1].bias.item()) == pytest.approx((0.9, -0.1))  # norms do not decay
    assert head.weight.item() == pytest.approx(2.0 - 0.01 * (4.0 + 0.5 * 2.0))
    assert head.bias.item() == pytest.approx(3.0 - 0.01 * 4.0)
    assert "1 × body + 4 × head" in loss.note(str)


def apart(**options):
    """Two terms that share a layer, each with an optimizer of its own; that of the second has no rate of its own."""
    own = {"names": ["norm"], "exclude": ["fit"], "optimizer": partial(torch.optim.SGD, momentum=0.9)}
    terms = {
        name: kind(network, None) for name, kind, network in zip(("fit", "norm"), (Fit, Norm), networks(), strict=True)
    }
    return JointLoss(partial(grouped, optimizer=ADAMW, groups={"norm": own}), terms=terms, **options)


def test_terms_have_optimizers_of_their_own():
    """What both share is stepped by the first one's."""
    rate = Linear(0.05, 0.01, 4)
    loss = apart(max_grad_norm=0.05, schedule=rate)
    assert "adamw and sgd" in loss.note(str)
    Trainer({"sum": loss}, Batches(times=6, **ROWS)).train()
    first, second = networks()
    optimizers = ADAMW([*first.parameters()]), torch.optim.SGD(second[2].parameters(), 0.05, momentum=0.9)
    for update in range(6):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
            optimizer.param_groups[0]["lr"] = rate(update)
        fit = ((first(ROWS["x"]) - ROWS["y"][:, None]).square() * ROWS["weight"][:, None]).mean()
        (fit + (second(ROWS["x"]).square().mean(-1) * ROWS["weight"]).mean()).backward()
        nn.utils.clip_grad_norm_([*first.parameters(), *second[2].parameters()], 0.05)
        for optimizer in optimizers:
            optimizer.step()
    ours = [p for term in loss.terms.values() for p in term.network.parameters()]
    torch.testing.assert_close(ours, [*first.parameters(), *second.parameters()], rtol=1e-6, atol=1e-7)
    assert loss.metrics["learning_rate/sum/norm"] == pytest.approx(0.01)
    assert loss.metrics["update_ratio/sum"] > 0.0


def test_terms_move_buffers_and_give_priorities():
    counting = Counting(nn.Linear(3, 1))
    loss = JointLoss(SGD, terms={"count": counting, "fit": Fit(nn.Linear(3, 1), None)})
    loss.watched = True
    before = deepcopy(counting.network)
    Trainer({"loss": loss}, Batches(**ROWS)).train()
    assert counting.network.seen == 8
    torch.testing.assert_close(loss.elements, before(ROWS["x"]).abs().detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [joint, apart])
def test_optimizer_states_are_loaded(make):
    whole, left, resumed = make(), make(), make()
    Trainer({"loss": whole}, Batches(times=5, **ROWS)).train()
    Trainer({"loss": left}, Batches(times=2, **ROWS)).train()
    resumed.load_state_dict(left.state_dict())
    resumed.network.load_state_dict(left.network.state_dict())
    assert resumed.state_dict()["names"][0] == "fit.0.weight"
    Trainer({"loss": resumed}, Batches(times=3, **ROWS)).train()
    assert resumed.updates == 5
    for name, value in whole.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], value), name


def test_a_loss_without_optimizer_is_evaluated():
    network = nn.Linear(3, 1)
    before, loss = deepcopy(network.state_dict()), Fit(network, None)
    Trainer({"loss": loss}, Batches(**ROWS)).train()
    wanted = (network(ROWS["x"]) - ROWS["y"][:, None]).square() * ROWS["weight"][:, None]
    torch.testing.assert_close(loss.metrics["loss/loss"], wanted.mean().detach())
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


@pytest.mark.parametrize("own", [False, True])
def test_first_schedule_is_that_of_the_sum(own):
    options = {"schedule": lambda updates: 7.0} if own else {}
    terms = {"a": Fit(nn.Linear(3, 1), None, schedule=Linear(1.0, 0.0, 10)), "b": Small(nn.Linear(3, 1), None)}
    loss = JointLoss(SGD, terms=terms, **options)
    for expected in (1.0, 0.9):
        loss.backward(ROWS["x"], ROWS["y"])
        assert loss.optimizer.param_groups[0]["lr"] == (7.0 if own else pytest.approx(expected))


class Begins(Small):
    def begin_batch(self, x):
        pass


class Hand(LossCallback):
    def backward(self, x):
        pass


class Alone(BonusLoss):
    def loss(self, absent):
        return absent


def test_terms_that_assign_are_refused():
    class Assigns(Small):
        def loss(self, x):
            self.seen = x
            return self.network(x)

    loss = JointLoss(SGD, terms={"a": Assigns(nn.Linear(3, 1), None)})
    with pytest.raises(WiringError, match=r"callbacks.sum.loss changes 'a\.seen'; it may only read"):
        Trainer({"sum": loss}, Batches(**ROWS)).train()


@pytest.mark.parametrize(
    ("terms", "options", "message"),
    [
        ({}, {}, "terms: a JointLoss needs losses by name"),
        ({"a": 3}, {}, r"terms.a: wanted a loss, a rlrun.callbacks.LossCallback; got 3"),
        ({"a": lambda: Small(nn.Linear(1, 1), SGD)}, {}, "terms.a.optimizer: the joint loss steps all terms"),
        ({"a": lambda: Small(nn.Linear(1, 1), None, every=2)}, {}, "terms.a: every, max_grad_norm and schedule are"),
        ({"fit": lambda: Fit(nn.Linear(3, 1), None),
          "a": lambda: Small(nn.Linear(1, 1), None, schedule=Linear(1.0, 0.0, 9))},
         {}, "terms.a: every, max_grad_norm and schedule are"),
        ({"a": lambda: Begins(nn.Linear(1, 1), None)}, {}, r"terms.a: a Begins does more than a loss \(begin_batch\)"),
        ({"a": lambda: Hand(nn.Linear(1, 1), None)}, {}, r"terms.a: a Hand does more than a loss \(backward\)"),
        ({"fit": lambda: Fit(nn.Linear(3, 1), None)}, {"loss_weight": {"fti": 2.0}},
         r"loss_weight.fti: there is no such term \(did you mean 'fit'\?\)"),
        *(({"fit": lambda: Fit(nn.Linear(3, 1), None)}, {"loss_weight": {"fit": factor}},
           f"loss_weight.fit: wanted a number from 0, got {shown(factor)}") for factor in ("a", None, float("nan"))),
        ({"a": lambda: Alone(nn.Linear(1, 1), None)}, {}, "callbacks.loss.loss asks for 'absent'"),
        ({"a": lambda: Small(nn.Linear(3, 1), None), "b": lambda: Fit(nn.Linear(3, 1), None)}, {},
         "callbacks.loss.loss asks for 'fitted'"),  # of a later term
    ],
)  # fmt: skip
def test_impossible_terms_are_refused(terms, options, message):
    losses = {name: term() if callable(term) else term for name, term in terms.items()}
    with pytest.raises((ConfigError, WiringError), match=message):
        Trainer({"loss": JointLoss(SGD, terms=losses, **options)}, Batches(**ROWS))


def test_replaced_callbacks_keep_their_places():
    first, second, other = Callback(), Callback(), Callback()
    callbacks = {"first": first, "second": second, "none": None}
    assert [*replaced(callbacks, by={"first": other}).items()] == [("first", other), ("second", second), ("none", None)]
    for name in ("frist", "none"):
        with pytest.raises(ConfigError, match=f"by.{name}: there is no callback of that name"):
            replaced(callbacks, by={name: other})
