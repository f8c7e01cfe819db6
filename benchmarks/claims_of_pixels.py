"""Claims about control from pixels: a reacher on its state, in pictures, and with what helps pictures."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.claims import Claim
from rlrun.env.toys import Reacher

STATE, PLAIN, HELPED = "sac-reacher", "sac-reacher-pixels", ("sac-reacher-pixels-drq", "sac-reacher-pixels-curl")
GAIN, GOOD, ENOUGH = 0.15, 0.75, 0.9  # above the plain score; where that is good already, this score is enough
PIXELS = ("algorithm=sac", "env=reacher_pixels")

CLAIMS = {
    STATE: Claim(("algorithm=sac", "env=reacher"), -8.0),
    PLAIN: Claim((*PIXELS, "+with=shared_encoder"), -25.0),
    HELPED[0]: Claim((*PIXELS, "+with=drq"), -15.0),
    HELPED[1]: Claim((*PIXELS, "+with=[shared_encoder,curl]"), -15.0),
}


def random_return(episodes: int = 1_000) -> float:
    """Return the mean return of uniformly random actions."""
    env, generator, total = Reacher(), np.random.default_rng(0), 0.0
    for seed in range(episodes):
        env.reset(seed=seed)
        for _ in range(int(env.steps)):
            total += env.act(generator.uniform(-1.0, 1.0, 2))[0]
    return total / episodes


def scores(results: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean return of each run in pictures, where 0 is random and 1 SAC on the state; {} without all runs."""
    names = (STATE, PLAIN, *HELPED)
    if not {*names} <= {*results}:
        return {}
    returns = {name: fmean(run["value"] for run in results[name]["runs"]) for name in names}
    least = random_return()
    return {name: (value - least) / (returns[STATE] - least) for name, value in returns.items() if name != STATE}


def met(score: Mapping[str, float], name: str) -> bool:
    """Whether what helps reaches its bar."""
    return score[name] >= score[PLAIN] + GAIN or (score[PLAIN] > GOOD and score[name] >= ENOUGH)
