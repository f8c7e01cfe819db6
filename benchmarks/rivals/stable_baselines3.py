"""ReplayBuffer with its defaults; a row of all envs goes in at once, tensors come out."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box
from stable_baselines3.common.buffers import ReplayBuffer

from benchmarks.rivals.case import ACTION, COUNT, Call, Case, Episode, fill

PACKAGE = "stable-baselines3"
LACKS = {"sequence": "no sequences of transitions", "prioritized": "no priorities"}


def make(case: Case) -> ReplayBuffer:
    """Return an empty buffer."""
    observation = Box(0, 255, case.shape, np.uint8) if case.images else Box(-np.inf, np.inf, case.shape, np.float32)
    action = Box(-1, 1, (ACTION,), np.float32)
    return ReplayBuffer(case.capacity, observation, action, device="cpu", n_envs=case.envs)


def insert(case: Case, episode: Episode) -> Call:
    """Add an episode."""
    return _full(case, episode)[1]


def sample(case: Case, episode: Episode) -> Call:
    """Sample transitions."""
    buffer, _ = _full(case, episode)
    return lambda: buffer.sample(COUNT)


def _full(case: Case, episode: Episode) -> tuple[ReplayBuffer, Call]:
    buffer = make(case)
    episode_end = episode.terminated | episode.truncated
    infos = [[{"TimeLimit.truncated": True} if env_index else {} for env_index in step] for step in episode.truncated]
    observations = episode.observation[:-1], episode.observation[1:]
    rows = list(zip(*observations, episode.action, episode.reward, episode_end, infos, strict=True))

    def write() -> None:
        for row in rows:
            buffer.add(*row)

    fill(write, case)
    return buffer, write


CALLS = {"insert": insert, "sample": sample}
