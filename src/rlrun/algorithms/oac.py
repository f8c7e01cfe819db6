"""Optimistic actor-critic (Ciosek et al. 2019, arXiv 1910.12807), for continuous actions.

Networks, targets and losses are those of soft actor-critic (`rlrun.algorithms.sac`). What acts while training is
its normal distribution N(μ, Σ) under the tanh, moved along the gradient of an upper bound of the value:

    Q_UB(s, a) = mean_i Q_i(s, a) + β deviation_i Q_i(s, a)
    g          = ∇_u Q_UB(s, tanh u)  at u = μ
    μ_E        = μ + δ Σ g / √(gᵀ Σ g)
    a          = tanh(u),  u ~ N(μ_E, Σ)

The deviation over the M critics divides by M; of two it is half of their distance, as in the paper (eq. 5).

Differences from the paper: δ stands for its √(2δ), as in its table of numbers; more than two critics may judge; each
observation of a batch has a shift of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rlrun.collect import PolicyAgent
from rlrun.collect.agents import Acting, Preprocess, Response, prepared, to_arrays, to_tensors
from rlrun.errors import SpaceError
from rlrun.nn import Critics, SquashedGaussian, told_by
from rlrun.ops.gaussian import squashed_action
from rlrun.ops.noise import normal_like
from rlrun.spaces import describe
from rlrun.typing import Tree

TINY = 1e-12  # where all directions are as good, nothing is shifted


class OptimisticAgent(PolicyAgent):
    """Explore where critics hope for more than they are sure of; asked for its best, act as the policy does.

    What is exported draws from the policy itself: the shift takes gradients, which a file cannot.

    Args:
        policy: what is learned.
        gaussian: its distribution.
        critics: whose upper bound is followed.
        shift: δ, how far the mean moves, in standard deviations.
        optimism: β, deviations of the critics that count on top of their mean.
        device: where the networks live.
        preprocess: what the memory does to observations, too, one function or several by name: normalisation.

    Raises:
        SpaceError: part of the action is a choice.
    """

    def __init__(
        self,
        policy: Acting,
        *,
        gaussian: SquashedGaussian | None,
        critics: Critics,
        shift: float = 6.86,
        optimism: float = 4.66,
        device: str = "cpu",
        preprocess: Preprocess | Mapping[str, Preprocess] | None = None,
    ) -> None:
        if gaussian is None or critics.codec.discrete:
            space = describe(critics.codec.space)
            raise SpaceError(f"agent: optimism moves actions that are numbers; here they are {space}")
        super().__init__(policy, device=device, preprocess=preprocess)
        self.gaussian = gaussian
        self.critics = critics
        self.shift = shift
        self.optimism = optimism

    @torch.no_grad()
    def __call__(self, observation: Tree, state: Tree | None = None, *, explore: bool = True) -> Response:
        if not explore:
            return super().__call__(observation, state, explore=False)
        mean, log_std = self.exploring(prepared(to_tensors(observation, self.device), self.preprocess))
        action = squashed_action(mean, log_std, normal_like(mean))
        return {"action": to_arrays(self.critics.codec.join(action, None))}

    def exploring(self, observation: Tree) -> tuple[Tensor, Tensor]:
        """Return mean μ_E and log_std [B, A] of the normal under the tanh that explores."""
        mean, log_std = self.gaussian.normal(observation)
        slope = self._slope(observation, mean)
        variance = (2.0 * log_std).exp()
        length = (variance * slope.square()).sum(-1, keepdim=True).sqrt()
        return mean + self.shift * variance * slope / (length + TINY), log_std

    def _slope(self, observation: Tree, mean: Tensor) -> Tensor:
        """Return the gradient [B, A] of the upper bound at the means; no parameter gets one."""
        training = self.critics.training
        self.critics.eval()  # nothing is left out of what is judged
        with torch.enable_grad():
            point = mean.detach().requires_grad_()
            values = told_by(self.critics)[1].weighed(self.critics(observation, point.tanh()))  # [M, B]
            upper = values.mean(0) + self.optimism * values.std(0, correction=0)
            slope = torch.autograd.grad(upper.sum(), point)[0]  # rows do not depend on each other
        self.critics.train(training)
        return slope
