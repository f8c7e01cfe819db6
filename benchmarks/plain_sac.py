"""Soft actor-critic in one file of plain torch, for one continuous action. Nothing here is of rlrun.

`bare.py` uses rlrun's networks: compared with it, one sees the cost of the trainer. Compared with this, the whole cost.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.clock import Clock

LOG_STD = (-20.0, 2.0)


def mlp(inputs: int, hidden: list[int], outputs: int) -> nn.Sequential:
    """Return dense layers with rectifiers between them."""
    sizes = [inputs, *hidden]
    layers = [(nn.Linear(*size), nn.ReLU()) for size in pairwise(sizes)]
    return nn.Sequential(*chain.from_iterable(layers), nn.Linear(sizes[-1], outputs))


def sample(policy: nn.Module, observation: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions in [-1, 1] [B, A] and their log-probabilities [B]."""
    mean, log_std = policy(observation).chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(*LOG_STD).exp())
    raw = normal.rsample()  # type: ignore[no-untyped-call]
    correction = 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))  # log of the slope of tanh
    return raw.tanh(), (normal.log_prob(raw) - correction).sum(-1)  # type: ignore[no-untyped-call]


class Sac:
    """Networks, and one gradient update of them."""

    def __init__(self, observed: int, actions: int, numbers: Mapping[str, Any], clock: Clock) -> None:
        hidden = list(numbers["hidden"])
        self.policy = mlp(observed, hidden, 2 * actions)
        self.critics = nn.ModuleList(mlp(observed + actions, hidden, 1) for _ in range(numbers["ensemble"]))
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_temperature = torch.zeros(1, requires_grad=True)
        self.tau, self.target_entropy = numbers["tau"], -float(actions)
        trained = (self.critics.parameters(), self.policy.parameters(), [self.log_temperature])
        self.optimizers = [torch.optim.Adam(parameters, lr=numbers["lr"], fused=True) for parameters in trained]
        clock.watch(self.optimizers)

    def smallest(self, critics: Any, observation: Tensor, action: Tensor) -> Tensor:
        """Return the smallest value of all critics [B]."""
        joined = torch.cat((observation, action), -1)
        return torch.stack([critic(joined).squeeze(-1) for critic in critics]).amin(0)

    def update(self, observation: Tensor, action: Tensor, reward: Tensor, following: Tensor, carry: Tensor) -> None:
        """Take gradients once; carry: the discount, or 0 where the episode terminated."""
        critics, policy, temperature = self.optimizers
        with torch.no_grad():
            alpha = self.log_temperature.exp()
            next_action, next_log_prob = sample(self.policy, following)
            value = self.smallest(self.targets, following, next_action) - alpha * next_log_prob
            q_target = reward + carry * value
        joined = torch.cat((observation, action), -1)
        step(critics, sum(F.mse_loss(critic(joined).squeeze(-1), q_target) for critic in self.critics))
        drawn, log_prob = sample(self.policy, observation)
        step(policy, (alpha * log_prob - self.smallest(self.critics, observation, drawn)).mean())
        step(temperature, -(self.log_temperature * (log_prob.detach() + self.target_entropy)).mean())
        with torch.no_grad():
            for target, parameter in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                target.lerp_(parameter, self.tau)


def step(optimizer: torch.optim.Optimizer, loss: Any) -> None:
    """Follow the gradient of a loss once."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def sac(open_env: Callable[[], Any], numbers: Mapping[str, Any], clock: Clock) -> None:
    """Act, store and update until the clock's last mark."""
    env = open_env()
    low, high = env.action_space.low, env.action_space.high
    length, actions, observed = numbers["length"], low.shape[0], env.observation_space.shape[0]
    agent = Sac(observed, actions, numbers, clock)
    widths = (observed, actions, 0, observed, 0)  # observation, action, reward, next observation, carry
    columns = [np.zeros((length, *([width] if width else [])), np.float32) for width in widths]
    generator, steps, updates = np.random.default_rng(0), 0, 0
    observation, _ = env.reset(seed=0)
    while True:
        if steps < numbers["warmup_steps"]:
            action = generator.uniform(-1.0, 1.0, low.shape).astype(np.float32)
        else:
            with torch.no_grad():
                action = sample(agent.policy, torch.as_tensor(observation, dtype=torch.float32))[0].numpy()
        following, reward, terminated, truncated, _ = env.step(low + (action + 1.0) * 0.5 * (high - low))
        carry = 0.0 if terminated else numbers["discount"]
        for column, value in zip(columns, (observation, action, reward, following, carry), strict=True):
            column[steps % length] = value
        observation = env.reset()[0] if terminated or truncated else following
        steps += 1
        while updates < int((steps - numbers["warmup_steps"]) * numbers["updates_per_step"]):
            updates += 1
            rows = generator.integers(0, min(steps, length), numbers["batch_size"])
            agent.update(*(torch.from_numpy(column[rows]) for column in columns))
        if steps >= clock.due and clock.note(steps):
            return
