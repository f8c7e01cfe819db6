"""Hand-written PPO and A2C loops to compare with, as `bare.py` has them for replay: the same network and numbers.

Envs are stepped one by one into preallocated arrays; one pass over the rollout gives values and log-probabilities,
advantages are summed backwards, and minibatches are taken from shuffled rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from benchmarks.bare import Loop, Numbers, Open, adam, spaces_of
from benchmarks.clock import Clock
from rlrun.nn import ActorCritic
from rlrun.nn.actor_critic import Evaluated


class Rollout:
    """T steps of N num_envs, and the observations after them."""

    def __init__(self, steps: int, num_envs: int, width: int, action: Any) -> None:
        """action: the environment's space of them: numbers or a choice."""
        self.observation = np.zeros((steps + 1, num_envs, width), np.float32)
        self.last = np.zeros((steps, num_envs, width), np.float32)  # what an episode that was cut off ended with
        self.action = np.zeros((steps, num_envs, *action.shape), np.float32 if isinstance(action, Box) else np.int64)
        self.reward, self.terminated, self.truncated = (np.zeros((steps, num_envs), np.float32) for _ in range(3))


def on_policy(make: Callable[..., Update]) -> Loop:
    """Return a loop that runs until the clock's last mark."""

    def loop(open_env: Open, numbers: Numbers, clock: Clock) -> None:
        num_envs, steps = numbers["num_envs"], numbers["horizon"]
        envs: list[Any] = [open_env() for _ in range(num_envs)]
        actions = envs[0].action_space
        update = make(spaces_of(envs[0]), numbers, clock)
        rollout = Rollout(steps, num_envs, envs[0].observation_space.shape[0], actions)
        for env_index, env in enumerate(envs):
            rollout.observation[0, env_index], _ = env.reset(seed=env_index)
        env_steps = 0
        while True:
            for t in range(steps):
                with torch.no_grad():
                    action = update.network.act(torch.from_numpy(rollout.observation[t])).numpy()
                rollout.action[t] = action
                if isinstance(actions, Box):  # the network's reach from -1 to 1
                    action = actions.low + (action + 1.0) * 0.5 * (actions.high - actions.low)
                for env_index, env in enumerate(envs):
                    following, reward, terminated, truncated, _ = env.step(action[env_index])
                    rollout.reward[t, env_index], rollout.terminated[t, env_index] = reward, terminated
                    rollout.truncated[t, env_index] = truncated
                    if terminated or truncated:
                        rollout.last[t, env_index] = following
                        following, _ = env.reset()
                    rollout.observation[t + 1, env_index] = following
            env_steps += steps * num_envs
            for number, minibatch in enumerate(update.minibatches(rollout)):
                update(*minibatch)
                if number == 0 and env_steps >= clock.due and clock.note(env_steps):
                    return
            rollout.observation[0] = rollout.observation[-1]

    return loop


class Update:
    """What is learned from a rollout: clipped policy optimization."""

    def __init__(self, spaces: Any, numbers: Numbers, clock: Clock) -> None:
        self.network = ActorCritic(spaces, hidden=tuple(numbers["hidden"]), spread=numbers["spread"])
        self.numbers = numbers
        self.parameters = list(self.network.parameters())
        self.optimizer = adam(self.parameters, numbers)
        clock.watch((self.optimizer,))

    def minibatches(self, rollout: Rollout) -> Any:
        """Yield shuffled rows, epoch by epoch: observation, action, log_prob, advantage and return."""
        observation = torch.from_numpy(rollout.observation[:-1]).flatten(0, 1)
        action = torch.from_numpy(rollout.action).flatten(0, 1)
        with torch.no_grad():
            evaluated = self.network.evaluate_actions(observation, action)
            advantage = self.advantages(rollout, evaluated.value)
        data = (observation, action, evaluated.log_prob, advantage, advantage + evaluated.value)
        count = max(len(action) // self.numbers["batch_size"], 1)
        for _ in range(self.numbers["epochs"]):
            for rows in torch.randperm(len(action)).chunk(count):
                yield [column[rows] for column in data]

    def advantages(self, rollout: Rollout, value: Tensor) -> Tensor:
        """Return generalized advantages, flat like the rows."""
        discount, decay = self.numbers["discount"], self.numbers["discount"] * self.numbers["lambda"]
        steps, num_envs = rollout.reward.shape
        values = np.concatenate((value.numpy().reshape(steps, num_envs), np.zeros((1, num_envs), np.float32)))
        values[-1] = self.network.value(torch.from_numpy(rollout.observation[-1])).numpy()
        following = values[1:] * (1.0 - rollout.terminated)
        cut = (rollout.truncated == 1.0) & (rollout.terminated == 0.0)
        if cut.any():
            following[cut] = self.network.value(torch.from_numpy(rollout.last[cut])).numpy()
        error = rollout.reward + discount * following - values[:-1]
        carry = decay * (1.0 - np.maximum(rollout.terminated, rollout.truncated))
        advantage, advantages = np.zeros(num_envs, np.float32), np.empty_like(error)
        for t in reversed(range(steps)):
            advantage = advantages[t] = error[t] + carry[t] * advantage
        return torch.from_numpy(advantages).flatten()

    def __call__(
        self, observation: Tensor, action: Tensor, log_prob: Tensor, advantage: Tensor, return_: Tensor
    ) -> None:
        evaluated, clip = self.network.evaluate_actions(observation, action), self.numbers["clip"]
        ratio = (evaluated.log_prob - log_prob).exp()
        advantage = self.prepared(advantage)
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
        self.step(evaluated, surrogate, return_)

    def prepared(self, advantage: Tensor) -> Tensor:
        """Return advantages as a minibatch weighs them."""
        return (advantage - advantage.mean()) / (advantage.std() + 1e-8) if self.numbers["normalize"] else advantage

    def step(self, evaluated: Evaluated, objective: Tensor, return_: Tensor) -> None:
        """Take one gradient of the objective and of the value's distance to returns."""
        loss = self.numbers["value_weight"] * (evaluated.value - return_).square() - objective
        if self.numbers["entropy_weight"]:
            loss = loss - self.numbers["entropy_weight"] * evaluated.entropy.sum(-1)
        self.optimizer.zero_grad()
        loss.mean().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.parameters, self.numbers["max_grad_norm"], foreach=False)
        self.optimizer.step()


class A2cUpdate(Update):
    """Advantage actor-critic: one gradient a rollout."""

    def minibatches(self, rollout: Rollout) -> Any:
        """Yield all rows once: observation, action, advantage and return."""
        observation = torch.from_numpy(rollout.observation[:-1]).flatten(0, 1)
        with torch.no_grad():
            value = self.network.value(observation)
            advantage = self.advantages(rollout, value)
        yield observation, torch.from_numpy(rollout.action).flatten(0, 1), advantage, advantage + value

    def __call__(self, observation: Tensor, action: Tensor, advantage: Tensor, return_: Tensor) -> None:  # type: ignore[override]
        evaluated = self.network.evaluate_actions(observation, action)
        self.step(evaluated, evaluated.log_prob * self.prepared(advantage), return_)


ppo, a2c = on_policy(Update), on_policy(A2cUpdate)
