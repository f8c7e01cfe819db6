"""A loss of a few numbers, trained hook by hook and as one graph."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.callbacks.losses.loss import LossCallback
from rlrun.callbacks.losses.target import TargetCallback
from rlrun.compile import FusedUpdate
from rlrun.training.callback import Callback
from rlrun.training.trainer import Trainer

ADAM = partial(torch.optim.Adam, lr=0.01, fused=True)
SGD = partial(torch.optim.SGD, lr=0.1)
Sizes = Sequence[int | tuple[int, ...]]


class Distance(LossCallback):
    """The distance of a layer's outputs to y."""

    def loss(self, x: Tensor, y: Tensor) -> Any:
        return (self.network(x).squeeze(-1) - y).square()


class Target(TargetCallback):
    """Bootstraps y from the target network."""

    provides = ("y",)

    def target(self, x: Tensor, y: Tensor) -> Any:
        return {"y": 0.5 * y + self.target_network(x).squeeze(-1)}, {}


class Batches:
    """Yields batches of so many rows, or of rows of so many sizes."""

    def __init__(self, *rows: int | tuple[int, ...], group: str = "default") -> None:
        self.rows, self.group = rows, group

    def names(self) -> dict[str, tuple[str, ...]]:
        return {self.group: ("x", "y")}

    def __iter__(self) -> Iterator[dict[str, dict[str, Tensor]]]:
        generator = torch.Generator().manual_seed(3)
        for rows in self.rows:
            sizes = (rows,) if isinstance(rows, int) else rows
            x = torch.randn(*sizes, 3, generator=generator)
            yield {self.group: {"x": x, "y": x.sum(-1)}}


def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def trained(callbacks: dict[str, Callback], rows: Sizes = (8,) * 6, *, compile: bool = True) -> Trainer:
    trainer = Trainer(callbacks, Batches(*rows), fuse=FusedUpdate(compile, "cpu"))
    trainer.train()
    return trainer


def both(make: Any, rows: Sizes = (8,) * 6) -> Any:
    """Train hook by hook and as one graph; return the second one's callbacks, whose tensors are the same."""
    plain = trained(make(), rows, compile=False).callbacks
    fused = trained(make(), rows).callbacks
    for name, callback in fused.items():
        for ours, theirs in zip(tensors(callback), tensors(plain[name]), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    return fused


def tensors(callback: Callback) -> list[Tensor]:
    values = [value for value in vars(callback).values() if isinstance(value, Tensor)]
    for value in vars(callback).values():
        values += [*value.state_dict().values()] if isinstance(value, nn.Module) else []
    return values


def changed(at: int, change: Callable[[], object]) -> Callback:
    """Return a callback that changes something after an update; after each one with `at` 0."""

    class Change(Callback):
        data_group = "default"

        def end_batch(self, update: int) -> None:
            if update == at or not at:
                change()

    return Change()
