"""What planning and imagining cost, over the forward passes of the same network in torch alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.algorithms.model_based.imagination import Imagination
from rlrun.algorithms.model_based.planning import CEM
from rlrun.collect.agents import PolicyAgent
from rlrun.core.spaces import Box, Spaces
from rlrun.memory import Table
from rlrun.nn import DeterministicPolicy, Dynamics, WorldModel

NUMBERS, ACTIONS = 17, 6  # of an observation and of an action, those of HalfCheetah
PLAN = {"population": 500, "horizon": 15, "iterations": 5}
ROWS, STEPS, MEMBERS = 400, 5, 5  # of imagination
BARS = {"a decision of CEM": 1.2, "imagined episodes": 1.3}


def box(size: int, bound: float) -> Box:
    high = np.full(size, bound, np.float32)
    return Box((size,), -high, high, "float32")


SPACES = Spaces(box(NUMBERS, 10.0), box(ACTIONS, 1.0))


def layers(hidden: list[int]) -> nn.Sequential:
    """Return what one member is: its layers, for inputs and outputs of a model of `SPACES`."""
    widths = [NUMBERS + ACTIONS, *hidden]
    parts = [part for inputs, outputs in pairwise(widths) for part in (nn.Linear(inputs, outputs), nn.SiLU())]
    return nn.Sequential(*parts, nn.Linear(widths[-1], NUMBERS + 2))


def plan() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a decision, and the forward passes of one."""
    hidden = [200, 200, 200]
    model = WorldModel(Dynamics(SPACES, hidden=hidden, members=1, deterministic=True))
    planner = CEM(SPACES, model, elite=50, epsilon=0.0, **PLAN)
    network, rows = layers(hidden), torch.randn(PLAN["population"], NUMBERS + ACTIONS)
    observation, state = torch.zeros(1, NUMBERS), planner.initial_state(1)

    def bare() -> None:
        for _ in range(PLAN["horizon"] * PLAN["iterations"]):
            network(rows)

    return partial(planner.advance, observation, state, explore=True), bare


def imagine() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return imagined episodes, with their actions and stored rows, and the forward passes of all members."""
    dynamics = Dynamics(SPACES, hidden=[200] * 4, members=MEMBERS)
    dynamics.seen.fill_(1.0)
    table = Table(length=ROWS, num_envs=ROWS, spaces=SPACES, grows=True)
    agent = PolicyAgent(DeterministicPolicy(SPACES, hidden=[64, 64]))
    imagination = Imagination(WorldModel(dynamics), agent, table, SPACES, length=STEPS, keep=2)
    rows: Tensor = torch.randn(MEMBERS, ROWS, NUMBERS + ACTIONS)

    def bare() -> None:
        for _ in range(STEPS):
            dynamics(rows)

    return partial(imagination.begin_batch, rows[0, :, :NUMBERS], 0), bare


@torch.no_grad()
def measure(*, rounds: int = 10, calls: int = 5) -> dict[str, Any]:
    """Return the median ratio of processor times of each, both sides by turns."""
    results = {}
    for (name, bar), case in zip(BARS.items(), (plan, imagine), strict=True):
        sides = case()
        ratios, seconds = [], []
        for number in range(rounds + 1):
            took = []
            for side in sides:
                begin = time.process_time()
                for _ in range(calls):
                    side()
                took.append((time.process_time() - begin) / calls)
            if number:  # the first round warms up
                ratios.append(took[0] / took[1])
                seconds.append(took[0])
        ratio = float(np.median(ratios))
        milliseconds = 1e3 * float(np.median(seconds))
        results[name] = {"ratio": ratio, "milliseconds": milliseconds, "rounds": rounds, "bar": bar}
        results[name]["passed"] = ratio <= bar
    return results
