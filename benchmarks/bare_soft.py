"""Soft actor-critics by hand, for one continuous action: what differs between them is written out, nothing is asked."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.bare import HandBins, Numbers, adam, quantile_loss, target_copy
from benchmarks.clock import Clock
from rlrun.core.spaces import Spaces
from rlrun.nn import Critics, ImplicitCritics, SquashedGaussian


class SacUpdate:
    """One gradient update of critics, policy and temperature."""

    def __init__(self, spaces: Spaces, numbers: Numbers, clock: Clock) -> None:
        hidden = tuple(numbers["hidden"])
        self.critics: Any = self.judges(spaces, numbers)
        self.policy = SquashedGaussian(spaces, hidden=hidden)
        self.target_critics, self.target_parameters, self.source_parameters = target_copy(self.critics)
        self.log_temperature = torch.zeros(1, requires_grad=True)
        self.target_entropy = -float(spaces.action.size)
        self.tau = numbers["tau"]
        self.critics_parameters = list(self.critics.parameters())
        self.policy_parameters = list(self.policy.parameters())
        self.critics_optimizer = adam(self.critics_parameters, numbers)
        self.policy_optimizer = adam(self.policy_parameters, numbers)
        self.temperature_optimizer = adam([self.log_temperature], numbers)
        clock.watch((self.critics_optimizer, self.policy_optimizer, self.temperature_optimizer))

    def judges(self, spaces: Spaces, numbers: Numbers) -> Any:
        """Return the critics."""
        return Critics(spaces, hidden=tuple(numbers["hidden"]), members=numbers["ensemble"])

    def act(self, observation: Tensor) -> Tensor:
        action: Tensor = self.policy(observation)[0]
        return action

    def target(
        self, reward: Tensor, next_observation: Tensor, carry: Tensor, next_action: Tensor, bonus: Tensor
    ) -> Tensor:
        """Return what critics come to."""
        return reward + carry * (self.target_critics(next_observation, next_action).amin(0) + bonus)

    def loss(self, observation: Tensor, action: Tensor, q_target: Tensor) -> Tensor:
        """Return the critics' loss."""
        return (self.critics(observation, action) - q_target).square().sum(0).mean()

    def value(self, observation: Tensor, action: Tensor) -> Tensor:
        """Return what the policy follows [B]."""
        q_value: Tensor = self.critics(observation, action).amin(0)
        return q_value

    def __call__(self, number: int, *batch: Tensor) -> None:
        observation, action, reward, next_observation, carry = batch
        with torch.no_grad():
            temperature = self.log_temperature.exp()
            next_action, next_log_prob = self.policy(next_observation)
            q_target = self.target(reward, next_observation, carry, next_action, -temperature * next_log_prob)
        loss = self.loss(observation, action, q_target)
        self.critics_optimizer.zero_grad()
        loss.backward(inputs=self.critics_parameters)  # type: ignore[no-untyped-call]
        self.critics_optimizer.step()

        drawn, log_prob = self.policy(observation)
        loss = (temperature * log_prob - self.value(observation, drawn)).mean()
        self.policy_optimizer.zero_grad()
        loss.backward(inputs=self.policy_parameters)  # type: ignore[no-untyped-call]
        self.policy_optimizer.step()

        loss = -(self.log_temperature * (log_prob.detach() + self.target_entropy)).mean()
        self.temperature_optimizer.zero_grad()
        loss.backward(inputs=[self.log_temperature])  # type: ignore[no-untyped-call]
        self.temperature_optimizer.step()
        torch._foreach_lerp_(self.target_parameters, self.source_parameters, self.tau)


class SarsaUpdate(SacUpdate):
    """Targets without a bonus for entropy."""

    def target(
        self, reward: Tensor, next_observation: Tensor, carry: Tensor, next_action: Tensor, bonus: Tensor
    ) -> Tensor:
        q_target: Tensor = reward + carry * self.target_critics(next_observation, next_action).amin(0)
        return q_target


class OacUpdate(SacUpdate):
    """Explores where critics hope for more than they are sure of."""

    def __init__(self, spaces: Spaces, numbers: Numbers, clock: Clock) -> None:
        super().__init__(spaces, numbers, clock)
        self.exploration = numbers["exploration"]

    def act(self, observation: Tensor) -> Tensor:
        return optimistic(self, observation, deviation=0.5, **self.exploration)


