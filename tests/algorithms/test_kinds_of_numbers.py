"""Observations of every kind of number teach the same: bool, bytes, signed integers and floats of one task."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from tests.identical import differing

import rlrun


class Cells(gymnasium.Env):
    """One cell of eight is lit, and the action names it.

    dtype: of observations; high: of a lit cell; shape: of the board, whose first row is lit; parts: in a dict.
    """

    action_space = Discrete(8)

    def __init__(self, dtype="float32", high=1, shape=(8,), parts=False):
        self.parts = parts
        self.board = np.zeros(shape, dtype)
        self.high = self.board.dtype.type(high)
        space = Box(0, high, shape, self.board.dtype.type)
        self.observation_space = Dict(board=space) if parts else space

    def seen(self):
        self.lit = int(self.np_random.integers(8))
        board = self.board.copy()
        board[(*(0,) * (board.ndim - 1), self.lit)] = self.high
        return {"board": board} if self.parts else board

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(), {}

    def step(self, action):
        reward = float(action == self.lit)
        self.steps += 1
        return self.seen(), reward, False, self.steps == 20, {}


NAMES = ("dtype", "high", "shape", "parts")
LEARNED = ("networks.", "agent", "callbacks.")
ALGORITHMS = {
    "dqn": ["algorithm.batch_size=16", "algorithm.warmup_steps=60", "algorithm.updates_per_step=0.5"],
    "ppo": ["algorithm.batch_size=30", "algorithm.horizon=60"],
}
FLAT, BOARD = [8], [8, 8, 8]  # the board is a picture of 8 channels
KINDS = [  # values of `NAMES`
    *(("bool", 1, FLAT, False), ("uint8", 1, FLAT, False), ("int8", 1, FLAT, True), ("int64", 1, FLAT, False)),
    *(("float64", 1, FLAT, False), ("bool", 1, BOARD, False), ("uint8", 255, BOARD, True)),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_kinds_of_numbers_teach_the_same(algorithm, tmp_path):
    settings = [*ALGORITHMS[algorithm], "algorithm.hidden=[16]", "logger=[]", "evaluation.every=0", "log.every=20"]

    def train(*given):
        words = [f"+env.kwargs.{key}={value}" for key, value in zip(NAMES, given, strict=True)]
        layout = ["encoder.layout=channels_last"] if given[2] is BOARD else []
        overrides = [f"algorithm={algorithm}", f"env.target={__name__}.Cells", *words, *layout, *settings]
        return rlrun.train([*overrides, "num_envs=2", "stop.env_steps=160"], run_dir=tmp_path / f"{given}").run_dir

    whole = {len(shape): train("float32", 1, shape, False) for shape in (FLAT, BOARD)}
    for kind in KINDS:
        other = train(*kind)
        assert [name for name in differing(whole[len(kind[2])], other) if name.startswith(LEARNED)] == [], kind
