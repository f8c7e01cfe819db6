"""Hand-written loops to compare with: the same networks and numbers, and nothing else.

What a good engineer would write for one environment on a CPU: preallocated arrays and one fancy
index a column, `no_grad` for targets, gradients for one network at a time, fused Adam, slow copies
by one foreach call. No logging, no evaluation, no checkpoints, no checks. The order of work is that
of a run: act, step, store; then sample, target, losses, slow copies.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.clock import Clock
from rlrun.algorithms.dqn import QNetwork
from rlrun.env.spaces import from_gymnasium
from rlrun.nn import Critics, SquashedGaussian
from rlrun.spaces import Spaces

Numbers = Mapping[str, Any]  # the block `algorithm` of a composed config, and `length` of the memory


class Ring:
    """The newest `length` transitions; `carry` is discount ** steps, or 0 where the episode terminated."""

    def __init__(self, length: int, *, observation: int, action: tuple[int, ...], dtype: str) -> None:
        self.length, self.size, self.next = length, 0, 0
        self.observation = np.zeros((length, observation), np.float32)
        self.next_observation = np.zeros((length, observation), np.float32)
        self.action = np.zeros((length, *action), dtype)
        self.reward = np.zeros(length, np.float32)
        self.carry = np.zeros(length, np.float32)
        self.generator = np.random.default_rng(0)

    def add(self, observation: Any, action: Any, reward: float, next_observation: Any, carry: float) -> None:
        at = self.next
        self.observation[at] = observation
        self.action[at] = action
        self.reward[at] = reward
        self.next_observation[at] = next_observation
        self.carry[at] = carry
        self.next = (at + 1) % self.length
        self.size = min(self.size + 1, self.length)

    def sample(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        rows = self.generator.integers(0, self.size, count)
        return (
            torch.from_numpy(self.observation[rows]),
            torch.from_numpy(self.action[rows]),
            torch.from_numpy(self.reward[rows]),
            torch.from_numpy(self.next_observation[rows]),
            torch.from_numpy(self.carry[rows]),
        )


class Ahead:
    """Write transitions into a ring once their next `steps` rewards are known, or the episode is over."""

    def __init__(self, ring: Ring, *, steps: int, discount: float) -> None:
        self.ring, self.steps, self.discount = ring, steps, discount
        self.waiting: deque[tuple[Any, Any, float]] = deque()

    def add(self, observation: Any, action: Any, reward: float, following: Any, terminated: bool, ended: bool) -> None:
        self.waiting.append((observation, action, reward))
        if len(self.waiting) == self.steps or ended:
            self._write(following, terminated)
        while ended and self.waiting:
            self._write(following, terminated)

    def _write(self, following: Any, terminated: bool) -> None:
        total = 0.0
        for _, _, reward in reversed(self.waiting):
            total = reward + self.discount * total
        carry = 0.0 if terminated else self.discount ** len(self.waiting)
        observation, action, _ = self.waiting.popleft()
        self.ring.add(observation, action, total, following, carry)


def adam(parameters: Any, numbers: Numbers) -> torch.optim.Adam:
    """Return the optimiser of both sides."""
    return torch.optim.Adam(parameters, lr=numbers["lr"], fused=True)


def spaces_of(env: gymnasium.Env[Any, Any]) -> Spaces:
    """Return what networks are built from."""
    observation = from_gymnasium(env.observation_space, "observation")
    return Spaces(observation=observation, action=from_gymnasium(env.action_space, "action", action=True))


def slow_copy(network: nn.Module) -> tuple[nn.Module, list[Tensor], list[Tensor]]:
    """Return a copy without gradients, its parameters and the network's."""
    slow = copy.deepcopy(network).requires_grad_(False)
    return slow, list(slow.parameters()), [parameter.detach() for parameter in network.parameters()]


def sac(name: str, numbers: Numbers, clock: Clock) -> None:
    """Soft actor-critic with one continuous action; runs until the clock's last mark."""
    env: Any = gymnasium.make(name, disable_env_checker=True)
    low, high = env.action_space.low, env.action_space.high
    update = SacUpdate(spaces_of(env), numbers, clock)
    ring = Ring(numbers["length"], observation=env.observation_space.shape[0], action=low.shape, dtype="float32")
    warm_up, discount, batch = numbers["warmup_steps"], numbers["discount"], numbers["batch_size"]
    generator, step, updates = np.random.default_rng(0), 0, 0
    observation, _ = env.reset(seed=0)
    while True:
        if step < warm_up:
            action = generator.uniform(-1.0, 1.0, low.shape).astype(np.float32)
        else:
            with torch.no_grad():
                action = update.policy(torch.from_numpy(observation).unsqueeze(0))[0].squeeze(0).numpy()
        following, reward, terminated, truncated, _ = env.step(low + (action + 1.0) * 0.5 * (high - low))
        ring.add(observation, action, float(reward), following, 0.0 if terminated else discount)
        observation = env.reset()[0] if terminated or truncated else following
        step += 1
        while updates < int((step - warm_up) * numbers["updates_per_step"]):
            update(*ring.sample(batch))
            updates += 1
        if step >= clock.due and clock.note(step):
            return


