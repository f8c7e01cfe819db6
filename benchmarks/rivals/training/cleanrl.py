"""Loops in the way of CleanRL, which is scripts and no package: rewritten here with the numbers of a run of rlrun.

One flat loop an algorithm, as a reader of its scripts knows them: Gymnasium's vector of environments that record their
episodes, a network and an Adam (not fused) for each network, two separate critics, target networks
parameter by parameter, figures for a log read by `.item()`. Its DQN has a squared loss and clips no gradients. Left
out: the log itself, and the running statistics of PPO's continuous script, which no other side keeps. It has no A2C;
it says that A2C is PPO with one epoch of one unclipped minibatch, so that runs here.
"""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn
from torch.distributions import Normal
from torch.optim import Adam

from benchmarks.rivals.training.cleanrl_rollouts import LOG_EVERY, Numbers, a2c, layers, ppo
from benchmarks.rivals.training.work import Work

PACKAGES: tuple[str, ...] = ()


def train(work: Work) -> None:
    """Go on for ever."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    on_policy = work.algorithm in ("ppo", "a2c")
    TRAINED[work.algorithm](vector(work.env, work.numbers["num_envs"], clipped=on_policy), work.numbers)


def vector(env: str, count: int, *, clipped: bool) -> SyncVectorEnv:
    """Return environments as the scripts make them; clipped: they take any number as an action."""

    def make() -> gymnasium.Env[Any, Any]:
        single_env: gymnasium.Env[Any, Any] = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(env))
        return (
            gymnasium.wrappers.ClipAction(single_env)
            if clipped and isinstance(single_env.action_space, Box)
            else single_env
        )

    return SyncVectorEnv([make] * count, autoreset_mode=AutoresetMode.SAME_STEP)


class Buffer:
    """The newest transitions of one environment; arrays go in, copies come out as tensors."""

    def __init__(self, size: int, envs: SyncVectorEnv) -> None:
        observation, action = envs.single_observation_space, envs.single_action_space
        self.observations = np.zeros((size, *observation.shape), np.float32)
        self.next_observations = np.zeros((size, *observation.shape), np.float32)
        self.actions = np.zeros((size, *action.shape), action.dtype)
        self.rewards, self.dones = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self.size, self.at, self.full = size, 0, False

    def add(self, observation: Any, following: Any, action: Any, reward: Any, done: Any) -> None:
        self.observations[self.at] = np.array(observation)
        self.next_observations[self.at] = np.array(following)
        self.actions[self.at] = np.array(action)
        self.rewards[self.at] = np.array(reward)
        self.dones[self.at] = np.array(done)
        self.at += 1
        if self.at == self.size:
            self.full, self.at = True, 0

    def sample(self, count: int) -> list[Tensor]:
        """Draw observations, next observations, actions, rewards [B, 1] and terminations [B, 1]."""
        rows = np.random.randint(0, self.size if self.full else self.at, size=count)
        columns = (self.observations, self.next_observations, self.actions, self.rewards, self.dones)
        tensors = [torch.tensor(column[rows]) for column in columns]
        return [*tensors[:3], tensors[3].reshape(-1, 1), tensors[4].reshape(-1, 1)]


def stored(buffer: Buffer, envs: SyncVectorEnv, observation: Any, actions: Any) -> Any:
    """Step the environment, store what came of it, and return the next observation."""
    following, rewards, terminations, truncations, infos = envs.step(actions)
    real = following.copy()
    for index, episode_end in enumerate(terminations | truncations):
        if episode_end:
            real[index] = infos["final_obs"][index]
    buffer.add(observation[0], real[0], actions[0], rewards[0], terminations[0])
    return following


class Critic(nn.Module):
    """Q(s, a)."""

    def __init__(self, envs: SyncVectorEnv, hidden: list[int]) -> None:
        super().__init__()
        width = int(np.prod(envs.single_observation_space.shape) + np.prod(envs.single_action_space.shape))
        self.layers = layers([width, *hidden, 1])

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        value: Tensor = self.layers(torch.cat([observation, action], 1))
        return value


class Scaled(nn.Module):
    """What turns (-1, 1) into actions."""

    def __init__(self, envs: SyncVectorEnv) -> None:
        super().__init__()
        space = envs.single_action_space
        self.register_buffer("scale", torch.tensor((space.high - space.low) / 2.0, dtype=torch.float32))
        self.register_buffer("center", torch.tensor((space.high + space.low) / 2.0, dtype=torch.float32))


class SacActor(Scaled):
    """A squashed Gaussian."""

    def __init__(self, envs: SyncVectorEnv, hidden: list[int]) -> None:
        super().__init__(envs)
        size = int(np.prod(envs.single_action_space.shape))
        self.layers = nn.Sequential(layers([int(np.prod(envs.single_observation_space.shape)), *hidden]), nn.ReLU())
        self.mean, self.log_std = nn.Linear(hidden[-1], size), nn.Linear(hidden[-1], size)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        features = self.layers(observation)
        log_std = -5.0 + 0.5 * 7.0 * (torch.tanh(self.log_std(features)) + 1.0)
        normal = Normal(self.mean(features), log_std.exp())
        raw = normal.rsample()
        squashed = torch.tanh(raw)
        log_prob = normal.log_prob(raw) - torch.log(self.scale * (1 - squashed.pow(2)) + 1e-6)
        return squashed * self.scale + self.center, log_prob.sum(1, keepdim=True)


class Actor(Scaled):
    """A deterministic policy."""

    def __init__(self, envs: SyncVectorEnv, hidden: list[int]) -> None:
        super().__init__(envs)
        sizes = [int(np.prod(envs.single_observation_space.shape)), *hidden]
        self.layers = layers([*sizes, int(np.prod(envs.single_action_space.shape))])

    def forward(self, observation: Tensor) -> Tensor:
        action: Tensor = torch.tanh(self.layers(observation)) * self.scale + self.center
        return action


class Pair:
    """Two critics, their target networks, and one optimizer for both."""

    def __init__(self, envs: SyncVectorEnv, numbers: Numbers) -> None:
        self.critic_1, self.critic_2, self.target_1, self.target_2 = (
            Critic(envs, list(numbers["hidden"])) for _ in range(4)
        )
        self.target_1.load_state_dict(self.critic_1.state_dict())
        self.target_2.load_state_dict(self.critic_2.state_dict())
        self.optimizer = Adam([*self.critic_1.parameters(), *self.critic_2.parameters()], lr=numbers["lr"])

    def update(self, observation: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Take a gradient; return the loss."""
        loss = F.mse_loss(self.critic_1(observation, action).view(-1), target)
        loss = loss + F.mse_loss(self.critic_2(observation, action).view(-1), target)
        stepped(self.optimizer, loss)
        return loss

    def move_targets(self, tau: float) -> None:
        """Move the target networks."""
        move(self.target_1, self.critic_1, tau)
        move(self.target_2, self.critic_2, tau)


