"""How many updates priorities save on a chain of rare reward: python -m benchmarks chain.

The task is the blind cliffwalk of Schaul et al. (2015, arXiv 1511.05952, section 3.1): in each state one action goes
on and the other ends the episode; only the end of the chain is rewarded. A memory holds what all sequences of actions
lead to, so one row in 2^(n + 1) - 2 has a reward. A table of values is learned from it, one row an update, until it is
near the truth.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from rlrun.core.typing import Array
from rlrun.memory import Prioritized, Sampler, Table, Uniform

STEP = 0.25  # of each update towards its target
BAR = 0.5  # of uniform's updates
NEAR = 1e-3  # mean square of the values' errors that ends the learning
COLUMNS = {name: {"dtype": "int64"} for name in ("observation", "action")}
COLUMNS |= {"reward": {}, "terminated": {"dtype": "bool"}, "truncated": {"dtype": "bool"}}
SAMPLERS: dict[str, Callable[[int], Sampler]] = {
    "uniform": lambda seed: Uniform(seed=seed),
    "prioritized": lambda seed: Prioritized(seed=seed),
}


def right(state: Array) -> Array:
    """Return the action that continues the episode."""
    return state % 2


def fill(length: int, sampler: Sampler, seed: int) -> Table:
    """Return a table of the episodes that all sequences of actions lead to, in any order."""
    rows = [min(k + 1, length) for k in range(length) for _ in range(2 ** (length - 1 - k))]  # wrong after k steps
    endings = [False] * len(rows) + [True]
    rows.append(length)
    table = Table(length=sum(rows) + len(rows), columns=COLUMNS, sampler=sampler)
    for number in np.random.default_rng(seed).permutation(len(rows)):
        state = np.arange(rows[number])
        last = state == rows[number] - 1
        action = np.where(last & (not endings[number]), 1 - right(state), right(state))
        row = {"observation": state, "action": action, "terminated": last, "truncated": np.zeros_like(last)}
        table.add_episode(row | {"reward": (last & endings[number]).astype(np.float32)}, np.int64(rows[number]))
    return table


def truth(length: int) -> Array:
    """Return the true values [states, actions]."""
    states = np.arange(length)
    values = np.zeros((length, 2))
    values[states, right(states)] = discount(length) ** (length - 1 - states)
    return values


def discount(length: int) -> float:
    """Return what makes the first state's value about the same for all lengths."""
    return 1.0 - 1.0 / length


def updates_needed(length: int, sampler: Sampler, seed: int, *, most: int = 10_000_000) -> int:
    """Return after how many updates the values are near the truth."""
    table, wanted = fill(length, sampler, seed), truth(length)
    values = np.zeros((length + 1, 2))  # nothing comes after the last state
    values[:length] = np.random.default_rng(seed).normal(0.0, 0.1, (length, 2))
    for update in range(1, most + 1):
        sample = table.sample(1)
        batch = {name: value.numpy()[0] for name, value in sample.items()}
        place = batch["observation"], batch["action"]
        after = 0.0 if batch["terminated"] else values[batch["next_observation"]].max()
        error = batch["reward"] + discount(length) * after - values[place]
        values[place] += STEP * error * batch.get("weight", 1.0)
        sample.feedback(torch.tensor([abs(error)]))
        if np.square(values[:length] - wanted).mean() < NEAR:
            return update
    return most


def measure(lengths: Sequence[int], seeds: Sequence[int]) -> dict[str, Any]:
    """Count updates for each length, sampler and seed; `ratio`: medians, prioritized to uniform."""
    results: dict[str, Any] = {}
    for length in lengths:
        counts = {name: [updates_needed(length, make(seed), seed) for seed in seeds] for name, make in SAMPLERS.items()}
        medians = {name: statistics.median(values) for name, values in counts.items()}
        ratio = medians["prioritized"] / medians["uniform"]
        results[str(length)] = counts | {"ratio": ratio, "bar": BAR, "passed": ratio <= BAR}
    return results
