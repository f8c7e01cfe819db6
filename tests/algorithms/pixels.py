"""A picture that is controlled by numbers, and short runs of algorithms on pictures."""

import json

import numpy as np
from gymnasium import Env
from gymnasium.spaces import Box

from rlrun import train

from .runs import REPLAY

LEARNERS = {  # algorithm -> environment, and additions
    "dqn": ("rlrun.env.toys.ImageObservation", ()),
    "sac": ("tests.algorithms.pixels.Spot", ("shared_encoder",)),
    "ddpg": ("tests.algorithms.pixels.Spot", ()),
    "td3": ("tests.algorithms.pixels.Spot", ("shared_encoder",)),
}


class Spot(Env):
    """Name the place of a bright spot, two numbers; episodes of four steps are truncated."""

    observation_space = Box(0, 255, (8, 8, 1), np.uint8)
    action_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._picture(), {}

    def step(self, action):
        reward = -float(np.abs(action - self.place / 3.5 + 1.0).sum())
        self.steps += 1
        return self._picture(), reward, False, self.steps == 4, {}

    def _picture(self):
        self.place = self.np_random.integers(0, 8, 2)
        picture = np.zeros((8, 8, 1), np.uint8)
        picture[tuple(self.place)] = 255
        return picture


def run_of(algorithm, added, folder, *more):
    """Return the newest value of each metric of a short run with an addition."""
    target, others = LEARNERS[algorithm]
    additions = f"+with=[{','.join((*others, added))}]"
    train([f"algorithm={algorithm}", f"env.target={target}", additions, *REPLAY, *more], run_dir=folder / "run")
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return {name: value for line in lines for name, value in json.loads(line).items()}
