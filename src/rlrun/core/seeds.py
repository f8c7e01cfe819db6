"""One integer fixes a run: every part draws from a branch of its own."""

import functools
import random
from collections.abc import Iterable, Sequence

import numpy as np

from rlrun.core.typing import Array

_BLOCK = 64  # episodes


class Seeds:
    """Independent seeds for the parts of a run, all derived from one integer.

    Each attribute is a branch of `numpy.random.SeedSequence(seed)`, so runs with
    neighboring seeds have different episodes, and so have evaluation and training.

    Args:
        seed: of the run; or a sequence of it and further numbers, for parts that draw other numbers.
        rank: of this process, where there are several. Their networks begin equal; afterwards each rank draws actions
            and batches of its own.
        first_env: number of this rank's first environment in the run.
    """

    def __init__(self, seed: int | Sequence[int], *, rank: int = 0, first_env: int = 0) -> None:
        self.seed = seed
        children = np.random.SeedSequence(seed).spawn(6)
        numbers = [int(child.generate_state(1)[0] >> 1) for child in children]  # 31 bits: every library takes them
        self.process, self.envs, self.evaluation, self.memory, self.agent, self.warm_up = numbers
        self.first_env = first_env
        if rank:
            own = np.random.SeedSequence(seed, spawn_key=(len(numbers) - 1 + rank,)).spawn(4)
            drawn = [int(child.generate_state(1)[0] >> 1) for child in own]
            self.memory, self.agent, self.warm_up, self.acting = drawn

    def apply(self) -> None:
        """Seed the generators that belong to the whole process: python, numpy, torch."""
        _apply(self.process)

    def apply_own(self) -> None:
        """Seed the process's generators again for a rank after the first, once all parts are built."""
        if (acting := getattr(self, "acting", None)) is not None:
            _apply(acting)


def _apply(seed: int) -> None:
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def episode_seed(branch: int, env_index: int, episode: int) -> int:
    """Return the seed of an environment's episode, a number below 2**31.

    Args:
        branch: seed of all environments of a run.
        env_index: number of the environment in the run.
        episode: its number there, counted from 0.
    """
    block, place = divmod(episode, _BLOCK)
    return _block_of_seeds(branch, env_index, block)[place]


@functools.lru_cache(4096)
def _block_of_seeds(branch: int, env_index: int, block: int) -> list[int]:
    """Return the seeds of `_BLOCK` successive episodes: a SeedSequence takes as long as a step of CartPole."""
    words = np.random.SeedSequence([branch, env_index, block]).generate_state(_BLOCK)
    seeds: list[int] = (words >> 1).tolist()
    return seeds


class EpisodeSeeds:
    """The seed of each env's open episode.

    Args:
        branch: seed of all environments of the run.
        num_envs: N.
        first_env: number of the first env in the run.

    Attributes:
        episode: number of the open episode of each env, [N].
    """

    def __init__(self, branch: int, num_envs: int, first_env: int = 0) -> None:
        self.branch = branch
        self.first_env = first_env
        self.episode: Array = np.zeros(num_envs, np.int64)

    def of(self, envs: Iterable[int]) -> list[int]:
        """Return the seeds of the open episodes of envs [n]."""
        return [episode_seed(self.branch, self.first_env + int(i), int(self.episode[i])) for i in envs]

    def every(self) -> list[int]:
        """Return the seeds of all open episodes."""
        return self.of(range(len(self.episode)))
