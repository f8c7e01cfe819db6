"""Rows of windows that are no steps weigh nothing in the losses of actor-critic methods."""

from __future__ import annotations

import pytest
import torch

from rlrun.algorithms.a2c import A2CLoss
from rlrun.algorithms.ppo import PPOLoss
from rlrun.nn import ActorCritic

from .fixed import MIXED, adam, evaluate_loss

VALID = torch.tensor([[True, True, False, True], [False, True, True, True]])
OPTIONS = {"entropy_weight": 0.1, "normalize": True}


def network(**options):
    torch.manual_seed(0)
    return ActorCritic(MIXED, hidden=(4,), output_gain=1.0, **options)


def batch(poison=1e3):
    """Return windows [2, 4] whose rows that are no steps hold absurd numbers."""
    torch.manual_seed(1)
    action = {"level": torch.rand(2, 4, 1) * 2 - 1, "side": torch.randint(0, 2, (2, 4))}
    columns = {name: torch.randn(2, 4) for name in ("log_prob", "value", "advantage", "return_")}
    columns = {name: torch.where(VALID, value, poison) for name, value in columns.items()}
    columns["log_prob"] = columns["log_prob"].clamp(-9e9, 0.0) - 1.0
    return {"observation": torch.randn(2, 4, 1), "action": action, **columns}


def rows_of(tree):
    return {name: rows_of(part) for name, part in tree.items()} if isinstance(tree, dict) else tree[VALID]


def asked(kind, columns):
    names = columns if kind is PPOLoss else ("observation", "action", "advantage", "return_")
    return {name: columns[name] for name in names}


@pytest.mark.parametrize("kind", [A2CLoss, PPOLoss])
def test_windows_lose_as_their_steps(kind, monkeypatch):
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)  # the entropy of a continuous part is drawn
    windows, alone = (kind(network(), adam, **OPTIONS) for _ in range(2))
    loss, outputs, metrics = evaluate_loss(windows, **asked(kind, batch()), valid=VALID)
    expected, expected_outputs, expected_metrics = evaluate_loss(alone, **asked(kind, rows_of(batch())))
    torch.testing.assert_close(loss.mean(), expected.mean())
    assert not loss[~VALID].any()
    if kind is PPOLoss:
        torch.testing.assert_close(outputs["approx_kl"], expected_outputs["approx_kl"])
    torch.testing.assert_close(metrics, expected_metrics)


def test_invalid_rows_may_hold_anything():
    loss = PPOLoss(network(), adam, kl_weight=0.5)
    columns = batch()
    columns["log_prob"] = torch.where(VALID, columns["log_prob"], -1e30)
    value, *_ = loss.loss(**columns, valid=VALID)
    value.mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in loss.parameters if parameter.grad is not None)


def test_recurrent_loss_reaches_the_first_row():
    net = network(core="gru", core_size=3)
    loss = A2CLoss(net, adam)
    columns = asked(A2CLoss, batch(poison=0.0))
    columns["observation"].requires_grad_()
    columns["advantage"] = torch.zeros(2, 4).index_fill(1, torch.tensor(3), 1.0)  # of the last rows only
    columns["return_"] = net.value(columns["observation"], torch.zeros(2, 6)).detach()
    episode_end = torch.zeros(2, 4, dtype=torch.bool)
    episode_end[1, 1] = True
    value, *_ = loss.loss(**columns, state=torch.zeros(2, 6), episode_end=episode_end, valid=torch.ones(2, 4).bool())
    (reached,) = torch.autograd.grad(value[:, 3].sum(), columns["observation"])
    assert (reached.squeeze(-1) != 0).tolist() == [[True] * 4, [False, False, True, True]]
