"""ReplayBuffer and VectorReplayBuffer; a Batch goes in at once for all envs, its arrays come out as tensors."""

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
    envs = case.envs
    buffer = ReplayBuffer(case.capacity) if envs == 1 else VectorReplayBuffer(case.capacity, envs)
    return _filled(buffer, case, episode)


def sample(case: Case, episode: Episode) -> Call:
    """Sample transitions."""
    buffer = ReplayBuffer(case.capacity)
    _filled(buffer, case, episode)
    return lambda: _tensors(buffer.sample(COUNT)[0], NAMES)


def prioritized(case: Case, episode: Episode) -> Call:
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
    env_index: Any = 0 if case.envs == 1 else slice(None)  # values of a single env have no dimension of envs
    rows = [
        Batch(
            obs=episode.observation[step, env_index],
            act=episode.action[step, env_index],
            rew=episode.reward[step, env_index],
            terminated=episode.terminated[step, env_index],
            truncated=episode.truncated[step, env_index],
            obs_next=episode.observation[step + 1, env_index],
            info={},
        )
        for step in range(len(episode.action))
    ]
    envs = None if case.envs == 1 else np.arange(case.envs)

    def write() -> None:
        for row in rows:
            buffer.add(row, envs)

    fill(write, case)
    return write


def _tensors(batch: Batch, names: tuple[str, ...]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(batch[name]) for name in names}


CALLS = {"insert": insert, "sample": sample, "prioritized": prioritized}
