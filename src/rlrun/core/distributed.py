"""Ranks: the processes that torchrun starts for one run, each with its share of the envs and of every batch.

Each rank holds all networks. The functions here compute statistics that affect training over all shares of a batch. So
every rank takes the same step: that of one process on the whole batch. All ranks call them in the same order. In a
process that trains alone they do nothing.

Gradients are averaged by `torch.distributed.all_reduce`, not by its DistributedDataParallel. That wraps a module's
`forward`, whereas a loss here calls other methods of networks (`act`, `heads`, …). It sends gradients while others are
computed, which does not pay for small networks.
"""

from __future__ import annotations

import json
import os
import pickle
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rlrun.core.errors import RankError, describe_error

if TYPE_CHECKING:  # commands that look at checkpoints only do without torch
    from torch import Tensor, nn

T = TypeVar("T")

PATIENCE = timedelta(days=7)  # the others wait while one evaluates; a rank that died is noticed at once nevertheless
PAUSE = timedelta(seconds=1)  # of waiting: Python handles signals only between calls, and another rank may be stuck
FAILED = "failed"  # a key of the store: the first rank that failed, and why

_rank, _world_size = 0, 1
_store: Any = None  # torch.distributed's key-value store, by which ranks find each other


def launched() -> int:
    """Return how many ranks torchrun has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Return the number of this process among the ranks, from 0: the first one writes the run's files."""
    return _rank


def local_rank() -> int:
    """Return the number of this process among the ranks of this machine."""
    return int(os.environ.get("LOCAL_RANK", "0")) if _world_size > 1 else 0


def world_size() -> int:
    """Return how many ranks there are."""
    return _world_size


