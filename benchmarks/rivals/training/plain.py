"""Bare loops of torch and numpy alone: what rlrun costs in all."""

from __future__ import annotations

import sys
from functools import partial

import gymnasium
import torch

from benchmarks.clock import Clock
from benchmarks.plain import LOOPS
from benchmarks.rivals.training.work import Work

PACKAGES = ("torch",)


def train(work: Work) -> None:
    """Go on for ever: the meter ends it, not the clock of the loop."""
    torch.manual_seed(0)
    open_env = partial(gymnasium.make, work.env, disable_env_checker=True)
    LOOPS[work.algorithm](open_env, work.numbers, Clock(first=sys.maxsize, last=sys.maxsize))
