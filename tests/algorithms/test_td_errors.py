"""The size of TD errors follows from the losses, squared or Huber's."""

from __future__ import annotations

import pytest
import torch

from rlrun.callbacks import CriticLoss

from .fixed import DISCRETE, column, critics_of, sgd

ZEROS = [[0.0, 0.0]]


def errors(huber, biases, targets, **options):
    """Return the error of each target where choice 1 was taken, by critics of values [K] for every observation."""
    loss = CriticLoss(critics_of(DISCRETE, *[(ZEROS, list(bias)) for bias in biases]), sgd, huber=huber)
    loss.watched = True
    action = torch.ones(len(targets), dtype=torch.int64)
    loss.backward(column(*[0.0] * len(targets)), action, torch.tensor(targets), **options)
    return loss.elements.tolist()


ONE, TWO = [[7.0, 2.0]], [[7.0, 2.0], [7.0, 4.0]]


@pytest.mark.parametrize(
    ("huber", "biases", "targets", "expected"),
    [
        *((huber, ONE, [2.0, 2.25, 1.0, 12.0], [0.0, 0.25, 1.0, 10.0]) for huber in (None, 0.5, 1.0)),
        (None, TWO, [3.0, 9.0], [1.0, ((49 + 25) / 2) ** 0.5]),  # the root mean square of members
        (1.0, TWO, [13.0], [10.0]),  # large errors are averaged
    ],
)
def test_errors_follow_from_losses(huber, biases, targets, expected):
    assert errors(huber, biases, targets) == pytest.approx(expected, abs=1e-5)


def test_weights_do_not_change_errors():
    assert errors(1.0, ONE, [5.0, 1.0], weight=torch.tensor([0.1, 0.0])) == pytest.approx([3.0, 1.0])
