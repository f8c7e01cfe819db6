"""Environments that say where each number comes from."""

import random
from functools import partial

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import SyncVectorEnv

from rlrun.collect import Collector, RandomAgent
from rlrun.env.batched import BatchedEnv
from rlrun.env.sync import SyncEnv
from rlrun.env.workers import WorkerEnv
from rlrun.memory import Table

LENGTHS = (3, 1, 2, 4)


class Labelled(gymnasium.Env):
    """observation: [lane, episode, step]; reward = step + action / 10; even episodes terminate, odd are cut off.

    The info has `score`, ten times the episode and the step, and the newest seed. nested: observations are dicts.
    """

    def __init__(self, env_index=0, poison=None, nested=False):
        box = Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space, self.action_space = Dict({"label": box}) if nested else box, Discrete(5)
        self.env_index, self.episode, self.poison, self.nested = env_index, -1, poison or {}, nested
        self.resets = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets.append((seed, options))
        self.seed = seed if seed is not None else self.seed
        self.episode, self.count = self.episode + 1, 0
        return self.label(), {}

    def step(self, action):
        self.count += 1
        over, even = self.count == LENGTHS[self.episode % 4], self.episode % 2 == 0
        reward = self.poison.get(("reward", self.episode, self.count), self.count + int(action) / 10)
        info = {"score": 10 * self.episode + self.count, "seed": self.seed}
        return self.label(), reward, over and even, over and not even, info

    def state_dict(self):
        return {"episode": self.episode}

    def load_state_dict(self, state):
        self.episode = state["episode"]

    def label(self):
        last = self.poison.get(("observation", self.episode, self.count), self.count)
        label = np.array([self.env_index, self.episode, last], np.float32)
        return {"label": label} if self.nested else label


def labelled(mode, count, **arguments):
    """Return envs of `Labelled` in a loop (mode None), in workers, or in a vector environment that resets by `mode`."""
    if mode is None:
        return SyncEnv([Labelled(env_index, **arguments) for env_index in range(count)])
    if mode == "workers":  # all of which have the number 0
        return WorkerEnv(partial(Labelled, **arguments), count)
    factories = [lambda env_index=env_index: Labelled(env_index, **arguments) for env_index in range(count)]
    return BatchedEnv(SyncVectorEnv(factories, autoreset_mode=mode))


def collector_for(env, agent=None, *, kind=Collector, table=None, columns=None, begin=True, **options):
    """Return a collector of an environment, by default one that acts at random and whose training has begun."""
    if table is None:
        table = Table(spaces=env.spaces, length=600, num_envs=env.num_envs, columns=columns)
    collector = kind(env, agent or RandomAgent(env.spaces.action, seed=1), table, **options)
    if begin:
        collector.begin_training()
    return collector


class Tasks(gymnasium.Env):
    """Episodes of three steps; its goal 0 always pays 0, goal 1 pays 1, and goal 2 pays more in every episode of it.

    observation: the number of the step; the goal is an option of the reset.
    """

    def __init__(self):
        self.observation_space = Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self.practiced = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal, self.count = int(options["goal"]), 0
        self.practiced += self.goal == 2
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        reward = (0.0, 1.0, self.practiced / 10)[self.goal]
        return np.full(1, self.count, np.float32), reward, self.count == 3, False, {}

    def state_dict(self):
        return {"practiced": self.practiced}

    def load_state_dict(self, state):
        self.practiced = state["practiced"]


class Seeded(gymnasium.Env):
    """Length and rewards follow from the seed; short episodes have returns near 100, long ones near 0.

    With `careless` each reset stirs the generators of the whole process, as some environments do.
    """

    def __init__(self, careless=False):
        self.observation_space = Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self.careless = careless

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.careless:
            self.stirred = np.random.random() + random.random()
        self.left = self.length = int(self.np_random.integers(1, 9))
        return self.look(), {}

    def step(self, action):
        self.left -= 1
        reward = float(self.np_random.random()) + (100.0 if self.length < 3 else 0.0) - float(action[0])
        return self.look(), reward, self.left == 0, False, {}

    def look(self):
        return self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)


def seeded(count, **arguments):
    """Return envs of `Seeded` that can be copied."""
    env = SyncEnv([Seeded(**arguments) for _ in range(count)])
    env.copier = lambda envs, render_mode: seeded(envs, **arguments)
    return env
