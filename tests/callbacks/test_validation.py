"""Validation by held-out data: its numbers, when it judges, and that training does not notice."""

import copy
import functools
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from rlrun import ops
from rlrun.algorithms.representation.classifier import ClassifierLoss
from rlrun.callbacks import Auroc, Budget, Interrupted, Validation
from rlrun.core.errors import ConfigError
from rlrun.memory.loaders.dataset import DatasetLoader
from rlrun.training.callback import Stop

DATA = {"observation": np.array([[1.0], [2.0], [-1.0], [-3.0], [4.0]], np.float32), "label": np.array([1, 1, 0, 1, 0])}


class Sign(nn.Module):
    """Scores [0, x] of two classes; in training they are wrong, and it draws."""

    def __init__(self):
        super().__init__()
        self.drop, self.shift = nn.Dropout(1.0), nn.Parameter(torch.zeros(()))

    def forward(self, observation):
        random.random(), np.random.random(), torch.rand(())
        return self.drop(torch.cat([torch.zeros_like(observation), observation + self.shift], -1))


class Listener:
    """A fake logger and checkpointer."""

    evaluation = None

    def __init__(self):
        self.written, self.best, self.uncounted = [], [], []

    def write(self, step, update, metrics, *, counted):
        self.written.append((update, metrics))
        self.uncounted += [] if counted else [update]

    def mark_best(self, step, update, *, final):
        self.best.append((step, update, final))


def of(metrics=None, **options):
    listener = Listener()
    settings = {"objective": "accuracy", "every": 10, "network": Sign(), "logger": listener, "checkpointer": listener}
    settings["loader"] = DatasetLoader(options.pop("data", DATA), batch=2)
    settings["metrics"] = {"accuracy": ops.accuracy} if metrics is None else metrics
    return Validation(**{**settings, **options}), listener


def judging(*values, **options):
    """Return a validation whose objective has these values, one after the other."""
    left = [*values]
    validation, listener = of({"score": lambda label: label}, objective="score", network=None, **options)
    validation.measure = lambda: {"score": left.pop(0)}
    return validation, listener


def test_metrics_are_over_all_rows():
    network = Sign()
    loss = ClassifierLoss(network, functools.partial(torch.optim.SGD, lr=1.0))
    metrics = {"likelihood": ops.log_likelihood, "accuracy": ops.accuracy, "auroc": Auroc(), "loss": loss, "off": None}
    numbers = of(metrics, network=network)[0].measure()
    assert [*numbers] == ["accuracy", "likelihood", "auroc", "loss"]
    assert numbers["accuracy"] == pytest.approx(3 / 5)  # mean of means of batches of 2, 2, 1 would be 0.5
    likelihood = -np.mean(np.log1p(np.exp([-1.0, -2.0, -1.0, 3.0, 4.0])))
    assert numbers["likelihood"] == pytest.approx(likelihood)
    assert numbers["loss"] == pytest.approx(-likelihood)
    assert numbers["auroc"] == pytest.approx(2 / 6)


def test_training_does_not_notice():
    validation, _ = of()
    network, loader = validation.network, validation.loader
    network.drop.eval()  # one part alone
    next(iter(loader))
    before = copy.deepcopy((network.state_dict(), loader.state_dict()))
    drawn = []
    for measured in (False, True):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        if measured:
            validation.measure()
        drawn.append((random.random(), np.random.random(), torch.rand(()).item()))
    assert drawn[0] == drawn[1]
    assert (network.training, network.drop.training, network.shift.grad) == (True, False, None)
    assert (network.state_dict(), loader.state_dict()) == before


def test_each_validation_draws_the_same():
    noise = of({"accuracy": lambda label: torch.rand(len(label))})[0]
    first = noise.measure()
    torch.rand(())
    assert noise.measure() == first


@pytest.mark.parametrize(
    ("direction", "values", "best"),
    [
        ("maximize", [0.5, 0.9, 0.9, 0.2], [10, 20, 30]),
        ("minimize", [0.5, 0.9, 0.2, 0.2], [10, 30, 40]),
        ("maximize", [math.nan, 0.1, math.nan, 0.1], [20, 40]),
    ],
)
def test_best_follows_the_direction(direction, values, best):
    validation, listener = judging(*values, direction=direction)
    for update in range(1, 41):
        validation.end_cycle(update)
    validation.end_training(Stop())
    assert [update for update, _ in listener.written] == [10, 20, 30, 40]
    assert listener.best == [(update, update, False) for update in best]
    assert listener.uncounted == []


