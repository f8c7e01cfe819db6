"""ReplayBuffer and VectorReplayBuffer; a Batch goes in at once for all lanes, its arrays come out as tensors."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import torch
from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer, VectorReplayBuffer
from torch import Tensor

from benchmarks.rivals.case import ALPHA, BETA, COUNT, Call, Case, Episode, fill, priorities

PACKAGE = "tianshou"
LACKS = {"sequence": "sequences are stacks of observations, not of transitions"}
NAMES = ("obs", "act", "rew", "terminated", "obs_next")


def insert(case: Case, episode: Episode) -> Call:
    """Add an episode."""
    lanes = case.lanes
    buffer = ReplayBuffer(case.capacity) if lanes == 1 else VectorReplayBuffer(case.capacity, lanes)
    return _filled(buffer, case, episode)


def sample(case: Case, episode: Episode) -> Call:
    """Sample transitions."""
    buffer = ReplayBuffer(case.capacity)
    _filled(buffer, case, episode)
    return lambda: _tensors(buffer.sample(COUNT)[0], NAMES)


def prioritised(case: Case, episode: Episode) -> Call:
    """Sample by priority, and write new priorities."""
    buffer = PrioritizedReplayBuffer(case.capacity, alpha=ALPHA, beta=BETA)
    _filled(buffer, case, episode)
    lots = cycle(priorities())

    def call() -> Any:
        batch, index = buffer.sample(COUNT)
        tensors = _tensors(batch, (*NAMES, "weight"))
        buffer.update_weight(index, next(lots))
        return tensors

    return call


def _filled(buffer: ReplayBuffer, case: Case, episode: Episode) -> Call:
    lane: Any = 0 if case.lanes == 1 else slice(None)  # a single lane's values have no lane's dimension
    rows = [
        Batch(
            obs=episode.observation[step, lane],
            act=episode.action[step, lane],
            rew=episode.reward[step, lane],
            terminated=episode.terminated[step, lane],
            truncated=episode.truncated[step, lane],
            obs_next=episode.observation[step + 1, lane],
            info={},
        )
        for step in range(len(episode.action))
    ]
    lanes = None if case.lanes == 1 else np.arange(case.lanes)

    def write() -> None:
        for row in rows:
            buffer.add(row, lanes)

    fill(write, case)
    return write


def _tensors(batch: Batch, names: tuple[str, ...]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(batch[name]) for name in names}


CALLS = {"insert": insert, "sample": sample, "prioritised": prioritised}
