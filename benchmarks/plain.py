"""Bare loops of SAC, DQN and PPO in plain torch and numpy. Nothing here is of rlrun.

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


def mlp(inputs: int, hidden: list[int], outputs: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return dense layers with activations between them."""
    sizes = [inputs, *hidden]
    layers = [(nn.Linear(*size), activation()) for size in pairwise(sizes)]
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


def dqn(open_env: Callable[[], Any], numbers: Mapping[str, Any], clock: Clock) -> None:
    """Deep Q-learning of one step; runs until the clock's last mark."""
    assert numbers["n_step"] == 1
    env = open_env()
    length, observed, choices = numbers["length"], env.observation_space.shape[0], int(env.action_space.n)
    q = mlp(observed, list(numbers["hidden"]), choices)
    target = copy.deepcopy(q).requires_grad_(False)
    optimizer = torch.optim.Adam(q.parameters(), lr=numbers["lr"], fused=True)
    clock.watch([optimizer])
    columns = [np.zeros((length, observed), np.float32), np.zeros(length, np.int64)]
    columns += [np.zeros(length, np.float32), np.zeros((length, observed), np.float32), np.zeros(length, np.float32)]
    generator, steps, updates, epsilon = np.random.default_rng(0), 0, 0, numbers["epsilon"]["last"]
    observation, _ = env.reset(seed=0)
    while True:
        if steps < numbers["warmup_steps"] or generator.random() < epsilon:
            action = int(generator.integers(choices))
        else:
            with torch.no_grad():
                action = int(q(torch.from_numpy(observation)).argmax())
        following, reward, terminated, truncated, _ = env.step(action)
        carry = 0.0 if terminated else numbers["discount"]
        for column, value in zip(columns, (observation, action, reward, following, carry), strict=True):
            column[steps % length] = value
        observation = env.reset()[0] if terminated or truncated else following
        steps += 1
        collected = (steps - numbers["warmup_steps"]) // numbers["collect_steps"] * numbers["collect_steps"]
        while updates < int(collected * numbers["updates_per_step"]):
            updates += 1
            rows = generator.integers(0, min(steps, length), numbers["batch_size"])
            dqn_update(q, target, optimizer, numbers, [torch.from_numpy(column[rows]) for column in columns])
            if updates % numbers["target_every"] == 0:
                with torch.no_grad():
                    for slow, fast in zip(target.parameters(), q.parameters(), strict=True):
                        slow.lerp_(fast, numbers["tau"])
        if steps >= clock.due and clock.note(steps):
            return


def dqn_update(
    q: nn.Module, target: nn.Module, optimizer: Any, numbers: Mapping[str, Any], batch: list[Tensor]
) -> None:
    """Take gradients once; batch: observation, action, reward, next observation, carry."""
    observation, action, reward, following, carry = batch
    with torch.no_grad():
        next_q = target(following)
        best = (q(following) if numbers["double"] else next_q).argmax(-1, keepdim=True)
        q_target = reward + carry * next_q.gather(-1, best).squeeze(-1)
    value = q(observation).gather(-1, action.unsqueeze(-1)).squeeze(-1)
    huber = numbers["huber"]
    loss = F.mse_loss(value, q_target) if huber is None else F.huber_loss(value, q_target, delta=huber)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(q.parameters(), numbers["max_grad_norm"])
    optimizer.step()


class Gaussian(nn.Module):
    """Means of numbers by observation, and one free deviation for each."""

    def __init__(self, observed: int, hidden: list[int], actions: int) -> None:
        super().__init__()
        self.mean, self.log_std = mlp(observed, hidden, actions, nn.Tanh), nn.Parameter(torch.zeros(actions))

    def forward(self, observation: Tensor) -> Any:
        """Return the distribution of actions."""
        normal = torch.distributions.Normal(self.mean(observation), self.log_std.exp())
        return torch.distributions.Independent(normal, 1)  # type: ignore[no-untyped-call]


class Choice(nn.Module):
    """Logits of choices by observation."""

    def __init__(self, observed: int, hidden: list[int], choices: int) -> None:
        super().__init__()
        self.logits = mlp(observed, hidden, choices, nn.Tanh)

    def forward(self, observation: Tensor) -> Any:
        """Return the distribution of actions."""
        return torch.distributions.Categorical(logits=self.logits(observation))