def optimistic(update: SacUpdate, observation: Tensor, *, deviation: float, shift: float, optimism: float) -> Tensor:
    """Return an action [1, A] of the policy, moved along an upper bound of what two critics say.

    deviation: what their distance is multiplied by.
    """
    mean, log_std = update.policy.normal(observation)
    with torch.enable_grad():
        point = mean.detach().requires_grad_()
        first, second = update.critics(observation, point.tanh())
        upper = 0.5 * (first + second) + optimism * deviation * (first - second).abs()
        slope = torch.autograd.grad(upper.sum(), point)[0]
    std = log_std.exp()
    variance = std.square()
    length = (variance * slope.square()).sum(-1, keepdim=True).sqrt() + 1e-12
    return torch.tanh(mean + shift * variance * slope / length + std * torch.randn_like(mean))


class QrsacUpdate(SacUpdate):
    """Critics of fixed quantiles, the smallest of each counting."""

    def judges(self, spaces: Spaces, numbers: Numbers) -> Critics:
        count = numbers["quantiles"]
        self.points = (torch.arange(count) + 0.5) / count
        return Critics(spaces, hidden=tuple(numbers["hidden"]), members=numbers["ensemble"], quantiles=count)

    def target(
        self, reward: Tensor, next_observation: Tensor, carry: Tensor, next_action: Tensor, bonus: Tensor
    ) -> Tensor:
        quantiles = self.target_critics.raw_output(next_observation, next_action).amin(0)  # type: ignore[operator]
        return reward.unsqueeze(-1) + carry.unsqueeze(-1) * quantiles

    def loss(self, observation: Tensor, action: Tensor, q_target: Tensor) -> Tensor:
        quantiles = self.critics.raw_output(observation, action)
        return quantile_loss(quantiles, q_target, self.points).mean((-2, -1)).sum(0).mean()

    def value(self, observation: Tensor, action: Tensor) -> Tensor:
        q_value: Tensor = self.critics.raw_output(observation, action).amin(0).mean(-1)
        return q_value


class DsacUpdate(SacUpdate):
    """Critics of drawn quantiles, the smallest of each counting."""

    def judges(self, spaces: Spaces, numbers: Numbers) -> ImplicitCritics:
        self.count = numbers["fractions"]
        return ImplicitCritics(spaces, hidden=tuple(numbers["hidden"]), members=numbers["ensemble"], count=self.count)

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return points and widths of shares [B, N]."""
        raised = torch.rand(rows, self.count) + 0.1
        widths = raised / raised.sum(-1, keepdim=True)
        return widths.cumsum(-1) - 0.5 * widths, widths

    def target(
        self, reward: Tensor, next_observation: Tensor, carry: Tensor, next_action: Tensor, bonus: Tensor
    ) -> Tensor:
        points, self.widths = self.draw(len(reward))
        quantiles = self.target_critics.raw_output(next_observation, next_action, points).amin(0)  # type: ignore[operator]
        return reward.unsqueeze(-1) + carry.unsqueeze(-1) * (quantiles + bonus.unsqueeze(-1))

    def loss(self, observation: Tensor, action: Tensor, q_target: Tensor) -> Tensor:
        points, _ = self.draw(len(action))
        pairs = quantile_loss(self.critics.raw_output(observation, action, points), q_target, points)
        return (pairs * self.widths.unsqueeze(-1)).sum(-2).mean(-1).sum(0).mean()

    def value(self, observation: Tensor, action: Tensor) -> Tensor:
        points, widths = self.draw(len(action))
        q_value: Tensor = (self.critics.raw_output(observation, action, points).amin(0) * widths).sum(-1)
        return q_value


class DoacUpdate(DsacUpdate):
    """Explores where such critics hope for more than they are sure of."""

    def __init__(self, spaces: Spaces, numbers: Numbers, clock: Clock) -> None:
        super().__init__(spaces, numbers, clock)
        self.exploration = numbers["exploration"]

    def act(self, observation: Tensor) -> Tensor:
        return optimistic(self, observation, deviation=0.5**0.5, **self.exploration)


class HlgaussUpdate(SacUpdate):
    """Critics of bins."""

    def judges(self, spaces: Spaces, numbers: Numbers) -> Critics:
        self.bins = HandBins(numbers["value_head"])
        return Critics(
            spaces, hidden=tuple(numbers["hidden"]), members=numbers["ensemble"], value_head=self.bins.value_head
        )

    def loss(self, observation: Tensor, action: Tensor, q_target: Tensor) -> Tensor:
        return self.bins.loss(self.critics.raw_output(observation, action), q_target).sum(0).mean()
