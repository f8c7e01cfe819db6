"""Every loss is one graph: no clock, no counter, no branch on data."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from tests.nn.spaces_for_tests import draw

from rlrun.algorithms import dqn, sac
from rlrun.callbacks import CriticLoss, SoftPolicyLoss
from rlrun.nn import Critics

from .fixed import ALL, DISCRETE, MIXED, adam, column


def unbroken(loss, *arguments):
    torch._dynamo.reset()
    report = torch._dynamo.explain(loss.loss)(*arguments)
    return report.graph_break_count == 0 and report.graph_count == 1


@pytest.mark.parametrize("spaces", ALL.values(), ids=ALL)
def test_sac_losses_are_single_graphs(spaces):
    critics, temperature = Critics(spaces, hidden=(4,)), sac.Temperature(spaces)
    policy = sac.SoftPolicy(spaces, critics, temperature, hidden=(4,))
    assert unbroken(SoftPolicyLoss(policy, adam, critics=critics, temperature=temperature), torch.zeros(4, 1))
    q_loss = CriticLoss(critics, adam)
    assert unbroken(q_loss, torch.zeros(4, 1), draw(spaces.action, 4), torch.zeros(4))


def test_temperature_loss_is_a_single_graph():
    loss = sac.TemperatureLoss(sac.Temperature(MIXED), adam, spaces=MIXED)
    assert unbroken(loss, torch.zeros(4, 2))


@pytest.mark.parametrize("huber", [None, 1.0])
def test_dqn_loss_is_a_single_graph(huber):
    loss = dqn.QLoss(dqn.QNetwork(DISCRETE, hidden=(4,)), adam, huber=huber)
    assert unbroken(loss, column(0, 0), torch.tensor([0, 1]), torch.zeros(2))
