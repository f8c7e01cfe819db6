"""A loader for trainers of tests."""

import torch


class Batches:
    """Serve the same batch so many times: of each name a tensor, the same for those without one."""

    def __init__(self, *names, times=1, **tensors):
        self.given, self.times = {**dict.fromkeys(names, torch.tensor([2.0, 4.0])), **tensors}, times

    def names(self):
        return {"default": tuple(self.given)}

    def __iter__(self):
        for _ in range(self.times):
            yield {"default": dict(self.given)}
