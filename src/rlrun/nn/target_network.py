"""Target networks: copies that follow a network."""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from rlrun.compile.calls import NoGrad
from rlrun.ops.targets import lerp_

Network = TypeVar("Network", bound=nn.Module)


def frozen_copy(network: Network) -> Network:
    """Return a copy of a network without gradients; modules that it borrows, such as critics, are shared."""
    parts = [*network.modules()]
    borrowed = {id(lent): lent for part in parts for lent in getattr(part, "_borrowed", ())}
    for part in parts:  # a part that another part borrows is copied with both
        borrowed.pop(id(part), None)
    return copy.deepcopy(network, borrowed).requires_grad_(False)


class Follow:
    """Move a target network towards a network of the same shape (Polyak averaging); both are equal at first.

    The tensors are listed once, so moving all of them is one call.

    Attributes:
        tensor_lists: tensors that `move` reads and writes; while a graph is traced they hold stand-ins.
    """

    def __init__(self, slow: nn.Module, fast: nn.Module) -> None:
        slow.load_state_dict(fast.state_dict())
        self.slow: list[Tensor] = list(slow.parameters())
        self.fast: list[Tensor] = list(fast.parameters())
        self.target_buffers = list(slow.buffers())
        self.fast_buffers = list(fast.buffers())
        self.tensor_lists = (self.slow, self.fast, self.target_buffers, self.fast_buffers)

    def move(self, rate: float = 1.0) -> None:
        """Move the target network by the share `rate`, τ; 1 is a hard copy. Buffers (statistics) are always copied."""
        with NoGrad():
            lerp_(self.slow, self.fast, rate=rate)
            if self.target_buffers:
                lerp_(self.target_buffers, self.fast_buffers, rate=1.0)

    @torch.no_grad()
    def distance(self) -> Tensor:
        """Return the distance of the target network to the network, as a share of the size of the network."""
        if not self.fast:
            return torch.zeros(())
        gaps = [(slow - fast).norm() for slow, fast in zip(self.slow, self.fast, strict=True)]
        sizes = [fast.norm() for fast in self.fast]
        share: Tensor = torch.stack(gaps).norm() / torch.stack(sizes).norm().clamp(min=1e-12)
        return share
