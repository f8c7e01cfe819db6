"""Hand-written loops with the networks of rlrun and the kernels that its config asks for: the limit of its trainer."""

from __future__ import annotations

import sys
from functools import partial

import torch

from benchmarks.bare import opened
from benchmarks.clock import Clock
from benchmarks.rivals.training.work import Work
from benchmarks.side import LOOPS
from rlrun import config as configuration
from rlrun.loading.assembly import prepare_process

PACKAGES = ("rlrun",)
SAME = {"td3": "ddpg"}  # of another name, with other numbers


def train(work: Work) -> None:
    """Go on for ever: the meter ends it, not the clock of the loop."""
    config = configuration.compose(work.overrides).config
    prepare_process(config)
    torch.manual_seed(0)
    loop = LOOPS[SAME.get(work.algorithm, work.algorithm)]
    loop(partial(opened, config.env), work.numbers, Clock(first=sys.maxsize, last=sys.maxsize))
