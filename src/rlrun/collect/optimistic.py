"""Exploring where critics hope for more than they are sure of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from rlrun.collect.agents import Acting, PolicyAgent, Preprocess, Response, prepared, to_arrays, to_tensors
from rlrun.errors import SpaceError
from rlrun.nn import Critics, ImplicitCritics, SquashedGaussian, told_by
from rlrun.ops.gaussian import squashed_action
from rlrun.ops.noise import normal_like
from rlrun.spaces import describe
from rlrun.typing import Tree

TINY = 1e-12  # where all directions are as good, nothing is shifted


class Optimistic(PolicyAgent, ABC):
    """Move the mean of a policy along the gradient of an upper bound of its value; a subclass writes `upper`.

    Asked for its best it acts as the policy does. What is exported draws from the policy itself, too: the shift takes
    gradients, which a file cannot.

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
        critics: Critics | ImplicitCritics,
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
        _, self.tells = told_by(critics)
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

    @abstractmethod
    def upper(self, values: Tensor) -> Tensor:
        """Return the upper bound [B] of what critics say of actions, [M, B]."""

    def _slope(self, observation: Tree, mean: Tensor) -> Tensor:
        """Return the gradient [B, A] of the upper bound at the means; no parameter gets one."""
        training = self.critics.training
        self.critics.eval()  # nothing is left out of what is judged
        with torch.enable_grad():
            point = mean.detach().requires_grad_()
            upper = self.upper(self.tells.weighed(self.critics(observation, point.tanh())))
            slope = torch.autograd.grad(upper.sum(), point)[0]  # rows do not depend on each other
        self.critics.train(training)
        return slope
