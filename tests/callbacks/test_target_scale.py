"""Differences to targets in units of the targets' deviation."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from rlrun.callbacks import CriticLoss, LossCallback, TargetScale
from rlrun.env import make
from rlrun.errors import ConfigError
from rlrun.nn import Bins, Critics

SPACES = make("Pendulum-v1").spaces
SGD = partial(torch.optim.SGD, lr=0.1)


def loss_of(**options):
    return CriticLoss(Critics(SPACES, hidden=[4], members=2), SGD, **options)


def batch(targets):
    count = len(targets)
    target = torch.tensor(targets)
    return {"observation": torch.zeros(count, 3), "action": torch.zeros(count, 1), "q_target": target}


def test_differences_are_divided_by_the_deviation_of_targets_so_far():
    loss = loss_of()
    scale, inputs = TargetScale(loss), batch([-100.0, 300.0])
    plain = loss.loss(**inputs)
    scale.begin_batch(inputs["q_target"])  # mean 100, deviation 200
    torch.testing.assert_close(loss.loss(**inputs), plain / 200.0**2)
    scale.begin_batch(torch.tensor([500.0]))  # the second of updates at speed 8 counts 8 / 9
    mean, square = 100.0 / 9 + 500.0 * 8 / 9, 50_000.0 / 9 + 250_000.0 * 8 / 9
    assert float(scale.metrics["target/mean"]) == pytest.approx(mean, rel=1e-5)
    assert float(scale.metrics["target/deviation"]) == pytest.approx((square - mean**2) ** 0.5, rel=1e-5)


@pytest.mark.parametrize("huber", [None, 1.0])
def test_errors_are_told_in_the_units_of_rewards(huber):
    loss = loss_of(huber=huber)
    inputs = batch([50.0, -70.0])
    before = loss.error(loss.loss(**inputs))
    TargetScale(loss).begin_batch(inputs["q_target"])
    after = loss.error(loss.loss(**inputs))
    torch.testing.assert_close(after, before, rtol=0.05, atol=0.0)  # of two members with nearly the same error


def test_it_goes_on_where_it_was():
    first, second = TargetScale(loss_of()), TargetScale(loss_of())
    first.begin_batch(torch.tensor([1.0, 5.0]))
    second.load_state_dict(first.state_dict())
    for scale in (first, second):
        scale.begin_batch(torch.tensor([7.0, 9.0]))
    assert torch.equal(first.loss.scale, second.loss.scale)


def test_what_has_no_scale_is_refused():
    with pytest.raises(ConfigError, match="wanted the loss of critics, got a LossCallback"):
        TargetScale(LossCallback(torch.nn.Linear(1, 1), SGD))
    bins = CriticLoss(Critics(SPACES, hidden=[4], tells=Bins(11, least=-1.0, largest=1.0)), SGD)
    with pytest.raises(ConfigError, match="bins are learned by classification"):
        TargetScale(bins)
    with pytest.raises(ConfigError, match="speed: wanted a number above 0, got 0"):
        TargetScale(loss_of(), speed=0)
