"""Targets that look further than one step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlrun import ops
from rlrun.callback import Callback
from rlrun.callbacks.loss import plain
from rlrun.errors import ConfigError


class LambdaReturn(Callback):
    """Make one-step targets of a window of steps TD(λ) targets (Sutton & Barto 2018, eq. 12.2, cut off at its end).

    The later actions of a window are those that were stored: nothing corrects for what the policy would do by now.
    With λ = 1 a target sums all rewards that the window holds.

    Args:
        lambda_: λ, what a longer return counts against the next shorter one.
        discount: γ a step; a batch that holds `discount` goes before it.
        n_step: rewards that the memory sums already; only 1 is understood.

    Raises:
        ConfigError: λ lies outside 0 to 1, or rewards are sums of several steps.
    """

    data_group: str | None = "default"
    provides = ("q_target",)

    def __init__(self, *, lambda_: float, discount: float, n_step: int = 1, data_group: str = "default") -> None:
        if not 0.0 <= lambda_ <= 1.0:
            raise ConfigError(f"td_lambda.lambda: wanted a number from 0 to 1, got {lambda_}")
        if n_step != 1:
            raise ConfigError(f"td_lambda: wants rewards of single steps: algorithm.n_step=1, not {n_step}")
        self.lambda_ = lambda_
        self.discount = discount
        self.data_group = data_group
        self._change: Tensor | None = None
        self._before: Mapping[str, Any] = {}  # metrics of the newest update before a resume

    @torch.no_grad()
    def begin_batch(
        self,
        q_target: Tensor,
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        discount: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> dict[str, Tensor]:
        if q_target.dim() != reward.dim():
            raise ConfigError("td_lambda mixes means of returns, and these critics tell more: leave one of both away")
        if terminated.dim() < 2:
            raise ConfigError("td_lambda: batches hold single steps; td_lambda.length must be at least 2")
        ended = terminated | truncated
        if valid is not None:  # a repeated row follows the episode's last one
            ended = ended | ~torch.cat((valid[:, 1:], valid[:, -1:]), 1)
        factor = self.discount if discount is None else discount
        if isinstance(factor, Tensor):  # [B, T], and rewards may have dimensions
            factor = factor.reshape(factor.shape + (1,) * (reward.dim() - factor.dim()))
        target = ops.lengthened(q_target, reward, ended=ended, discount=factor, lambda_=self.lambda_)
        self._change = (target - q_target).abs().mean()
        return {"q_target": target}

    @property
    def metrics(self) -> Mapping[str, Any]:
        return self._before if self._change is None else {"batch/lambda_change": self._change}

    def state_dict(self) -> dict[str, Any]:
        return {"metrics": plain(self.metrics)}

    def load_numbers(self, state: dict[str, Any]) -> None:
        self._before = state["metrics"]
