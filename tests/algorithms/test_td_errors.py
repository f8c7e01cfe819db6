"""The size of TD errors is found again in the losses, whatever their form."""

from __future__ import annotations

import pytest
import torch

from rlrun.algorithms import dqn
from rlrun.callbacks import CriticLoss

from .fixed import DISCRETE, column, critics_of, q_network, sgd

ZEROS = [[0.0, 0.0]]


def losses(huber, *biases):
    """Return the losses of both algorithms, with critics of these values [K] for every observation."""
    yield dqn.QLoss(q_network(DISCRETE, *biases), sgd, huber=huber)
    yield CriticLoss(critics_of(DISCRETE, *[(ZEROS, list(bias)) for bias in biases]), sgd, huber=huber)


def errors(loss, *targets):
    """Return the error of each target where choice 1 was taken."""
    loss.watched = True
    loss.backward(column(*[0.0] * len(targets)), torch.ones(len(targets), dtype=torch.int64), torch.tensor(targets))
    return loss.error(loss.elements).tolist()


@pytest.mark.parametrize("huber", [None, 0.5, 1.0])
def test_error_of_one_member_is_its_distance(huber):
    for loss in losses(huber, [7.0, 2.0]):
        assert errors(loss, 2.0, 2.25, 1.0, 12.0) == pytest.approx([0.0, 0.25, 1.0, 10.0], abs=1e-5)


def test_error_of_several_members_is_their_root_mean_square():
    for loss in losses(None, [7.0, 2.0], [7.0, 4.0]):
        assert errors(loss, 3.0, 9.0) == pytest.approx([1.0, ((49 + 25) / 2) ** 0.5])


def test_large_errors_of_several_members_are_averaged_with_huber():
    for loss in losses(1.0, [7.0, 2.0], [7.0, 4.0]):
        assert errors(loss, 13.0) == pytest.approx([10.0])


def test_weights_do_not_change_errors():
    for loss in losses(1.0, [7.0, 2.0]):
        loss.watched = True
        zeros = torch.zeros(2)
        loss.backward(zeros[:, None], zeros.long() + 1, torch.tensor([5.0, 1.0]), weight=torch.tensor([0.1, 0.0]))
        assert loss.error(loss.elements).tolist() == pytest.approx([3.0, 1.0])
