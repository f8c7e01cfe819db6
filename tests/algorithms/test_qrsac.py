"""Soft actor-critic by quantiles, worked by hand on networks of one layer."""

from __future__ import annotations

import pytest
import torch

from rlrun.algorithms.qrsac import QuantilePolicyLoss
from rlrun.callbacks import CriticLoss
from rlrun.nn import Critics

from .fixed import CONTINUOUS, column, policy_of, sgd, write

pytestmark = pytest.mark.usefixtures("no_noise")

FLAT = [[0.0, 0.0], [0.0, 0.0]]  # of observation and action, for two quantiles


def quantiles_of(*members):
    """Return critics of two quantiles each."""
    return write(Critics(CONTINUOUS, hidden=(), members=len(members), quantiles=2), *members)


def test_quantile_loss_is_summed_over_members():
    loss = CriticLoss(quantiles_of((FLAT, [0.0, 1.0]), (FLAT, [2.0, 2.0])), sgd, huber=1.0)
    losses, *_ = loss.loss(column(0, 0), column(0, 0), torch.tensor([[2.0, 2.0], [2.0, 2.0]]))
    assert losses.tolist() == pytest.approx([0.375, 0.375], abs=1e-5)


def test_error_is_the_distance_of_means():
    loss = CriticLoss(quantiles_of((FLAT, [0.0, 1.0]), (FLAT, [2.0, 2.0])), sgd, huber=1.0)
    loss.watched = True
    loss.backward(column(0), column(0), torch.tensor([[2.0, 5.0]]))
    assert loss.elements.tolist() == pytest.approx([(3.0 + 1.5) / 2])  # from 3.5 to 0.5 and 2


@pytest.mark.parametrize(("least", "value"), [("quantile", (1 + 3) / 2), ("member", (2 + 3) / 2)])
def test_policy_follows_the_least_quantiles(least, value):
    critics = quantiles_of((FLAT, [1.0, 5.0]), (FLAT, [2.0, 3.0]))
    policy, temperature = policy_of(CONTINUOUS, critics)
    loss = QuantilePolicyLoss(policy, sgd, critics=critics, temperature=temperature, least=least)
    losses, outputs, _ = loss.loss(column(0))
    assert losses.tolist() == pytest.approx([-0.2 * 1.5 - value], abs=1e-5)
    assert outputs["policy_entropy"].tolist() == [pytest.approx([1.5], abs=1e-5)]
