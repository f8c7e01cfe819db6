"""PPO and A2C in the way of CleanRL, see `cleanrl.py`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.optim import Adam

LOG_EVERY = 100  # steps from one reading of figures to the next
Numbers = dict[str, Any]


def layers(sizes: list[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers with activations in between."""
    modules: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        modules += [nn.Linear(wide, narrow), activation()]
    return nn.Sequential(*modules[:-1])


def orthogonal(network: nn.Sequential, last: float) -> nn.Sequential:
    """Return it with orthogonal weights and biases of 0."""
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    for layer in linear:
        nn.init.orthogonal_(layer.weight, last if layer is linear[-1] else 2**0.5)
        nn.init.constant_(layer.bias, 0.0)
    return network


class Agent(nn.Module):
    """Policy and value with layers of their own."""

    def __init__(self, envs: SyncVectorEnv, hidden: list[int]) -> None:
        super().__init__()
        space, width = envs.single_action_space, int(np.prod(envs.single_observation_space.shape))
        self.numbers = isinstance(space, Box)
        size = int(np.prod(space.shape)) if self.numbers else int(space.n)
        self.critic = orthogonal(layers([width, *hidden, 1], nn.Tanh), 1.0)
        self.actor = orthogonal(layers([width, *hidden, size], nn.Tanh), 0.01)
        self.log_std = nn.Parameter(torch.zeros(1, size)) if self.numbers else None

    def forward(self, observation: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return an action, drawn unless given, its log-probability, the entropy and the value."""
        heads = self.actor(observation)
        if self.log_std is None:
            drawn: Any = Categorical(logits=heads)
            action = drawn.sample() if action is None else action
            return action, drawn.log_prob(action), drawn.entropy(), self.critic(observation)
        drawn = Normal(heads, torch.exp(self.log_std.expand_as(heads)))
        action = drawn.sample() if action is None else action
        return action, drawn.log_prob(action).sum(1), drawn.entropy().sum(1), self.critic(observation)


class Rollouts:
    """Steps of all environments, and what PPO makes of them."""

    def __init__(self, envs: SyncVectorEnv, agent: Agent, numbers: Numbers) -> None:
        self.envs, self.agent, self.numbers = envs, agent, numbers
        size = (numbers["horizon"], envs.num_envs)
        self.observations = torch.zeros((*size, *envs.single_observation_space.shape))
        self.actions = torch.zeros((*size, *envs.single_action_space.shape))
        self.log_probs, self.rewards, self.dones, self.values = (torch.zeros(size) for _ in range(4))
        self.next_observation = torch.Tensor(envs.reset(seed=0)[0])
        self.next_done = torch.zeros(envs.num_envs)

    def collect(self) -> list[Tensor]:
        """Return observations, actions, log-probabilities, advantages, returns and values [T * N, …]."""
        for step in range(self.numbers["horizon"]):
            self.observations[step], self.dones[step] = self.next_observation, self.next_done
            with torch.no_grad():
                action, log_prob, _, value = self.agent(self.next_observation)
                self.values[step] = value.flatten()
            self.actions[step], self.log_probs[step] = action, log_prob
            following, reward, terminations, truncations, _ = self.envs.step(action.cpu().numpy())
            self.rewards[step] = torch.tensor(reward).view(-1)
            self.next_observation = torch.Tensor(following)
            self.next_done = torch.Tensor(np.logical_or(terminations, truncations))
        advantages = self.advantages()
        columns = (self.observations, self.actions, self.log_probs, advantages, advantages + self.values, self.values)
        return [column.flatten(0, 1) for column in columns]

    @torch.no_grad()
    def advantages(self) -> Tensor:
        """Sum them backwards."""
        discount, decay = self.numbers["discount"], self.numbers["lambda"]
        value, open_ = self.agent.critic(self.next_observation).reshape(-1), 1.0 - self.next_done
        advantages, last = torch.zeros_like(self.rewards), torch.zeros(self.envs.num_envs)
        for step in reversed(range(len(self.rewards))):
            delta = self.rewards[step] + discount * value * open_ - self.values[step]
            advantages[step] = last = delta + discount * decay * open_ * last
            value, open_ = self.values[step], 1.0 - self.dones[step]
        return advantages


def ppo(envs: SyncVectorEnv, numbers: Numbers) -> None:
    """Proximal policy optimization with its clipped value loss."""
    agent = Agent(envs, list(numbers["hidden"]))
    optimizer, rollouts = Adam(agent.parameters(), lr=numbers["lr"], eps=1e-5), Rollouts(envs, agent, numbers)
    rows, batch, clip = np.arange(numbers["horizon"] * envs.num_envs), numbers["batch_size"], numbers["clip"]
    while True:
        columns, shares = rollouts.collect(), []
        for _ in range(numbers["epochs"]):
            np.random.shuffle(rows)
            for start in range(0, len(rows), batch):
                seen, action, log_prob, advantage, return_, value = (c[rows[start : start + batch]] for c in columns)
                _, new_log_prob, entropy, new_value = agent(seen, action)
                log_ratio = new_log_prob - log_prob
                ratio = log_ratio.exp()
                with torch.no_grad():
                    ((ratio - 1) - log_ratio).mean()
                    shares.append(((ratio - 1.0).abs() > clip).float().mean().item())
                if numbers["normalize"]:
                    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)).mean()
                new_value = new_value.view(-1)
                clipped = value + (new_value - value).clamp(-clip, clip)
                value_loss = 0.5 * torch.max((new_value - return_) ** 2, (clipped - return_) ** 2).mean()
                loss = policy_loss - numbers["entropy_weight"] * entropy.mean() + value_loss * numbers["value_weight"]
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), numbers["max_grad_norm"])
                optimizer.step()
        np.var(columns[4].numpy() - columns[5].numpy())


def a2c(envs: SyncVectorEnv, numbers: Numbers) -> None:
    """PPO without what makes it more."""
    ppo(envs, {**numbers, "epochs": 1, "batch_size": numbers["horizon"] * envs.num_envs, "clip": float("inf")})
