"""SAC, TD3 and DQN as CleanRL writes them, each in a plain loop: separate critics, Adam as torch has it by default.

A vector environment of one lane, a module a network, `torch.distributions`, slow copies parameter by parameter, two
steps of the policy every second update. Numbers are those that all sides are given; nothing is logged.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn
from torch.distributions import Normal

from benchmarks.clock import Clock

LOG_STD = (-5.0, 2.0)
DELAY = 2  # updates between two phases of the policy


def lanes(env: str, count: int) -> SyncVectorEnv:
    """Return environments that count their episodes' returns."""
    make = [lambda: gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(env))] * count
    return SyncVectorEnv(make, autoreset_mode=AutoresetMode.SAME_STEP)


def layers(inputs: int, hidden: Iterable[int], outputs: int) -> nn.Sequential:
    """Return dense layers with rectifiers between them."""
    parts: list[nn.Module] = []
    for width in hidden:
        parts += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*parts, nn.Linear(inputs, outputs))


class Memory:
    """Arrays of the newest transitions."""

    def __init__(self, length: int, env: SyncVectorEnv) -> None:
        shape, actions = env.single_observation_space.shape, env.single_action_space
        self.observation, self.following = (np.zeros((length, *(shape or ())), np.float32) for _ in range(2))
        self.action = np.zeros((length, *(actions.shape or (1,))), actions.dtype)
        self.reward, self.done = (np.zeros((length, 1), np.float32) for _ in range(2))
        self.length, self.at, self.size = length, 0, 0

    def add(self, *row: Any) -> None:
        columns = (self.observation, self.following, self.action, self.reward, self.done)
        for column, value in zip(columns, row, strict=True):
            column[self.at] = value
        self.at = (self.at + 1) % self.length
        self.size = min(self.size + 1, self.length)

    def sample(self, count: int) -> list[Tensor]:
        rows = np.random.randint(0, self.size, count)
        columns = (self.observation, self.following, self.action, self.reward, self.done)
        return [torch.tensor(column[rows]) for column in columns]


def move(slow: nn.Module, fast: nn.Module, rate: float) -> None:
    """Bring a slow copy nearer, parameter by parameter."""
    for old, new in zip(slow.parameters(), fast.parameters(), strict=True):
        old.data.copy_(rate * new.data + (1.0 - rate) * old.data)


class Judged:
    """Two critics, their slow copies, and one optimiser for both."""

    def __init__(self, env: SyncVectorEnv, numbers: dict[str, Any]) -> None:
        self.numbers = numbers
        self.observed = int(np.prod(env.single_observation_space.shape))
        self.size = int(np.prod(env.single_action_space.shape))
        self.critics = [layers(self.observed + self.size, numbers["hidden"], 1) for _ in range(2)]
        self.slow = [copy.deepcopy(critic) for critic in self.critics]
        self.high = torch.tensor(env.single_action_space.high)  # type: ignore[attr-defined]
        both = [parameter for critic in self.critics for parameter in critic.parameters()]
        self.q_optimiser = torch.optim.Adam(both, lr=numbers["lr"])

    def values(self, critics: list[nn.Sequential], observation: Tensor, action: Tensor) -> list[Tensor]:
        return [critic(torch.cat([observation, action], 1)) for critic in critics]

    def judge(self, observation: Tensor, action: Tensor, target: Tensor) -> None:
        """Take both critics a step towards the target."""
        loss = sum(F.mse_loss(value, target) for value in self.values(self.critics, observation, action))
        self.q_optimiser.zero_grad()
        loss.backward()  # type: ignore[union-attr]
        self.q_optimiser.step()


