"""Hand-written loops to compare with: the same networks and numbers, and nothing else.

The networks are rlrun's, so what is measured is the cost of its trainer; `plain.py` has no part of rlrun.

What a good engineer would write for one environment on a CPU: preallocated arrays and one fancy
index a column, `no_grad` for targets, gradients for one network at a time, fused Adam, target networks
by one foreach call. No logging, no evaluation, no checkpoints, no checks. The order of work is that
of a run: act, step, store; then sample, target, losses, target networks.
"""

from __future__ import annotations

import copy
import math
import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gymnasium
import hydra
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.clock import Clock
from rlrun.algorithms.value_based.dqn import QNetwork
from rlrun.core.spaces import Spaces
from rlrun.env.spaces import from_gymnasium
from rlrun.nn import Bins

Numbers = Mapping[str, Any]  # the block `algorithm` of a composed config, and `length` of the memory
Open = Callable[[], Any]  # makes an environment


class Loop(Protocol):
    """A whole run on an environment."""

    def __call__(self, open_env: Open, numbers: Numbers, clock: Clock) -> None: ...


class Ring:
    """The newest `length` transitions; `carry` is discount ** steps, or 0 where the episode terminated."""

    def __init__(
        self, length: int, *, observation: int, action: tuple[int, ...], dtype: str, rewards: tuple[int, ...] = ()
    ) -> None:
        self.length, self.size, self.next = length, 0, 0
        self.observation = np.zeros((length, observation), np.float32)
        self.next_observation = np.zeros((length, observation), np.float32)
        self.action = np.zeros((length, *action), dtype)
        self.reward = np.zeros((length, *rewards), np.float32)
        self.carry = np.zeros(length, np.float32)
        self.generator = np.random.default_rng(0)

    def add(self, observation: Any, action: Any, reward: Any, next_observation: Any, carry: float) -> None:
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

    def add(
        self, observation: Any, action: Any, reward: float, following: Any, terminated: bool, episode_end: bool
    ) -> None:
        self.waiting.append((observation, action, reward))
        if len(self.waiting) == self.steps or episode_end:
            self._write(following, terminated)
        while episode_end and self.waiting:
            self._write(following, terminated)

    def _write(self, following: Any, terminated: bool) -> None:
        total = 0.0
        for _, _, reward in reversed(self.waiting):
            total = reward + self.discount * total
        carry = 0.0 if terminated else self.discount ** len(self.waiting)
        observation, action, _ = self.waiting.popleft()
        self.ring.add(observation, action, total, following, carry)


def adam(parameters: Any, numbers: Numbers) -> torch.optim.Adam:
    """Return the optimizer of both sides."""
    return torch.optim.Adam(parameters, lr=numbers["lr"], fused=True)


def opened(env: Any) -> Any:
    """Return the environment of a composed block `env`."""
    if env.target:
        return hydra.utils.get_class(env.target)()
    return gymnasium.make(env.id, disable_env_checker=True)


def spaces_of(env: gymnasium.Env[Any, Any]) -> Spaces:
    """Return what networks are built from."""
    observation = from_gymnasium(env.observation_space, "observation")
    return Spaces(observation=observation, action=from_gymnasium(env.action_space, "action", action=True))


def target_copy(network: nn.Module) -> tuple[nn.Module, list[Tensor], list[Tensor]]:
    """Return a copy without gradients, its parameters and the network's."""
    target = copy.deepcopy(network).requires_grad_(False)
    return target, list(target.parameters()), [parameter.detach() for parameter in network.parameters()]


class Update(Protocol):
    """What a loop of continuous actions calls."""

    def act(self, observation: Tensor) -> Tensor:
        """Return actions [1, A] that explore."""

    def __call__(self, number: int, *batch: Tensor) -> None:
        """Take gradients once; observation, action, reward, next observation, carry."""


def off_policy(make: Callable[[Spaces, Numbers, Clock], Update]) -> Loop:
    """Return a loop of one continuous action, which runs until the clock's last mark."""

    def loop(open_env: Open, numbers: Numbers, clock: Clock) -> None:
        env = open_env()
        low, high = env.action_space.low, env.action_space.high
        update = make(spaces_of(env), numbers, clock)
        rewards = env.reward_space.shape if hasattr(env, "reward_space") else ()
        observed = env.observation_space.shape[0]
        ring = Ring(numbers["length"], observation=observed, action=low.shape, dtype="float32", rewards=rewards)
        warm_up, discount, batch = numbers["warmup_steps"], numbers["discount"], numbers["batch_size"]
        generator, step, updates = np.random.default_rng(0), 0, 0
        observation, _ = env.reset(seed=0)
        while True:
            if step < warm_up:
                action = generator.uniform(-1.0, 1.0, low.shape).astype(np.float32)
            else:
                with torch.no_grad():
                    seen = torch.as_tensor(observation, dtype=torch.float32)
                    action = update.act(seen.unsqueeze(0)).squeeze(0).numpy()
            following, reward, terminated, truncated, _ = env.step(low + (action + 1.0) * 0.5 * (high - low))
            ring.add(observation, action, reward, following, 0.0 if terminated else discount)
            observation = env.reset()[0] if terminated or truncated else following
            step += 1
            while updates < int((step - warm_up) * numbers["updates_per_step"]):
                updates += 1
                update(updates, *ring.sample(batch))
            if step >= clock.due and clock.note(step):
                return

    return loop


