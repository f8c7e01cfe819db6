"""A plain loop to be timed: python -m benchmarks.rivals.peer_plain NAME NUMBERS BEGUN, as peer_stable_baselines3."""

from __future__ import annotations

import json
import sys
from functools import partial

import torch

from benchmarks.clock import Clock
from benchmarks.first_step import Start, report
from benchmarks.rivals.plain_replay import Dqn, Sac, Td3, replay
from benchmarks.rivals.plain_rollouts import ppo

LOOPS = {"sac": partial(replay, Sac), "td3": partial(replay, Td3), "dqn": partial(replay, Dqn), "ppo": ppo}


def main(name: str, given: str, begun: str) -> None:
    """Train to the end of the window, and print what was found."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    numbers = json.loads(given)
    start = Start(numbers["env"], float(begun))
    clock = Clock(first=numbers["first"], last=numbers["last"])
    LOOPS[name](numbers, clock)
    print(json.dumps(report(clock, start.seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