class SacUpdate:
    """One gradient update of critics, policy and temperature."""

    def __init__(self, spaces: Spaces, numbers: Numbers, clock: Clock) -> None:
        hidden = tuple(numbers["hidden"])
        self.critics = Critics(spaces, hidden=hidden, members=numbers["ensemble"])
        self.policy = SquashedGaussian(spaces, hidden=hidden)
        self.target_critics, self.slow, self.fast = slow_copy(self.critics)
        self.log_temperature = torch.zeros(1, requires_grad=True)
        self.target_entropy = -float(spaces.action.size)
        self.rate = numbers["target_rate"]
        self.critics_parameters = list(self.critics.parameters())
        self.policy_parameters = list(self.policy.parameters())
        self.critics_optimiser = adam(self.critics_parameters, numbers)
        self.policy_optimiser = adam(self.policy_parameters, numbers)
        self.temperature_optimiser = adam([self.log_temperature], numbers)
        clock.watch((self.critics_optimiser, self.policy_optimiser, self.temperature_optimiser))

    def __call__(
        self, observation: Tensor, action: Tensor, reward: Tensor, next_observation: Tensor, carry: Tensor
    ) -> None:
        with torch.no_grad():
            temperature = self.log_temperature.exp()
            next_action, next_log_prob = self.policy(next_observation)
            value = self.target_critics(next_observation, next_action).amin(0) - temperature * next_log_prob
            q_target = reward + carry * value
        loss = (self.critics(observation, action) - q_target).square().sum(0).mean()
        self.critics_optimiser.zero_grad()
        loss.backward(inputs=self.critics_parameters)
        self.critics_optimiser.step()

        drawn, log_prob = self.policy(observation)
        loss = (temperature * log_prob - self.critics(observation, drawn).amin(0)).mean()
        self.policy_optimiser.zero_grad()
        loss.backward(inputs=self.policy_parameters)
        self.policy_optimiser.step()

        loss = -(self.log_temperature * (log_prob.detach() + self.target_entropy)).mean()
        self.temperature_optimiser.zero_grad()
        loss.backward(inputs=[self.log_temperature])
        self.temperature_optimiser.step()
        torch._foreach_lerp_(self.slow, self.fast, self.rate)


def dqn(name: str, numbers: Numbers, clock: Clock) -> None:
    """Deep Q-learning with double targets; runs until the clock's last mark."""
    env: Any = gymnasium.make(name, disable_env_checker=True)
    update = DqnUpdate(spaces_of(env), numbers, clock)
    ring = Ring(numbers["length"], observation=env.observation_space.shape[0], action=(), dtype="int64")
    ahead = Ahead(ring, steps=numbers["n_step"], discount=numbers["discount"])
    warm_up, epsilon, batch = numbers["warmup_steps"], numbers["epsilon"], numbers["batch_size"]
    choices, step, updates = int(env.action_space.n), 0, 0
    observation, _ = env.reset(seed=0)
    while True:
        share = max(epsilon["last"], epsilon["first"] + (epsilon["last"] - epsilon["first"]) * step / epsilon["steps"])
        if step < warm_up or random.random() < share:
            action = random.randrange(choices)
        else:
            with torch.no_grad():
                action = int(update.q(torch.from_numpy(observation).unsqueeze(0))[0, 0].argmax())
        following, reward, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated
        ahead.add(observation, action, float(reward), following, terminated, ended)
        observation = env.reset()[0] if ended else following
        step += 1
        while updates < int((step - warm_up) * numbers["updates_per_step"]):
            updates += 1
            update(updates, *ring.sample(batch))
        if step >= clock.due and clock.note(step):
            return


class DqnUpdate:
    """One gradient update of the Q-network."""

    def __init__(self, spaces: Spaces, numbers: Numbers, clock: Clock) -> None:
        self.q = QNetwork(spaces, hidden=tuple(numbers["hidden"]), members=1)
        self.target_q, self.slow, self.fast = slow_copy(self.q)
        self.rate, self.every, self.huber = numbers["target_rate"], numbers["target_every"], numbers["huber"]
        self.max_grad_norm = numbers["max_grad_norm"]
        self.parameters = list(self.q.parameters())
        self.optimiser = adam(self.parameters, numbers)
        clock.watch((self.optimiser,))

    def __call__(
        self,
        number: int,
        observation: Tensor,
        action: Tensor,
        reward: Tensor,
        next_observation: Tensor,
        carry: Tensor,
    ) -> None:
        with torch.no_grad():
            best = self.q(next_observation)[0].argmax(-1, keepdim=True)
            value = self.target_q(next_observation)[0].gather(-1, best).squeeze(-1)
            q_target = reward + carry * value
        value = self.q(observation)[0].gather(-1, action.unsqueeze(-1)).squeeze(-1)
        loss = F.huber_loss(value, q_target, delta=self.huber)
        self.optimiser.zero_grad()
        loss.backward(inputs=self.parameters)  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm, foreach=False)
        self.optimiser.step()
        if number % self.every == 0:
            torch._foreach_lerp_(self.slow, self.fast, self.rate)
