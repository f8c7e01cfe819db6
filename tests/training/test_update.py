"""The generated update: it calls targets, losses and steps in order, and refuses hooks that break their contract."""

from functools import partial

import pytest
import torch
from tests.training.batches import Served
from torch import nn

from rlrun.callbacks import LossCallback, TargetCallback
from rlrun.commands.train import Experiment
from rlrun.config import compose
from rlrun.core.errors import WiringError
from rlrun.training.callback import Callback
from rlrun.training.metrics import Metric, MetricStore
from rlrun.training.trainer import Trainer

sgd = partial(torch.optim.SGD, lr=1.0)


def batches(*groups, count=1):
    """Return a loader whose batches have x = 2."""
    return Served(*[{group: {"x": torch.full((3, 1), 2.0)} for group in groups or ("default",)}] * count)


class Fit(LossCallback):
    def loss(self, x, q_target):
        return (self.network(x)[..., 0] - q_target).square()


class Doubled(TargetCallback):
    def target(self, x):
        return {"q_target": 2.0 * self.target_network(x)[..., 0]}, {"batch/x": x}


def line(weight=1.0):
    network = nn.Linear(1, 1, bias=False)
    nn.init.constant_(network.weight, weight)
    return network


def source_of(overrides, groups=("default",)):
    return Experiment(compose(overrides)).trainer.update.source(groups)


DQN = """\
def update(groups, state):
    batch = groups['default']
    result = collector.begin_batch()
    state.update(result or {})
    with no_grad():
        outputs, metrics = of_target(q_target.target(batch['next_observation'], batch['reward'], \
batch['terminated'], discount=batch['discount']))
    batch.update(outputs)
    q_target.store.put(metrics)
    loss, outputs, metrics = of_loss(q_loss.loss(batch['observation'], batch['action'], batch['q_target']))
    batch.update(q_loss.step(loss, outputs, metrics))
    q_target.move()
    q_target.passed()
"""


def test_update_of_dqn_reads_as_its_plan():
    assert source_of(["algorithm=dqn", "env=cartpole"]) == DQN


def test_weights_and_rates_go_to_the_step():
    source = source_of(["algorithm=dqn", "env=cartpole", "memory=prioritized"])
    assert "q_loss.step(loss, outputs, metrics, weight=batch['weight']))\n" in source
    rate = "+callbacks.rate={_target_: rlrun.callbacks.Schedule, provides: learning_rate, value: 0.1}"
    source = source_of(["algorithm=dqn", "env=cartpole", rate])
    assert "q_loss.step(loss, outputs, metrics, learning_rate=batch['learning_rate']))\n" in source


class Far(Callback):
    data_group = "far"

    def end_batch(self, x):
        self.seen = x


def test_each_data_group_has_its_batch():
    fit = Fit(line(), sgd, data_group="near")
    callbacks = {"far": Far(), "target": Doubled(line(), data_group="near"), "class": fit}
    update = Trainer(callbacks, batches("near", "far")).update
    source = update.source(["near", "far"])
    assert "near_batch = groups['near']\n" in source
    assert "class_.loss(near_batch['x'], near_batch['q_target'])" in source
    assert "far.end_batch(far_batch['x'])\n" in source
    assert "far" not in update.source(["near"])
    assert update.source(["far"]) == (
        "def update(groups, state):\n    batch = groups['far']\n    far.end_batch(batch['x'])\n"
    )


NAMES = (
    *("batch", "no_grad", "__builtins__", "2nd", "a-b", "a_b", "ﬁt", "x²"),
    *('x"]\nraise SystemExit #', "None", "state"),
)


def test_any_name_makes_a_source():
    callbacks = {name: Far() for name in NAMES}
    for callback, group in zip(callbacks.values(), reversed(NAMES), strict=True):
        callback.data_group = group
    groups = {group: {"x": torch.full((1,), float(number))} for number, group in enumerate(NAMES)}
    Trainer(callbacks, Served(groups)).train()
    assert [float(callback.seen) for callback in callbacks.values()] == [*reversed(range(len(NAMES)))]


def test_regions_leave_names_of_callbacks_alone():
    class Compiles:
        def fits(self, step):
            return step.label == "loss"

        def region(self, hooks):
            return lambda groups, state: ran.extend(step.callback.name for step in hooks.steps)

    ran = []
    fits = [Fit(line(), sgd) for _ in range(2)]
    order = {"target": Doubled(line()), "fit": fits[0], "compiled": Backward(), "compiled_": fits[1]}
    Trainer(order, batches(), fuse=Compiles()).train()
    assert ran == ["fit", "compiled_"]
    assert order["compiled"].seen.tolist() == [[2.0]] * 3


class Backward(Callback):
    data_group = "default"

    def backward(self, x):
        self.seen = x


def test_updates_differ_by_what_is_due():
    fit, target = Fit(line(), sgd, every=2), Doubled(line(), every=3, tau=1.0)
    fit.optimizer.param_groups[0]["lr"] = 0.125  # the gradient is 2 x (w x - 2 w' x) = 8 (w - 2 w')
    weights = []

    class Watch(Callback):
        def end_batch(self):
            weights.append((float(fit.network.weight.detach()), float(target.target_network.weight)))

    Trainer({"target": target, "watch": Watch(), "fit": fit}, batches(count=5)).train()
    assert weights == [(1.0, 1.0), (2.0, 1.0), (2.0, 1.0), (2.0, 1.0), (2.0, 1.0)]
    assert (fit.turns, fit.updates, target.turns) == (5, 2, 5)


