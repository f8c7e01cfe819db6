"""An environment and agents that other processes can import."""

import os
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch


class Counting(gymnasium.Env):
    """Observes the number of its steps; ends after `length`; writes its process id to `place` when closed."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(5)

    def __init__(self, length=7, sleep=0.0, breaks=None, place=None):
        self.length, self.sleep, self.breaks, self.place = length, sleep, breaks, place
        self.total = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        time.sleep(self.sleep)
        self.count, self.total = self.count + 1, self.total + 1
        if self.total == self.breaks:
            raise RuntimeError("the motor broke\nbadly")
        return np.full(1, self.count, np.float32), float(action), False, self.count == self.length, {}

    def close(self):
        if self.place:
            Path(self.place).write_text(str(os.getpid()))


class Constant:
    outputs = ("action",)

    def __init__(self):
        self.action = 1

    def __call__(self, observation, state=None, *, explore=True):
        return {"action": np.full(len(observation), self.action)}


class Walking:
    """Takes the next action each time; counts calls in a tensor."""

    outputs = ("action",)

    def __init__(self):
        self.way = torch.zeros(1)

    def __call__(self, observation, state=None, *, explore=True):
        self.way = self.way + 1
        return {"action": np.full(len(observation), int(self.way - 1) % 5)}

    def state_dict(self):
        return {"way": self.way}

    def load_state_dict(self, state):
        self.way = state["way"]