def stepped(optimizer: Adam, loss: Tensor) -> None:
    """Take a gradient."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def move(target: nn.Module, network: nn.Module, tau: float) -> None:
    """Move a target network, parameter by parameter."""
    for own, source in zip(target.parameters(), network.parameters(), strict=True):
        own.data.copy_(tau * source.data + (1 - tau) * own.data)


def sac(envs: SyncVectorEnv, numbers: Numbers) -> None:
    """Soft actor-critic; the policy is updated every other step, twice."""
    actor, critics, every = SacActor(envs, list(numbers["hidden"])), Pair(envs, numbers), 2
    actor_optimizer = Adam(list(actor.parameters()), lr=numbers["lr"])
    target_entropy = -float(np.prod(envs.single_action_space.shape))
    log_alpha = torch.zeros(1, requires_grad=True)
    alpha, alpha_optimizer = log_alpha.exp().item(), Adam([log_alpha], lr=numbers["lr"])
    buffer, discount, step = Buffer(numbers["length"], envs), numbers["discount"], 0
    observation, _ = envs.reset(seed=0)
    while True:
        if step < numbers["warmup_steps"]:
            actions = np.array([envs.single_action_space.sample()])
        else:
            actions = actor(torch.Tensor(observation))[0].detach().cpu().numpy()
        observation = stored(buffer, envs, observation, actions)
        step += 1
        if step <= numbers["warmup_steps"]:
            continue
        seen, following, taken, rewards, dones = buffer.sample(numbers["batch_size"])
        with torch.no_grad():
            next_action, next_log_prob = actor(following)
            value = torch.min(critics.target_1(following, next_action), critics.target_2(following, next_action))
            carry = (1 - dones.flatten()) * discount
            target = rewards.flatten() + carry * (value - alpha * next_log_prob).view(-1)
        loss = critics.update(seen, taken, target)
        if step % every == 0:
            for _ in range(every):
                action, log_prob = actor(seen)
                value = torch.min(critics.critic_1(seen, action), critics.critic_2(seen, action))
                stepped(actor_optimizer, ((alpha * log_prob) - value).mean())
                with torch.no_grad():
                    _, log_prob = actor(seen)
                stepped(alpha_optimizer, (-log_alpha.exp() * (log_prob + target_entropy)).mean())
                alpha = log_alpha.exp().item()
        critics.move_targets(numbers["tau"])
        if step % LOG_EVERY == 0:
            loss.item()


def td3(envs: SyncVectorEnv, numbers: Numbers) -> None:
    """Twin delayed deterministic policy gradients."""
    actor, target_actor = (Actor(envs, list(numbers["hidden"])) for _ in range(2))
    target_actor.load_state_dict(actor.state_dict())
    critics, actor_optimizer = Pair(envs, numbers), Adam(list(actor.parameters()), lr=numbers["lr"])
    space, noise = envs.single_action_space, numbers["noise"]
    low, high = float(space.low[0]), float(space.high[0])
    buffer, discount, step = Buffer(numbers["length"], envs), numbers["discount"], 0
    observation, _ = envs.reset(seed=0)
    while True:
        if step < numbers["warmup_steps"]:
            actions = np.array([space.sample()])
        else:
            with torch.no_grad():
                action = actor(torch.Tensor(observation))
                action += torch.normal(0, actor.scale.expand_as(action) * noise["deviation"])
                actions = action.cpu().numpy().clip(space.low, space.high)
        observation = stored(buffer, envs, observation, actions)
        step += 1
        if step <= numbers["warmup_steps"]:
            continue
        seen, following, taken, rewards, dones = buffer.sample(numbers["batch_size"])
        with torch.no_grad():
            shift = torch.randn_like(taken) * noise["target"]
            shift = shift.clamp(-noise["target_limit"], noise["target_limit"]) * target_actor.scale
            next_action = (target_actor(following) + shift).clamp(low, high)
            value = torch.min(critics.target_1(following, next_action), critics.target_2(following, next_action))
            target = rewards.flatten() + (1 - dones.flatten()) * discount * value.view(-1)
        loss = critics.update(seen, taken, target)
        if step % numbers["policy_every"] == 0:
            stepped(actor_optimizer, -critics.critic_1(seen, actor(seen)).mean())
            move(target_actor, actor, numbers["tau"])
            critics.move_targets(numbers["tau"])
        if step % LOG_EVERY == 0:
            loss.item()


def dqn(envs: SyncVectorEnv, numbers: Numbers) -> None:
    """Deep Q-learning, an update every so many steps; hardly a random action, the dearest case."""
    sizes = [int(np.prod(envs.single_observation_space.shape)), *numbers["hidden"], int(envs.single_action_space.n)]
    network, target_network = layers(sizes), layers(sizes)
    target_network.load_state_dict(network.state_dict())
    optimizer, buffer = Adam(network.parameters(), lr=numbers["lr"]), Buffer(numbers["length"], envs)
    every, discount, step = round(1 / numbers["updates_per_step"]), numbers["discount"], 0
    observation, _ = envs.reset(seed=0)
    while True:
        if step < numbers["warmup_steps"] or random.random() < numbers["epsilon"]["last"]:
            actions = np.array([envs.single_action_space.sample()])
        else:
            actions = torch.argmax(network(torch.Tensor(observation)), dim=1).cpu().numpy()
        observation = stored(buffer, envs, observation, actions)
        step += 1
        if step <= numbers["warmup_steps"] or step % every:
            continue
        seen, following, taken, rewards, dones = buffer.sample(numbers["batch_size"])
        with torch.no_grad():
            best, _ = target_network(following).max(dim=1)
            target = rewards.flatten() + discount * best * (1 - dones.flatten())
        loss = F.mse_loss(target, network(seen).gather(1, taken.unsqueeze(-1)).squeeze())
        stepped(optimizer, loss)
        if step % LOG_EVERY == 0:
            loss.item()
        if step % (every * numbers["target_every"]) == 0:
            move(target_network, network, numbers["tau"])


TRAINED = {"sac": sac, "td3": td3, "dqn": dqn, "ppo": ppo, "a2c": a2c}
