"""A loader for trainers of tests."""

import torch


class Batches:
    """Serve the same batch so many times: of each name the same tensor."""

    def __init__(self, *names, times=1):
        self.given, self.times = names, times

    def names(self):
        return {"default": self.given}

    def __iter__(self):
        for _ in range(self.times):
            yield {"default": {name: torch.tensor([2.0, 4.0]) for name in self.given}}