def test_steps_count_where_some_are_made():
    validation, listener = judging(0.1, 0.2)
    for update, step in enumerate((4, 8, 12, 16, 20, 24), 1):
        validation.end_cycle(update, step)
    assert listener.best == [(12, 3, False), (20, 5, False)]


@pytest.mark.parametrize(
    ("error", "validated"), [(None, True), (Stop(), True), (Interrupted(), False), (OSError(), False)]
)
def test_the_end_is_validated_uncounted(error, validated):
    validation, listener = judging(0.1, 0.2)
    for update in range(1, 16):
        validation.end_cycle(update)
    state = validation.state_dict()
    validation.end_training(error)
    assert listener.uncounted == [15] * validated
    assert listener.best[1:] == [(15, 15, True)] * validated
    assert validation.state_dict() == state  # an extended run never made it


def test_a_resumed_one_continues():
    first, second = judging(0.5)[0], judging(0.4, 0.6)[0]
    for update in range(1, 15):
        first.end_cycle(update)
    second.load_state_dict(first.state_dict())
    assert second.checkpointer.evaluation == {"env_steps": 0, "objective": 0.5, "score": 0.5}
    for update in range(15, 31):
        second.end_cycle(update)
    assert second.checkpointer.best == [(30, 30, False)]


@pytest.mark.parametrize(
    ("direction", "limit", "stops"), [("maximize", 0.6, 2), ("minimize", 0.6, 1), ("maximize", 1, 0)]
)
def test_a_limit_stops_training(direction, limit, stops):
    validation = judging(0.5, 0.7, direction=direction)[0]
    budget = Budget(validation=limit, validator=validation)
    budget.end_cycle(1)  # nothing is measured yet
    for count in (1, 2):
        validation.end_cycle(10 * count)
        if count == stops:
            with pytest.raises(Stop, match=r"validation reached score 0\.[57]"):
                budget.end_cycle(10 * count)
            return
        budget.end_cycle(10 * count)
    assert not stops


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "acuracy"}, "validation.objective.*acuracy"),
        ({"direction": "up"}, "validation.direction"),
        (
            {"metrics": {"accuracy": lambda labels: labels}},
            r"metrics.accuracy: the held-out data have no 'labels'; .*label",
        ),
        ({"network": None}, "metrics.accuracy: the held-out data have no 'output'; there are observation, label"),
        ({"input": "image"}, "validation.input: the held-out data have no 'image'"),
    ],
)
def test_wrong_validations_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        of(**settings)


def test_limits_want_a_validation():
    with pytest.raises(ConfigError, match=r"stop\.validation: no part of this run judges by held-out data"):
        Budget(validation=0.9)


def test_label_smoothing_is_bounded():
    for value in (-0.1, 1.0):
        with pytest.raises(ConfigError, match="label_smoothing: wanted a number from 0 to below 1"):
            ClassifierLoss(Sign(), functools.partial(torch.optim.SGD, lr=1.0), label_smoothing=value)


def test_auroc_orders_confident_rows():
    auroc = Auroc()
    output = torch.tensor([[0.0, 18.0], [0.0, 20.0], [0.0, 25.0], [0.0, 60.0]])
    assert auroc.reduce(auroc(output, torch.tensor([0, 0, 1, 1]))) == 1.0
    assert auroc.reduce(auroc(output, torch.tensor([1, 0, 0, 1]))) == 0.5


def test_auroc_keeps_many_labels():
    output, label = torch.zeros(2, 400, dtype=torch.bfloat16), torch.tensor([299, 300])
    assert Auroc()(output, label)[:, -1].tolist() == [299, 300]


def test_scalar_losses_count_by_rows():
    loader = DatasetLoader({"observation": np.arange(10, dtype=np.float32)}, batch=4, shuffle=False)
    metrics = {"mean": lambda observation: observation.mean()}
    assert Validation(loader, metrics, objective="mean", every=1).measure()["mean"] == pytest.approx(4.5)