def ppo(open_env: Callable[[], Any], numbers: Mapping[str, Any], clock: Clock) -> None:
    """Clipped policy optimization of one choice or of numbers; runs until the clock's last mark."""
    envs = [open_env() for _ in range(numbers["num_envs"])]
    space, observed, hidden = envs[0].action_space, envs[0].observation_space.shape[0], list(numbers["hidden"])
    policy = Gaussian(observed, hidden, *space.shape) if space.shape else Choice(observed, hidden, int(space.n))
    critic, steps, count = mlp(observed, hidden, 1, nn.Tanh), numbers["horizon"], len(envs)
    optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], lr=numbers["lr"], fused=True)
    clock.watch([optimizer])
    observations, lasts = (np.zeros((steps + 1, count, observed), np.float32) for _ in range(2))
    actions = np.zeros((steps, count, *space.shape), np.float32 if space.shape else np.int64)
    rewards, terminations, truncations = (np.zeros((steps, count), np.float32) for _ in range(3))
    observations[0] = [env.reset(seed=number)[0] for number, env in enumerate(envs)]
    env_steps = 0
    while True:
        for t in range(steps):
            with torch.no_grad():
                actions[t] = policy(torch.from_numpy(observations[t])).sample().numpy()
            for number, env in enumerate(envs):
                action = actions[t, number]
                action = action.clip(space.low, space.high) if space.shape else int(action)
                following, rewards[t, number], terminated, truncated, _ = env.step(action)
                terminations[t, number], truncations[t, number] = terminated, truncated and not terminated
                lasts[t, number] = following
                observations[t + 1, number] = env.reset()[0] if terminated or truncated else following
        env_steps += steps * count
        observation, chosen = (torch.from_numpy(column).flatten(0, 1) for column in (observations[:-1], actions))
        with torch.no_grad():
            log_prob = policy(observation).log_prob(chosen)
            value = critic(torch.from_numpy(observations)).squeeze(-1).numpy()
            next_value = value[1:] * (1.0 - terminations)
            if (cut := truncations == 1.0).any():
                next_value[cut] = critic(torch.from_numpy(lasts[:-1][cut])).squeeze(-1).numpy()
        error = rewards + numbers["discount"] * next_value - value[:-1]
        carry = numbers["discount"] * numbers["lambda"] * (1.0 - np.maximum(terminations, truncations))
        advantages, advantage = np.empty_like(error), np.zeros(count, np.float32)
        for t in reversed(range(steps)):
            advantage = advantages[t] = error[t] + carry[t] * advantage
        returns = torch.from_numpy((advantages + value[:-1]).ravel())
        data = [observation, chosen, log_prob, torch.from_numpy(advantages.ravel()), returns]
        for number in range(numbers["epochs"]):
            for rows in torch.randperm(len(chosen)).split(numbers["batch_size"]):
                ppo_update(policy, critic, optimizer, numbers, [column[rows] for column in data])
                if number == 0 and env_steps >= clock.due and clock.note(env_steps):
                    return
        observations[0] = observations[-1]


def ppo_update(
    policy: nn.Module, critic: nn.Module, optimizer: Any, numbers: Mapping[str, Any], rows: list[Tensor]
) -> None:
    """Take gradients once; rows: observation, action, log_prob, advantage, return."""
    observation, action, old_log_prob, advantage, return_ = rows
    actions = policy(observation)
    ratio = (actions.log_prob(action) - old_log_prob).exp()
    if numbers["normalize"]:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = ratio.clamp(1.0 - numbers["clip"], 1.0 + numbers["clip"])
    loss = numbers["value_weight"] * (critic(observation).squeeze(-1) - return_).square()
    loss = loss - torch.minimum(ratio * advantage, clipped * advantage)
    if numbers["entropy_weight"]:
        loss = loss - numbers["entropy_weight"] * actions.entropy()
    optimizer.zero_grad()
    loss.mean().backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_([*policy.parameters(), *critic.parameters()], numbers["max_grad_norm"])
    optimizer.step()


LOOPS = {"sac": sac, "dqn": dqn, "ppo": ppo}
