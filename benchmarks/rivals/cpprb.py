"""ReplayBuffer with obs, act, rew, next_obs, done; many rows go in by one add, its arrays come out as tensors."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import torch
from cpprb import PrioritizedReplayBuffer, ReplayBuffer
from torch import Tensor

from benchmarks.rivals.case import ACTION, ALPHA, BETA, COUNT, Call, Case, Episode, fill, priorities

PACKAGE = "cpprb"
LACKS = {"sequence": "no sequences of transitions"}


def insert(case: Case, episode: Episode) -> Call:
    """Add an episode, step by step."""
    buffer = ReplayBuffer(case.capacity, _columns(case))
    _fill(buffer, case, episode)
    episode_end = (episode.terminated | episode.truncated).astype(np.float32)
    rows = [
        {
            "obs": episode.observation[step],
            "act": episode.action[step],
            "rew": episode.reward[step],
            "next_obs": episode.observation[step + 1],
            "done": episode_end[step],
        }
        for step in range(len(episode_end))
    ]

    def write() -> None:
        for row in rows:
            buffer.add(**row)
        buffer.on_episode_end()

    return write


def sample(case: Case, episode: Episode) -> Call:
    """Sample transitions."""
    buffer = ReplayBuffer(case.capacity, _columns(case))
    _fill(buffer, case, episode)
    return lambda: _tensors(buffer.sample(COUNT))


def prioritized(case: Case, episode: Episode) -> Call:
    """Sample by priority, and write new priorities."""
    buffer = PrioritizedReplayBuffer(case.capacity, _columns(case), alpha=ALPHA)
    _fill(buffer, case, episode)
    lots = cycle(priorities())

    def call() -> Any:
        batch = buffer.sample(COUNT, BETA)
        index = batch.pop("indexes")
        tensors = _tensors(batch)
        buffer.update_priorities(index, next(lots))
        return tensors

    return call


def _columns(case: Case) -> dict[str, dict[str, Any]]:
    observation = {"shape": case.shape, "dtype": np.uint8 if case.images else np.float32}
    return {"obs": observation, "act": {"shape": ACTION}, "rew": {}, "next_obs": observation, "done": {}}


def _fill(buffer: ReplayBuffer, case: Case, episode: Episode) -> None:
    flat = episode.flat()
    rows = {
        "obs": flat["observation"],
        "act": flat["action"],
        "rew": flat["reward"],
        "next_obs": flat["next_observation"],
        "done": (flat["terminated"] | flat["truncated"]).astype(np.float32),
    }

    def write() -> None:
        buffer.add(**rows)
        buffer.on_episode_end()

    fill(write, case)


def _tensors(batch: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value) for name, value in batch.items()}


CALLS = {"insert": insert, "sample": sample, "prioritized": prioritized}