@contextmanager
def joined() -> Iterator[None]:
    """Join the ranks that torchrun has started, as long as a `with` block lasts; do nothing without torchrun.

    Raises:
        RankError: the ranks do not find each other; without a message: another rank failed first, and reports it.
    """
    global _rank, _world_size, _store
    if launched() == 1 or _world_size > 1:
        yield
        return
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    try:
        store, number, count = next(rendezvous("env://"))
        _store = dist.PrefixStore(_meet(store, number, count), store)  # type: ignore[attr-defined]
        dist.init_process_group(_backend(), store=_store, rank=number, world_size=count, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise RankError(f"the ranks of torchrun do not find each other: {str(error).splitlines()[0]}") from error
    _rank, _world_size = number, count
    try:
        yield
    except BaseException as error:
        if not _is_first_to_fail(error):
            raise RankError from error
        raise
    finally:
        _rank, _world_size, _store = 0, 1, None
        dist.destroy_process_group()


def _meet(store: Any, number: int, count: int) -> str:
    """Return a name for keys of the store, on which the present ranks agree: ranks before a restart left theirs there.

    Each rank stores an identity of its own. The first rank answers each identity with the name, until all have read it.

    Raises:
        RuntimeError: a rank does not come.
    """
    own, until = f"rlrun/{uuid.uuid4().hex}", time.monotonic() + store.timeout.total_seconds()

    def is_there(key: str) -> bool:
        if not (there := store.check([key])) and time.monotonic() > until:
            raise RuntimeError("one of them does not come")
        time.sleep(0.0 if there else 0.01)
        return bool(there)

    if number == 0:
        for other in range(1, count):
            while not is_there(f"{own}/{other}"):
                if store.check([f"rlrun/rank-{other}"]):
                    store.set(store.get(f"rlrun/rank-{other}").decode(), own)
        return own
    store.set(f"rlrun/rank-{number}", own)
    while not is_there(own):
        pass
    name: str = store.get(own).decode()
    store.set(f"{name}/{number}", "")
    return name


def _backend() -> str:
    """Return the backend of torch.distributed: NCCL where each rank has a GPU of its own, else gloo."""
    import torch

    here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    own = torch.cuda.device_count() >= here and torch.distributed.is_nccl_available()
    return "cpu:gloo,cuda:nccl" if own else "gloo"


def _is_first_to_fail(error: BaseException) -> bool:
    """Store why this rank failed, for the others; return False if another one failed before."""
    text = json.dumps([_rank, describe_error(error), isinstance(error, RankError), traceback.format_exc()])
    try:
        return bool(_store.compare_set(FAILED, "", text).decode() == text)
    except RuntimeError:  # the store is gone
        return True


def _failure() -> RankError:
    """Return the error of the rank that failed, as it stored it; or that it stored none."""
    try:
        number, line, unknown, where = json.loads(_store.compare_set(FAILED, "", ""))
    except (RuntimeError, ValueError):
        return RankError("another rank is gone; torchrun says which, and how it ended")
    if unknown:
        return RankError(line)
    error = RankError(f"rank {number} failed: {line}")
    error.add_note(f"In rank {number}:\n{where}")
    return error


def _call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a collective operation.

    Raises:
        RankError: another rank is gone.
    """
    try:
        return function(*args)
    except RuntimeError as error:  # the connection broke
        raise _failure() from error


def _send(function: Callable[..., Any], value: Tensor, *args: Any) -> Tensor:
    """Exchange a tensor in place by a collective operation."""
    if value.is_cuda:  # the stream waits, not this process
        _call(function, value, *args)
    else:
        _call(_wait, _call(partial(function, async_op=True), value, *args))
    return value


def _wait(work: Any) -> None:
    """Wait until a collective operation is complete."""
    while True:
        try:
            work.wait(PAUSE)
            return
        except RuntimeError:  # the pause is over, or the connection broke
            if work.is_completed():
                work.wait()
                return


def sum_(value: Tensor) -> Tensor:
    """Add up the tensors of all ranks, in place."""
    if _world_size > 1:
        import torch.distributed as dist

        _send(dist.all_reduce, value)
    return value


def mean_(value: Tensor) -> Tensor:
    """Average the tensors of all ranks, in place."""
    return sum_(value).div_(_world_size) if _world_size > 1 else value


def pooled_(total: Tensor, number: int) -> int:
    """Add up sums over elements, in place; return the number of elements of all ranks.

    number: of the elements in this rank.
    """
    if _world_size == 1:
        return number
    import torch

    both = sum_(torch.cat([total.flatten(), total.new_tensor([float(number)])]))
    total.copy_(both[:-1].view_as(total))
    return int(both[-1])


def broadcast_(value: Tensor, source: int = 0) -> Tensor:
    """Give every rank the tensor of the first one, or of another one, in place."""
    if _world_size > 1:
        import torch.distributed as dist

        _send(dist.broadcast, value, source)
    return value


def largest(number: int) -> int:
    """Return the largest number that a rank has. It takes one message, as every update calls it."""
    if _world_size == 1:
        return number
    import torch
    import torch.distributed as dist

    return int(_send(dist.all_reduce, torch.tensor(number), dist.ReduceOp.MAX))


def broadcast(value: T, source: int = 0) -> T:
    """Return the value of the first rank, or of another one; of any type."""
    if _world_size == 1:
        return value
    import torch

    data = bytearray(pickle.dumps(value) if source == _rank else b"")
    size = int(broadcast_(torch.tensor(len(data)), source))
    buffer = torch.frombuffer(data or bytearray(size), dtype=torch.uint8)
    received: T = pickle.loads(broadcast_(buffer, source).numpy().tobytes())
    return received


def by_first(function: Callable[[], T], *errors: type[Exception]) -> T:
    """Call a function in the first rank; in every rank return its result, or raise its error of these types."""
    result: Any = None
    try:
        result = function() if _rank == 0 else None
    except errors as error:
        result = error
    result = broadcast(result)
    if isinstance(result, errors):
        raise result
    return result  # type: ignore[no-any-return]


def all_gather(value: T) -> list[T]:
    """Return the values of all ranks, in their order."""
    return [broadcast(value, source) for source in range(_world_size)]


def all_true(flag: bool) -> bool:
    """Return True if a flag is set in all ranks."""
    return all(all_gather(flag))


def require_same(modules: Mapping[str, nn.Module]) -> None:
    """Refuse networks that differ between ranks: some part was computed from one share of a batch alone.

    Raises:
        RankError: naming the first one.
    """
    sums = {
        path: [float(tensor.detach().double().sum()) for tensor in (*module.parameters(), *module.buffers())]
        for path, module in modules.items()
    }
    first = broadcast(sums)
    differs = [path for path, numbers in sums.items() if repr(numbers) != repr(first.get(path))]
    if unequal := [path for paths in all_gather(differs) for path in paths]:
        raise RankError(f"{unequal[0]} is not the same in all {_world_size} ranks")
