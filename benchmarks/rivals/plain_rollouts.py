"""PPO as CleanRL writes it, in a plain loop: tensors a rollout, `torch.distributions`, Adam by its defaults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from benchmarks.clock import Clock
from benchmarks.rivals.plain_replay import lanes


def layers(inputs: int, hidden: Iterable[int], outputs: int, gain: float) -> nn.Sequential:
    """Return orthogonal dense layers with tanh between them."""
    parts: list[nn.Module] = []
    for width in hidden:
        parts += [_orthogonal(nn.Linear(inputs, width), 2.0**0.5), nn.Tanh()]
        inputs = width
    return nn.Sequential(*parts, _orthogonal(nn.Linear(inputs, outputs), gain))


def _orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """A policy and a value, on layers of their own."""

    def __init__(self, env: Any, hidden: Iterable[int]) -> None:
        super().__init__()
        observed, actions = int(np.prod(env.single_observation_space.shape)), env.single_action_space
        outputs = int(actions.n) if hasattr(actions, "n") else int(np.prod(actions.shape))
        self.actor, self.critic = layers(observed, hidden, outputs, 0.01), layers(observed, hidden, 1, 1.0)
        self.log_std = None if hasattr(actions, "n") else nn.Parameter(torch.zeros(1, outputs))

    def policy(self, observation: Tensor) -> Distribution:
        """Return the distribution of actions."""
        told = self.actor(observation)
        if self.log_std is None:
            return Categorical(logits=told)
        return Independent(Normal(told, self.log_std.expand_as(told).exp()), 1)

    def value(self, observation: Tensor) -> Tensor:
        found: Tensor = self.critic(observation).squeeze(-1)
        return found


class Ppo:
    """Rollouts of all lanes, and what is learned from them."""

    def __init__(self, numbers: dict[str, Any]) -> None:
        self.numbers = numbers
        self.env = lanes(numbers["env"], numbers["num_envs"])
        self.agent = Agent(self.env, numbers["hidden"])
        self.optimiser = torch.optim.Adam(self.agent.parameters(), lr=numbers["lr"], eps=1e-5)
        shape = (numbers["horizon"], numbers["num_envs"])
        spaces = self.env.single_observation_space, self.env.single_action_space
        self.observation, self.action = (torch.zeros(shape + (space.shape or ())) for space in spaces)
        self.log_prob, self.reward, self.done, self.values = (torch.zeros(shape) for _ in range(4))
        self.next = torch.Tensor(self.env.reset(seed=0)[0])
        self.next_done = torch.zeros(numbers["num_envs"])

    def roll(self) -> None:
        """Step all lanes through a rollout."""
        for step in range(self.numbers["horizon"]):
            self.observation[step], self.done[step] = self.next, self.next_done
            with torch.no_grad():
                policy = self.agent.policy(self.next)
                action = policy.sample()
                self.log_prob[step] = policy.log_prob(action)
                self.values[step] = self.agent.value(self.next)
            self.action[step] = action
            following, reward, terminated, truncated, _ = self.env.step(self._within(action.numpy()))
            self.reward[step] = torch.tensor(reward)
            self.next, self.next_done = torch.Tensor(following), torch.Tensor(np.logical_or(terminated, truncated))

    def _within(self, action: np.ndarray) -> np.ndarray:
        space: Any = self.env.single_action_space
        return action if hasattr(space, "n") else np.clip(action, space.low, space.high)

    def advantages(self) -> Tensor:
        """Return generalised advantages [T, N]."""
        found, last = torch.zeros_like(self.reward), torch.zeros(self.numbers["num_envs"])
        with torch.no_grad():
            value, carry = self.agent.value(self.next), 1.0 - self.next_done
            for step in reversed(range(self.numbers["horizon"])):
                error = self.reward[step] + self.numbers["discount"] * value * carry - self.values[step]
                last = error + self.numbers["discount"] * self.numbers["lambda"] * carry * last
                found[step] = last
                value, carry = self.values[step], 1.0 - self.done[step]
        return found

    def learn(self) -> None:
        """Go over the rollout some times, in shuffled minibatches."""
        advantage = self.advantages()
        data = (self.observation, self.action, self.log_prob, advantage, advantage + self.values, self.values)
        flat = [each.flatten(0, 1) for each in data]
        order, size = np.arange(len(flat[0])), self.numbers["batch_size"]
        for _ in range(self.numbers["epochs"]):
            np.random.shuffle(order)
            for first in range(0, len(order), size):
                self.step(*(each[order[first : first + size]] for each in flat))

    def step(
        self, observation: Tensor, action: Tensor, log_prob: Tensor, advantage: Tensor, return_: Tensor, old: Tensor
    ) -> None:
        """Learn from a minibatch; the value's way is clipped, too."""
        policy, value, clip = self.agent.policy(observation), self.agent.value(observation), self.numbers["clip"]
        ratio = (policy.log_prob(action) - log_prob).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        surrogate = torch.max(-advantage * ratio, -advantage * ratio.clamp(1.0 - clip, 1.0 + clip)).mean()
        clipped = old + (value - old).clamp(-clip, clip)
        distance = torch.max((value - return_) ** 2, (clipped - return_) ** 2).mean()
        entropy = policy.entropy().mean()
        weights = self.numbers["value_weight"], self.numbers["entropy_weight"]
        loss = surrogate - weights[1] * entropy + weights[0] * distance
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), self.numbers["max_grad_norm"])
        self.optimiser.step()


def ppo(numbers: dict[str, Any], clock: Clock) -> None:
    """Roll and learn until the clock's last mark."""
    loop, step = Ppo(numbers), 0
    clock.watch([loop.optimiser])
    while True:
        loop.roll()
        loop.learn()
        step += numbers["horizon"] * numbers["num_envs"]
        if step >= clock.due and clock.note(step):
            return
