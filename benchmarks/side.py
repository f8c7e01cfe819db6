"""One side of a comparison, in this process: python -m benchmarks.side bare|rlrun CASE FIRST LAST.

Prints one JSON object: env steps, seconds, processor seconds and optimiser steps between the marks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from omegaconf import OmegaConf

import rlrun
from benchmarks import bare, bare_ppo
from benchmarks.clock import Clock
from rlrun import config as configuration

LOOPS = {"sac": bare.sac, "dqn": bare.dqn, "ppo": bare_ppo.ppo}


class Case(NamedTuple):
    """A run to measure: its words, its bare loop, and the least share of the bare loop's speed."""

    words: tuple[str, ...]
    loop: str
    bar: float
    first: int  # environment steps of the window
    last: int


GREEDY = "algorithm.epsilon.steps=1"  # hardly a random action in the window: the dearest case
QUIET = ("evaluation.every=0", "checkpoint.every=0", "checkpoint.keep_best=false", "logger=[]", "log.every=0")
CASES = {
    "sac-pendulum": Case(("algorithm=sac", "env=pendulum", "pair=null"), "sac", 0.92, 1_200, 2_200),
    "dqn-cartpole": Case(("algorithm=dqn", "env=cartpole", "pair=null", GREEDY), "dqn", 0.85, 1_500, 6_500),
    "ppo-cartpole": Case(("algorithm=ppo", "env=cartpole"), "ppo", 0.85, 2_560, 12_800),
    "dqn-cartpole-tuned": Case(("algorithm=dqn", "env=cartpole", GREEDY), "dqn", 0.85, 1_500, 9_500),
}


def measure_rlrun(case: Case, *, first: int, last: int) -> dict[str, float]:
    """Train as the command does, with a probe beside the algorithm's own callbacks."""
    probe = [f"+callbacks.probe={{_target_:benchmarks.probe.Probe,first:{first},last:{last}}}"]
    with TemporaryDirectory() as folder:
        result = rlrun.train([*case.words, *QUIET, *probe], run_dir=Path(folder) / "run")
    clock: Clock = result.trainer.callbacks["probe"].clock  # type: ignore[attr-defined]
    return clock.report()


def measure_bare(case: Case, *, first: int, last: int) -> dict[str, float]:
    """Run the bare loop with the numbers that the same words compose to."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    clock = Clock(first=first, last=last)
    config = configuration.compose(list(case.words)).config
    LOOPS[case.loop](config.env.id, numbers_of(config), clock)
    return clock.report()


def numbers_of(config: Any) -> dict[str, Any]:
    """Return the numbers of a composed config that a hand-written loop reads."""
    numbers: Any = OmegaConf.to_container(config.algorithm, resolve=True)
    return {**numbers, "length": OmegaConf.select(config, "memory.length"), "num_envs": config.num_envs}


SIDES = {"rlrun": measure_rlrun, "bare": measure_bare}


def main(side: str, case: str, first: str, last: str) -> None:
    """Measure one side and print what was found."""
    print(json.dumps(SIDES[side](CASES[case], first=int(first), last=int(last))))


if __name__ == "__main__":
    main(*sys.argv[1:])