def test_loss_that_is_not_due_has_its_other_hooks_called():
    class Provides(Fit):
        provides = ("share",)

        def begin_batch(self):
            calls.append("begin")
            return {"share": 1.0}

        def end_batch(self, share):
            calls.append("end")

    calls = []
    Trainer({"target": Doubled(line()), "fit": Provides(line(), sgd, every=2)}, batches(count=3)).train()
    assert calls == ["begin", "end"] * 3


def test_target_of_before_is_refused():
    class Old(Doubled):
        def begin_batch(self, x):
            return {"q_target": x}

    with pytest.raises(WiringError, match=r"callbacks\.old: Old overrides begin_batch; a target is"):
        Trainer({"old": Old(line())}, batches())


class Remembers(Fit):
    def loss(self, x, q_target):
        self.newest = x
        return super().loss(x, q_target)


class RememberingTarget(Doubled):
    def target(self, x):
        self.newest = x
        return super().target(x)


@pytest.mark.parametrize("kind", [Remembers, RememberingTarget])
def test_hook_that_assigns_an_attribute_is_refused(kind):
    target, fit = Doubled(line()), Fit(line(), sgd)
    if issubclass(kind, Doubled):
        target, place = kind(line()), "q_target.target"
    else:
        fit, place = kind(line(), sgd), "q_loss.loss"
    trainer = Trainer({"q_target": target, "q_loss": fit}, batches())
    with pytest.raises(WiringError) as error:
        trainer.train()
    message = f"callbacks.{place} changes 'newest'; it may only read: return metrics, outputs, or what lasts"
    assert str(error.value) == f"{message} under 'updates', a dict of buffers"
    assert float(fit.network.weight.detach()) == 1.0
    assert trainer.state["update"] == 1


class TakesItsStep(Fit):
    def loss(self, x, q_target):
        super().loss(x, q_target).mean().backward()
        return super().loss(x, q_target)


def test_loss_that_takes_its_gradients_itself_is_refused():
    trainer = Trainer({"q_target": Doubled(line()), "q_loss": TakesItsStep(line(), sgd)}, batches())
    with pytest.raises(WiringError, match=r"^callbacks\.q_loss\.loss calls backward\(\); a loss is returned"):
        trainer.train()


class Pair(Fit):
    def loss(self, x, q_target):
        return super().loss(x, q_target), {"seen": x}


class Nothing(Fit):
    def loss(self, x, q_target):
        return None


class Number(Doubled):
    def target(self, x):
        return super().target(x)[0]["q_target"]


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (
            {"q_target": Doubled(line()), "q_loss": Pair(line(), sgd)},
            "callbacks.q_loss.loss: a loss returns the loss of each element, or that, outputs and metrics "
            "(return loss, {}, {}); got Tensor, dict",
        ),
        (
            {"q_target": Doubled(line()), "q_loss": Nothing(line(), sgd)},
            "callbacks.q_loss.loss: a loss returns the loss of each element, or that, outputs and metrics "
            "(return loss, {}, {}); got None, as without a return",
        ),
        (
            {"q_target": Number(line()), "q_loss": Fit(line(), sgd)},
            "callbacks.q_target.target: a target returns outputs and metrics, two dicts; got Tensor",
        ),
    ],
    ids=["pair", "nothing", "tensor of a target"],
)
def test_result_of_another_form_is_refused(callbacks, message):
    with pytest.raises(WiringError) as error:
        Trainer(callbacks, batches()).train()
    assert str(error.value) == message


class Counting(Fit):
    """Weights each loss by the updates so far, which it keeps in a buffer."""

    def __init__(self, network):
        super().__init__(network, sgd)
        self.network.register_buffer("count", torch.zeros(()))

    def loss(self, x, q_target):
        count = self.network.count + 1
        return count * super().loss(x, q_target), {"updates": {"network.count": count}}, {"count": count}


def test_updates_among_outputs_write_buffers():
    fit = Counting(line())
    buffer = fit.network.count
    Trainer({"q_target": Doubled(line()), "q_loss": fit}, batches(count=3)).train()
    assert fit.network.count is buffer
    assert float(buffer) == 3.0
    assert float(fit.metrics["count"]) == 3.0


def test_metrics_are_reduced_when_they_are_read():
    store, value = MetricStore(), torch.tensor([1.0, 2.0, 6.0], requires_grad=True)
    assert store.read() == {}
    store.put(
        {
            "mean": value,
            "flags": torch.tensor([True, False, False, False]),
            "valid": Metric((value,), valid=torch.tensor([True, True, False])),
            "size": Metric((-value,), "size"),
            "own": Metric((value, 2.0 * value), lambda one, two: (one * two).sum()),
            "number": 3,
        }
    )
    metrics = store.read()
    assert {name: float(metric) for name, metric in metrics.items()} == {
        "mean": 3.0,
        "flags": 0.25,
        "valid": 1.5,
        "size": 3.0,
        "own": 82.0,
        "number": 3.0,
    }
    assert not any(metric.requires_grad for metric in metrics.values() if isinstance(metric, torch.Tensor))
    store.put({"mean": value})
    assert [*store.read()] == ["mean"]  # the newest replace the ones before
