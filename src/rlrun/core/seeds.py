"""One integer fixes a run: every part draws from a branch of its own."""

import random

import numpy as np


class Seeds:
    """Independent seeds for the parts of a run, all derived from one integer.

    Each attribute is a branch of `numpy.random.SeedSequence(seed)`, so runs with
    neighboring seeds share no episodes, and evaluation shares none with training.

    Args:
        seed: the run's.
        learner: number of this one, where there are several. Their networks begin alike, and what they draw from then
            on (actions, batches) is each one's own.
        first_env: of this learner, in the run of one process that has all environments.
    """

    def __init__(self, seed: int, *, learner: int = 0, first_env: int = 0) -> None:
        self.seed = seed
        children = np.random.SeedSequence(seed).spawn(6)
        numbers = [int(child.generate_state(1)[0] >> 1) for child in children]  # 31 bits: every library takes them
        self.process, self.envs, self.evaluation, self.memory, self.agent, self.warm_up = numbers
        self.envs += first_env
        if learner:
            own = np.random.SeedSequence(seed, spawn_key=(len(numbers) - 1 + learner,)).spawn(4)
            drawn = [int(child.generate_state(1)[0] >> 1) for child in own]
            self.memory, self.agent, self.warm_up, self.acting = drawn

    def apply(self) -> None:
        """Seed the generators that belong to the whole process: python, numpy, torch."""
        _apply(self.process)

    def apply_own(self) -> None:
        """Seed them again if this is not the first learner, once all parts are built."""
        if (acting := getattr(self, "acting", None)) is not None:
            _apply(acting)


def _apply(seed: int) -> None:
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