def dqn(open_env: Open, numbers: Numbers, clock: Clock) -> None:
    """Deep Q-learning; runs until the clock's last mark."""
    env = open_env()
    kind = QuantileUpdate if numbers["quantiles"] else BinsUpdate if numbers["value_head"] else DqnUpdate
    update = kind(spaces_of(env), numbers, clock)
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
        episode_end = terminated or truncated
        ahead.add(observation, action, float(reward), following, terminated, episode_end)
        observation = env.reset()[0] if episode_end else following
        step += 1
        collected = (step - warm_up) // numbers["collect_steps"] * numbers["collect_steps"]
        while updates < int(collected * numbers["updates_per_step"]):
            updates += 1
            update(updates, *ring.sample(batch))
        if step >= clock.due and clock.note(step):
            return


class DqnUpdate:
    """One gradient update of the Q-network."""

    def __init__(self, spaces: Spaces, numbers: Numbers, clock: Clock) -> None:
        self.q = QNetwork(spaces, hidden=tuple(numbers["hidden"]), dueling=numbers["dueling"], **self.options(numbers))
        self.target_q, self.target_parameters, self.source_parameters = target_copy(self.q)
        self.tau, self.every, self.huber = numbers["tau"], numbers["target_every"], numbers["huber"]
        self.max_grad_norm, self.double = numbers["max_grad_norm"], numbers["double"]
        self.parameters = list(self.q.parameters())
        self.optimizer = adam(self.parameters, numbers)
        clock.watch((self.optimizer,))

    def options(self, numbers: Numbers) -> dict[str, Any]:
        """Return the arguments that choose the outputs of the network."""
        return {}

    def loss(self, observation: Tensor, action: Tensor, reward: Tensor, following: Tensor, carry: Tensor) -> Tensor:
        """Return the mean over a batch."""
        with torch.no_grad():
            next_q = self.target_q(following)[0]
            chooses = self.q(following)[0] if self.double else next_q
            q_target = reward + carry * next_q.gather(-1, chooses.argmax(-1, keepdim=True)).squeeze(-1)
        value = self.q(observation)[0].gather(-1, action.unsqueeze(-1)).squeeze(-1)
        if self.huber is None:
            return F.mse_loss(value, q_target)
        return F.huber_loss(value, q_target, delta=self.huber)

    def __call__(self, number: int, *batch: Tensor) -> None:
        loss = self.loss(*batch)
        self.optimizer.zero_grad()
        loss.backward(inputs=self.parameters)  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm, foreach=False)
        self.optimizer.step()
        if number % self.every == 0:
            torch._foreach_lerp_(self.target_parameters, self.source_parameters, self.tau)


class QuantileUpdate(DqnUpdate):
    """The same with quantiles."""

    def options(self, numbers: Numbers) -> dict[str, Any]:
        count = numbers["quantiles"]
        self.points = (torch.arange(count) + 0.5) / count
        return {"quantiles": count}

    def loss(self, observation: Tensor, action: Tensor, reward: Tensor, following: Tensor, carry: Tensor) -> Tensor:
        rows = torch.arange(len(action))
        with torch.no_grad():
            best = self.q(following)[0].argmax(-1)
            next_quantiles = self.target_q.raw_output(following)[0, rows, best]  # type: ignore[operator]
            q_target = reward.unsqueeze(-1) + carry.unsqueeze(-1) * next_quantiles
        return quantile_loss(self.q.raw_output(observation)[0, rows, action], q_target, self.points).mean()


class BinsUpdate(DqnUpdate):
    """The same with bins."""

    def options(self, numbers: Numbers) -> dict[str, Any]:
        self.bins = HandBins(numbers["value_head"])
        return {"value_head": self.bins.value_head}

    def loss(self, observation: Tensor, action: Tensor, reward: Tensor, following: Tensor, carry: Tensor) -> Tensor:
        rows = torch.arange(len(action))
        with torch.no_grad():
            best = self.q(following)[0].argmax(-1, keepdim=True)
            q_target = reward + carry * self.target_q(following)[0].gather(-1, best).squeeze(-1)
        return self.bins.loss(self.q.raw_output(observation)[0, rows, action], q_target).mean()


class HandBins:
    """Bins of a return, and the cross-entropy that they learn by."""

    def __init__(self, numbers: Numbers) -> None:
        count, least, largest = numbers["count"], numbers["least"], numbers["largest"]
        self.value_head = Bins(count, least=least, largest=largest)
        self.least, self.largest = float(least), float(largest)
        self.edges = torch.linspace(least, largest, count + 1)
        self.width = math.sqrt(2.0) * numbers["smoothing"] * (largest - least) / count

    def loss(self, logits: Tensor, q_target: Tensor) -> Tensor:
        """Return the cross-entropy [..., B] of logits [..., B, N] with targets [B] spread by a Gaussian."""
        inside = q_target.clamp(self.least, self.largest).unsqueeze(-1)
        below = torch.special.erf((self.edges - inside) / self.width)
        shares = below.diff(dim=-1) / (below[:, -1:] - below[:, :1])
        return -(shares * logits.log_softmax(-1)).sum(-1)


def quantile_loss(quantiles: Tensor, target: Tensor, points: Tensor) -> Tensor:
    """Return the weighted Huber loss [..., N', N] of quantiles [..., N] at some points, to targets [..., N']."""
    error = target.unsqueeze(-1) - quantiles.unsqueeze(-2)
    size = error.abs()
    huber = torch.where(size < 1.0, 0.5 * error.square(), size - 0.5)
    return (points.unsqueeze(-2) - (error.detach() < 0.0).float()).abs() * huber
