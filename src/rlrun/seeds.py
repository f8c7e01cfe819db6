"""One integer fixes a run: every part draws from a branch of its own."""

from __future__ import annotations

import random

import numpy as np


class Seeds:
    """Independent seeds for the parts of a run, all derived from one integer.

    Each attribute is a branch of `numpy.random.SeedSequence(seed)`, so runs with
    neighbouring seeds share no episodes, and evaluation shares none with training.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        children = np.random.SeedSequence(seed).spawn(6)
        words = [int(child.generate_state(1)[0] >> 1) for child in children]  # 31 bits: every library takes them
        self.process, self.lanes, self.evaluation, self.memory, self.agent, self.warm_up = words

    def apply(self) -> None:
        """Seed the generators that belong to the whole process: python, numpy, torch."""
        import torch

        random.seed(self.process)
        np.random.seed(self.process)
        torch.manual_seed(self.process)
