"""Environments of users, whose episodes are a function of seed and actions, and some whose episodes are not."""

import random
import socket
import struct

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers.utils import RunningMeanStd

SERVERS: list[list[int]] = []  # what each connection of this process was asked


class World:
    def __init__(self, grid):
        self.grid = grid

    def view(self):
        return self.grid.ravel().astype(np.float32)


class Grid(gymnasium.Env):
    """Say which of four cells is lit; a helper and a subclass hold the objects of its attributes."""

    length = 13

    def __init__(self):
        self.observation_space, self.action_space = Box(-9.0, 9.0, (4,), np.float32), Discrete(4)
        self.grid = np.zeros((2, 2), np.int64)
        self.world = World(self.grid)
        self.begin()

    def begin(self):
        """Make the objects of a subclass."""

    def light(self):
        self.grid[:] = 0
        self.cell = int(self.draw(4))
        self.grid.flat[self.cell] = 1
        return self.world.view()

    def draw(self, count):
        return self.np_random.integers(count)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.light(), {}

    def step(self, action):
        reward = float(action == self.cell)
        self.steps += 1
        return self.light(), reward, False, self.steps >= self.length, {}


class Dice(Grid):
    """Draws from a generator of its own, which each seed sets."""

    def begin(self):
        self.dice = random.Random(5)

    def draw(self, count):
        return self.dice.randrange(count)

    def reset(self, *, seed=None, options=None):
        self.dice.seed(seed)
        return super().reset(seed=seed, options=options)


class Connected(Grid):
    """Opens a connection when it is first used, and counts its episodes in an attribute and at the server."""

    def begin(self):
        self.handle, self.episodes = None, 0

    def reset(self, *, seed=None, options=None):
        if self.handle is None:
            SERVERS.append([])
            self.handle = len(SERVERS) - 1
        self.episodes += 1
        SERVERS[self.handle].append(seed)
        assert len(SERVERS[self.handle]) == self.episodes
        return super().reset(seed=seed, options=options)


class Counter(Connected):
    """Shows the number of its episodes; nobody else can know it."""

    def light(self):
        super().light()
        return self.world.view() + np.float32(self.episodes)


class Curriculum(Grid):
    """Shows a level that rises with each episode, and offers it."""

    level = 0

    def reset(self, *, seed=None, options=None):
        self.level += 1 if self.level == 0 else 0.5  # a whole number at first
        self.levels = np.append(self.levels, self.level)
        return super().reset(seed=seed, options=options)

    def begin(self):
        self.levels = np.zeros(1)

    def light(self):
        return super().light() + np.float32(min(self.level, 100) / 50)

    def state_dict(self):
        return {"level": self.level, "levels": self.levels}

    def load_state_dict(self, state):
        self.level, self.levels = state["level"], state["levels"]


class Careless(Grid):
    """Draws from numpy's generator, which belongs to the whole process."""

    def draw(self, count):
        return np.random.randint(count)


class Optioned(Grid):
    """Takes an option of its resets, and drops it from the dict."""

    def reset(self, *, seed=None, options=None):
        self.length = options.pop("length")
        return super().reset(seed=seed, options=options)


class Draws(Grid):
    """Draws from a generator of numpy and one of torch, which each seed makes again."""

    def begin(self):
        self.numbers, self.tensors = np.random.default_rng(), torch.Generator()

    def draw(self, count):
        drawn = torch.randint(1000, (1,), generator=self.tensors).item()
        return (drawn + self.numbers.integers(1000)) % count

    def reset(self, *, seed=None, options=None):
        self.numbers = np.random.default_rng(seed)
        self.tensors.manual_seed(seed)
        return super().reset(seed=seed, options=options)


class Strict(Draws, Optioned):
    """Cannot be reset without a seed, nor without its option."""


class Bandit(gymnasium.Env):
    """One step; an observation of 2 or 4 says which arm pays."""

    observation_space, action_space = Box(-np.inf, np.inf, (1,), np.float32), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.arm = int(self.np_random.integers(2))
        return np.float32([2 + 2 * self.arm]), {}

    def step(self, action):
        return np.float32([2 + 2 * self.arm]), float(action == self.arm), True, False, {}


class Spotlight(gymnasium.Wrapper):
    """Holds an array of the environment inside of it, pays by it, and writes into it."""

    def __init__(self, env):
        super().__init__(env)
        self.grid = env.unwrapped.grid

    def step(self, action):
        self.grid[0, 1] += 3
        observation, reward, *rest = self.env.step(action)
        return observation, reward + 0.25 * int(self.grid.argmax()), *rest


class Bounded(gymnasium.ObservationWrapper):
    """Divides observations by the largest seen so far, and offers it."""

    def __init__(self, env):
        super().__init__(env)
        self.largest = np.ones(env.observation_space.shape)

    def observation(self, observation):
        self.largest = np.maximum(self.largest, np.abs(observation))
        return (observation / self.largest).astype(np.float32)

    def state_dict(self):
        return {"largest": self.largest}

    def load_state_dict(self, state):
        self.largest = state["largest"]


class Averages(gymnasium.Wrapper):
    """Follows the mean of rewards, and offers nothing."""

    def __init__(self, env):
        super().__init__(env)
        self.rewards = RunningMeanStd()

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        self.rewards.update(np.array([reward]))
        return observation, reward - float(self.rewards.mean), *rest


class Forgetful(gymnasium.ObservationWrapper):
    """Shows how many observations it has seen, and offers nothing."""

    seen = 0

    def observation(self, observation):
        self.seen += 1
        return observation + np.float32(self.seen / 1000)


class Shifted(gymnasium.ObservationWrapper):
    """Takes off a running mean that no attribute's name gives away."""

    def __init__(self, env):
        super().__init__(env)
        self.inner = {"s": [0.0, 0]}

    def observation(self, observation):
        total, count = self.inner["s"]
        self.inner["s"] = [total + float(observation.argmax()), count + 1]
        return observation - np.float32(self.inner["s"][0] / self.inner["s"][1])


class Remote(Grid):
    """Its world is in the process of a server, which each episode asks through one connection.

    port: of the server.
    """

    def __init__(self, port):
        self.line = socket.create_connection(("127.0.0.1", port))
        super().__init__()

    def ask(self, number):
        self.line.sendall(struct.pack("q", number))
        return struct.unpack("q", self.line.recv(8, socket.MSG_WAITALL))[0]

    def draw(self, count):
        return self.ask(-1) % count

    def reset(self, *, seed=None, options=None):
        self.ask(seed)
        return super().reset(seed=seed, options=options)

    def close(self):
        self.line.close()
