"""Learners: the processes that make one run together, each with its share of the lanes and of every batch.

Each holds all networks. What is computed over a batch and has a part in training is made of all shares, by the
functions here; so every learner takes the same step, which is that of one process on the whole batch. They are called
by all learners in the same order, and in a process that learns alone they do nothing.

Gradients are averaged by `torch.distributed.all_reduce`, not by its DistributedDataParallel. That wraps a module and
hears of what goes through its `forward`, whereas a loss here asks networks by other methods (`act`, `judge`, `heads`).
Around a whole loss it gives the same gradients, but in buckets of its own, where here they lie in one tensor already;
for two layers of 64 it was not faster than the one call that averages this. What it can do beyond, send the first
gradients while the last are computed, is for networks of another size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rlrun.errors import LearnerError

if TYPE_CHECKING:  # commands that look at checkpoints only do without torch
    from torch import Tensor, nn

T = TypeVar("T")

PATIENCE = timedelta(days=7)  # one evaluates, the others wait; one that is gone is noticed at once all the same

_rank, _count = 0, 1
_cause: Callable[[], LearnerError] | None = None  # asked why another one is gone


def rank() -> int:
    """Return the number of this learner, from 0: the first one writes the run's files."""
    return _rank


def count() -> int:
    """Return how many learners there are."""
    return _count


def be(number: int) -> None:
    """Make this process the learner of this number, before any part is built."""
    global _rank
    _rank = number


@contextmanager
def joined(place: Path, learners: int, backend: str, cause: Callable[[], LearnerError] | None = None) -> Iterator[None]:
    """Learn together for as long as a `with` block lasts.

    Args:
        place: a file by which the learners find each other.
        learners: how many.
        backend: of torch.distributed.
        cause: asked why another one is gone.
    """
    global _count, _cause
    import torch.distributed as dist

    _cause = cause
    try:
        _call(_begin, backend, place, learners)
        _count = learners
        yield
    finally:
        _count, _cause = 1, None
        if dist.is_initialized():
            dist.destroy_process_group()


def _begin(backend: str, place: Path, learners: int) -> None:
    import torch.distributed as dist

    store = dist.FileStore(str(place), learners)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=_rank, world_size=learners, timeout=PATIENCE)


def _call(function: Callable[..., Any], *given: Any) -> Any:
    """Call what all learners call.

    Raises:
        LearnerError: another one is gone.
    """
    try:
        return function(*given)
    except RuntimeError as error:  # of the connection
        raise LearnerError("another learner is gone") if _cause is None else _cause() from error


def sum_(value: Tensor) -> Tensor:
    """Add up the tensors of all learners, in place."""
    if _count > 1:
        import torch.distributed as dist

        _call(dist.all_reduce, value)
    return value


def mean_(value: Tensor) -> Tensor:
    """Average the tensors of all learners, in place."""
    return sum_(value).div_(_count) if _count > 1 else value


def pooled_(total: Tensor, number: int) -> int:
    """Add up sums over elements, in place; return of how many elements they are now, given how many there are here."""
    if _count == 1:
        return number
    import torch

    both = sum_(torch.cat([total.flatten(), total.new_tensor([float(number)])]))
    total.copy_(both[:-1].view_as(total))
    return int(both[-1])


def first_(value: Tensor) -> Tensor:
    """Let every learner have the tensor of the first one, in place."""
    if _count > 1:
        import torch.distributed as dist

        _call(dist.broadcast, value, 0)
    return value


def told_number(number: int) -> int:
    """Return the number that the first learner has: what is asked for in each update goes in one message."""
    if _count == 1:
        return number
    import torch

    return int(first_(torch.tensor(number)))


def told(value: T) -> T:
    """Return what the first learner has, whatever it is."""
    if _count == 1:
        return value
    import torch.distributed as dist

    held = [value]
    _call(dist.broadcast_object_list, held, 0)
    return held[0]


def every(flag: bool) -> bool:
    """Tell whether something holds for all learners."""
    return flag if _count == 1 else all(gathered(flag))


def gathered(value: T) -> list[T]:
    """Return what each learner has, in their order."""
    if _count == 1:
        return [value]
    import torch.distributed as dist

    held: list[Any] = [None] * _count
    _call(dist.all_gather_object, held, value)
    return held


def require_same(modules: Mapping[str, nn.Module]) -> None:
    """Refuse to go on where learners' networks differ: something would decide by its own share of a batch.

    Raises:
        LearnerError: naming the first one.
    """
    sums = {
        path: [float(tensor.detach().double().sum()) for tensor in (*module.parameters(), *module.buffers())]
        for path, module in modules.items()
    }
    first = told(sums)
    differs = [path for path, numbers in sums.items() if repr(numbers) != repr(first.get(path))]
    if found := [path for paths in gathered(differs) for path in paths]:
        raise LearnerError(f"learners={_count}: {found[0]} is not the same in all of them")
