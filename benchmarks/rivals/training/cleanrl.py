"""Loops in the way of CleanRL, which is scripts and no package: written anew here, with the numbers of a run of rlrun.

One flat loop an algorithm, as a reader of its scripts knows them: Gymnasium's vector of environments that record their
episodes, a network and an Adam (not fused) for whatever is learned, two critics apart from one another, target networks
parameter by parameter, figures for a log read by `.item()`. Its DQN has a squared loss and clips no gradients. Left
out: the log itself, and the running statistics of PPO's continuous script, which no other side keeps. It has no A2C,
and says that this is PPO with one epoch of one minibatch that is not clipped: so it is here.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.optim import Adam

from benchmarks.rivals.training.work import Work

PACKAGES: tuple[str, ...] = ()
LOG_EVERY = 100  # steps from one reading of figures to the next
Numbers = dict[str, Any]


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


def layers(sizes: list[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers with activations in between."""
    modules: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        modules += [nn.Linear(wide, narrow), activation()]
    return nn.Sequential(*modules[:-1])


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
        self.one, self.two, self.slow_one, self.slow_two = (Critic(envs, list(numbers["hidden"])) for _ in range(4))
        self.slow_one.load_state_dict(self.one.state_dict())
        self.slow_two.load_state_dict(self.two.state_dict())
        self.optimizer = Adam([*self.one.parameters(), *self.two.parameters()], lr=numbers["lr"])

    def update(self, observation: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Take a gradient; return the loss."""
        loss = F.mse_loss(self.one(observation, action).view(-1), target)
        loss = loss + F.mse_loss(self.two(observation, action).view(-1), target)
        stepped(self.optimizer, loss)
        return loss

    def follow(self, rate: float) -> None:
        """Move the target networks."""
        follow(self.slow_one, self.one, rate)
        follow(self.slow_two, self.two, rate)


def stepped(optimizer: Adam, loss: Tensor) -> None:
    """Take a gradient."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def follow(slow: nn.Module, fast: nn.Module, rate: float) -> None:
    """Move a target network, parameter by parameter."""
    for own, source in zip(slow.parameters(), fast.parameters(), strict=True):
        own.data.copy_(rate * source.data + (1 - rate) * own.data)


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
            value = torch.min(critics.slow_one(following, next_action), critics.slow_two(following, next_action))
            carry = (1 - dones.flatten()) * discount
            target = rewards.flatten() + carry * (value - alpha * next_log_prob).view(-1)
        loss = critics.update(seen, taken, target)
        if step % every == 0:
            for _ in range(every):
                action, log_prob = actor(seen)
                value = torch.min(critics.one(seen, action), critics.two(seen, action))
                stepped(actor_optimizer, ((alpha * log_prob) - value).mean())
                with torch.no_grad():
                    _, log_prob = actor(seen)
                stepped(alpha_optimizer, (-log_alpha.exp() * (log_prob + target_entropy)).mean())
                alpha = log_alpha.exp().item()
        critics.follow(numbers["tau"])
        if step % LOG_EVERY == 0:
            loss.item()


def td3(envs: SyncVectorEnv, numbers: Numbers) -> None:
    """Twin delayed deterministic policy gradients."""
    actor, slow = (Actor(envs, list(numbers["hidden"])) for _ in range(2))
    slow.load_state_dict(actor.state_dict())
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
            shift = shift.clamp(-noise["target_limit"], noise["target_limit"]) * slow.scale
            next_action = (slow(following) + shift).clamp(low, high)
            value = torch.min(critics.slow_one(following, next_action), critics.slow_two(following, next_action))
            target = rewards.flatten() + (1 - dones.flatten()) * discount * value.view(-1)
        loss = critics.update(seen, taken, target)
        if step % numbers["policy_every"] == 0:
            stepped(actor_optimizer, -critics.one(seen, actor(seen)).mean())
            follow(slow, actor, numbers["tau"])
            critics.follow(numbers["tau"])
        if step % LOG_EVERY == 0:
            loss.item()


def dqn(envs: SyncVectorEnv, numbers: Numbers) -> None:
    """Deep Q-learning, an update every so many steps; hardly a random action, the dearest case."""
    sizes = [int(np.prod(envs.single_observation_space.shape)), *numbers["hidden"], int(envs.single_action_space.n)]
    network, slow = layers(sizes), layers(sizes)
    slow.load_state_dict(network.state_dict())
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
            best, _ = slow(following).max(dim=1)
            target = rewards.flatten() + discount * best * (1 - dones.flatten())
        loss = F.mse_loss(target, network(seen).gather(1, taken.unsqueeze(-1)).squeeze())
        stepped(optimizer, loss)
        if step % LOG_EVERY == 0:
            loss.item()
        if step % (every * numbers["target_every"]) == 0:
            follow(slow, network, numbers["tau"])


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


TRAINED = {"sac": sac, "td3": td3, "dqn": dqn, "ppo": ppo, "a2c": a2c}
