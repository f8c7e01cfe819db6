"""Errors of an update reach the memory that its batch came from."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from rlrun.callback import Callback, SkipBatch
from rlrun.callbacks import LossCallback, PriorityFeedback
from rlrun.errors import RlrunError, WiringError
from rlrun.trainer import Trainer

sgd = partial(torch.optim.SGD, lr=0.0)


class Distance(LossCallback):
    """The loss of an element is the square of its distance from three."""

    def loss(self, x):
        return (x - 3.0 + 0.0 * self.network(x[..., None])[..., 0]).square()


class Slope(LossCallback):
    def loss(self, x):
        return x.abs() + 0.0 * self.network(x[..., None])[..., 0]

    def error(self, elements):
        return elements


class Table:
    """Remembers what it was told."""

    def __init__(self):
        self.told = []

    def feedback(self, priority):
        self.told.append(priority.tolist())


class Batches:
    """Serve batches of x, each the same in all groups but for a factor."""

    def __init__(self, *batches, groups=("default",), names=("x",)):
        self.batches, self.groups, self.given = batches, groups, names

    def names(self):
        return dict.fromkeys(self.groups, self.given)

    def __iter__(self):
        for batch in self.batches:
            x = torch.tensor(batch)
            yield {group: dict.fromkeys(self.given, 10.0**factor * x) for factor, group in enumerate(self.groups)}


def told(loader, *, feedback=None, **callbacks):
    """Train; return what the table was told."""
    table = Table()
    Trainer({**callbacks, "priority": PriorityFeedback(table, **(feedback or {}))}, loader).train()
    return table.told


def distance(**options):
    return Distance(nn.Linear(1, 1), sgd, **options)


def test_table_is_told_the_errors_of_each_batch():
    assert told(Batches([1.0, 5.5], [3.0, 2.0]), loss=distance()) == [[2.0, 2.5], [0.0, 1.0]]


def test_errors_of_windows_keep_their_shape():
    assert told(Batches([[1.0, 5.5], [3.0, 2.0]]), loss=distance()) == [[[2.0, 2.5], [0.0, 1.0]]]


def test_weights_do_not_count():
    assert told(Batches([1.0, 5.5], names=("x", "weight")), loss=distance()) == [[2.0, 2.5]]


def test_first_loss_counts_unless_another_is_named():
    losses = {"first": distance(), "other": Slope(nn.Linear(1, 1), sgd)}
    assert told(Batches([1.0, -5.0]), **losses) == [[2.0, 8.0]]
    assert told(Batches([1.0, -5.0]), feedback={"loss": "other"}, **losses) == [[1.0, 5.0]]


def test_each_data_group_has_a_table_of_its_own():
    near, far = Table(), Table()
    callbacks = {
        "far": distance(data_group="far"),
        "near": distance(data_group="near"),
        "to_near": PriorityFeedback(near, data_group="near"),
        "to_far": PriorityFeedback(far, data_group="far"),
    }
    Trainer(callbacks, Batches([1.0, 4.0], groups=("near", "far"))).train()
    assert (near.told, far.told) == ([[2.0, 1.0]], [[7.0, 37.0]])


def test_a_batch_that_is_skipped_has_no_errors():
    class Skip(Callback):
        data_group = "default"

        def backward(self, update):
            if update == 2:
                raise SkipBatch

    assert told(Batches([1.0], [2.0], [5.0]), skip=Skip(), loss=distance()) == [[2.0], [2.0]]


def test_a_loss_without_a_turn_has_no_errors():
    class Every(Distance):
        def backward(self, x, weight=None):
            return super().backward(x) if float(x) != 2.0 else None

    assert told(Batches([1.0], [2.0], [5.0]), loss=Every(nn.Linear(1, 1), sgd)) == [[2.0], [2.0]]


def test_one_loss_a_batch_is_refused():
    class Summed(Distance):
        def loss(self, x):
            return super().loss(x).sum()

    with pytest.raises(RlrunError, match=r"the loss of callbacks\.sum is one number a batch"):
        told(Batches([1.0]), sum=Summed(nn.Linear(1, 1), sgd))


def test_unknown_loss_is_refused_with_the_nearest():
    wanted = (
        r"callbacks.priority.loss: wanted a loss of data group 'default', given q_los; .* \(did you mean 'q_loss'\?\)"
    )
    with pytest.raises(WiringError, match=wanted):
        told(Batches([1.0]), feedback={"loss": "q_los"}, q_loss=distance())


def test_missing_loss_is_refused():
    with pytest.raises(WiringError, match="there is none"):
        told(Batches([1.0]))


def test_nothing_is_kept_where_nobody_watches():
    loss = distance()
    loss.backward(torch.ones(3))
    assert loss.elements is None