class Sac(Judged):
    """Soft actor-critic with a learned temperature."""

    def __init__(self, env: SyncVectorEnv, numbers: dict[str, Any]) -> None:
        super().__init__(env, numbers)
        self.actor = layers(self.observed, numbers["hidden"], 2 * self.size)
        self.actor_optimiser = torch.optim.Adam(self.actor.parameters(), lr=numbers["lr"])
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.alpha = self.log_alpha.exp().item()
        self.alpha_optimiser = torch.optim.Adam([self.log_alpha], lr=numbers["lr"])
        self.optimisers = [self.q_optimiser, self.actor_optimiser, self.alpha_optimiser]

    def drawn(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions and their log-probabilities [B, 1]."""
        mean, log_std = self.actor(observation).chunk(2, -1)
        log_std = LOG_STD[0] + 0.5 * (LOG_STD[1] - LOG_STD[0]) * (torch.tanh(log_std) + 1.0)
        normal = Normal(mean, log_std.exp())
        raw = normal.rsample()
        squashed = torch.tanh(raw)
        log_prob = normal.log_prob(raw) - torch.log(self.high * (1.0 - squashed.pow(2)) + 1e-6)
        return squashed * self.high, log_prob.sum(1, keepdim=True)

    def act(self, observation: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.drawn(torch.Tensor(observation))[0].detach().numpy()
        return found

    def update(
        self, number: int, observation: Tensor, following: Tensor, action: Tensor, reward: Tensor, done: Tensor
    ) -> None:
        """Learn from a batch."""
        with torch.no_grad():
            next_action, log_prob = self.drawn(following)
            least = torch.min(*self.values(self.slow, following, next_action)) - self.alpha * log_prob
            target = reward + (1.0 - done) * self.numbers["discount"] * least
        self.judge(observation, action, target)
        for _ in range(DELAY if number % DELAY == 0 else 0):
            self.improve(observation)
        for slow, fast in zip(self.slow, self.critics, strict=True):
            move(slow, fast, self.numbers["target_rate"])

    def improve(self, observation: Tensor) -> None:
        """Take the policy and the temperature a step."""
        action, log_prob = self.drawn(observation)
        loss = (self.alpha * log_prob - torch.min(*self.values(self.critics, observation, action))).mean()
        self.actor_optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.actor_optimiser.step()
        with torch.no_grad():
            _, log_prob = self.drawn(observation)
        loss = (-self.log_alpha.exp() * (log_prob - self.size)).mean()
        self.alpha_optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.alpha_optimiser.step()
        self.alpha = self.log_alpha.exp().item()


class Td3(Judged):
    """Twin delayed deterministic policy gradients."""

    def __init__(self, env: SyncVectorEnv, numbers: dict[str, Any]) -> None:
        super().__init__(env, numbers)
        self.actor = nn.Sequential(*layers(self.observed, numbers["hidden"], self.size), nn.Tanh())
        self.slow_actor = copy.deepcopy(self.actor)
        self.actor_optimiser = torch.optim.Adam(self.actor.parameters(), lr=numbers["lr"])
        self.optimisers = [self.q_optimiser, self.actor_optimiser]

    def act(self, observation: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            action = self.actor(torch.Tensor(observation)) * self.high
            action += torch.normal(0, self.high * self.numbers["noise"]["deviation"])
        found: np.ndarray = action.numpy().clip(-self.high.numpy(), self.high.numpy())
        return found

    def update(
        self, number: int, observation: Tensor, following: Tensor, action: Tensor, reward: Tensor, done: Tensor
    ) -> None:
        """Learn from a batch."""
        noise = self.numbers["noise"]
        with torch.no_grad():
            moved = (torch.randn_like(action) * noise["target"]).clamp(-noise["target_limit"], noise["target_limit"])
            next_action = ((self.slow_actor(following) + moved) * self.high).clamp(-self.high, self.high)
            least = torch.min(*self.values(self.slow, following, next_action))
            target = reward + (1.0 - done) * self.numbers["discount"] * least
        self.judge(observation, action, target)
        if number % self.numbers["policy_every"] == 0:
            value = self.critics[0](torch.cat([observation, self.actor(observation) * self.high], 1))
            self.actor_optimiser.zero_grad()
            (-value.mean()).backward()
            self.actor_optimiser.step()
            pairs = zip([self.slow_actor, *self.slow], [self.actor, *self.critics], strict=True)
            for slow, fast in pairs:
                move(slow, fast, self.numbers["target_rate"])


class Dqn:
    """Deep Q-learning with a target that is copied now and then."""

    def __init__(self, env: SyncVectorEnv, numbers: dict[str, Any]) -> None:
        self.numbers = numbers
        self.choices = int(env.single_action_space.n)  # type: ignore[attr-defined]
        self.q = layers(int(np.prod(env.single_observation_space.shape)), numbers["hidden"], self.choices)
        self.slow = copy.deepcopy(self.q)
        self.optimisers = [torch.optim.Adam(self.q.parameters(), lr=numbers["lr"])]

    def act(self, observation: np.ndarray) -> np.ndarray:
        if np.random.random() < self.numbers["epsilon"]["last"]:
            return np.random.randint(0, self.choices, 1)
        found: np.ndarray = self.q(torch.Tensor(observation)).argmax(1).numpy()
        return found

    def update(
        self, number: int, observation: Tensor, following: Tensor, action: Tensor, reward: Tensor, done: Tensor
    ) -> None:
        """Learn from a batch."""
        with torch.no_grad():
            best = self.slow(following).max(1).values
            target = reward.flatten() + self.numbers["discount"] * best * (1.0 - done.flatten())
        loss = F.mse_loss(target, self.q(observation).gather(1, action).squeeze())
        self.optimisers[0].zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimisers[0].step()
        if number % self.numbers["target_every"] == 0:
            move(self.slow, self.q, self.numbers["target_rate"])


def replay(kind: type[Sac] | type[Td3] | type[Dqn], numbers: dict[str, Any], clock: Clock) -> None:
    """Step, store and learn until the clock's last mark."""
    env = lanes(numbers["env"], 1)
    learner, memory = kind(env, numbers), Memory(numbers["length"], env)
    clock.watch(learner.optimisers)
    warm_up, step, updates = numbers["warmup_steps"], 0, 0
    observation, _ = env.reset(seed=0)
    while True:
        action = env.action_space.sample() if step < warm_up else learner.act(observation)
        following, reward, terminated, truncated, infos = env.step(action)
        last = infos["final_obs"][0] if truncated[0] else following[0]
        memory.add(observation[0], last, action[0], reward[0], terminated[0])
        observation = following
        step += 1
        while updates < int((step - warm_up) * numbers["updates_per_step"]):
            updates += 1
            learner.update(updates, *memory.sample(numbers["batch_size"]))
        if step >= clock.due and clock.note(step):
            return
