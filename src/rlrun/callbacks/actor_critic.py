"""What the losses of actor-critic methods have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlrun import ops
from rlrun.callbacks.loss import LossCallback, Optimiser
from rlrun.nn import ActorCritic, Judged
from rlrun.typing import Tree


class ActorCriticLoss(LossCallback):
    """An objective to be made large, the distance of values to returns, and a bonus for entropy.

    A subclass writes `loss`, and ends it with `total`. It may ask for `entropy_weight`, a number or one for each part
    of the action, so that whoever provides one by that name (a schedule, an entropy target) goes before the constant.
    For recurrent networks it asks for `state`, `ended` and `valid`, which a loader of rollouts provides with them.

    Args:
        network: acts and judges.
        value_weight: of the distance between value and return.
        entropy_weight: of the entropy; 0 = no bonus.
        normalise: give the advantages of each minibatch mean 0 and standard deviation 1.
        advantage_clip: then clamp them to ± this; None = never.
        huber: from this distance on the value loss grows linearly; None = squared.
    """

    provides: tuple[str, ...] = ("policy_entropy",)

    def __init__(
        self,
        network: ActorCritic,
        optimiser: Optimiser,
        *,
        value_weight: float = 0.5,
        entropy_weight: float = 0.0,
        normalise: bool = False,
        advantage_clip: float | None = None,
        huber: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(network, optimiser, **options)
        self.actor_critic = network
        self.value_weight = value_weight
        self.entropy_weight = entropy_weight
        self.normalise = normalise
        self.advantage_clip = advantage_clip
        self.huber = huber
        self._newest: tuple[Judged, Tensor, Tensor | None] | None = (
            None  # update: with returns, and which entries count
        )

    def judge(
        self, observation: Tree, action: Tree, state: Tensor | None = None, ended: Tensor | None = None
    ) -> Judged:
        """Let the network judge rows [B, …] or windows [B, T, …]; state [B, S] before them, ended [B, T] within."""
        if state is None and ended is None:
            return self.actor_critic.judge(observation, action)
        return self.actor_critic.judge(observation, action, state, ended)

    def prepared(self, advantage: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return advantages as the objective takes them."""
        if self.normalise:
            advantage = ops.normalised(advantage, valid)
        return advantage if self.advantage_clip is None else advantage.clamp(-self.advantage_clip, self.advantage_clip)

    def total(
        self,
        judged: Judged,
        objective: Tensor,
        distance: Tensor,
        return_: Tensor,
        entropy_weight: float | Tensor | None = None,
        valid: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each element, and `policy_entropy` [..., parts] where anybody asks for it.

        valid: [B, T] where a row is a transition; the others weigh nothing, and the mean is that of the rest.
        """
        self._newest = (judged, return_, valid)
        loss = self.value_weight * distance - objective
        weight = self.entropy_weight if entropy_weight is None else entropy_weight
        weighs = isinstance(weight, Tensor) or weight != 0.0
        entropy = judged.entropy if weighs or self.asked_for("policy_entropy") else None
        if entropy is not None and weighs:
            loss = loss - (weight * entropy).sum(-1)
        if valid is not None:
            loss = ops.over_valid(loss, valid)
        return loss, {} if entropy is None else {"policy_entropy": entropy.detach()}

    @property
    @torch.no_grad()
    def metrics(self) -> Mapping[str, Any]:
        metrics = dict(super().metrics)
        if self._newest is not None:
            judged, return_, valid = self._newest
            shown = (judged.entropy, judged.value, return_)
            entropy, value, return_ = shown if valid is None else (tensor[valid] for tensor in shown)
            for index, part in enumerate(self.actor_critic.head.parts):
                metrics[f"entropy/{part}"] = entropy[..., index].mean()
            mean = judged.heads.mean
            if mean is not None:
                metrics["action/saturated"] = ops.saturated((mean if valid is None else mean[valid]).tanh())
            metrics["value/mean"] = value.mean()
            unexplained = (return_ - value).var() / return_.var().clamp(min=1e-12)
            metrics["value/explained_variance"] = 1.0 - unexplained
        return metrics
