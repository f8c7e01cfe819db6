"""Draw the next batches while the update runs."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain
from typing import Any, NamedTuple

import torch

from rlrun.core.errors import ConfigError, RequestError, RlrunError, require_at_least
from rlrun.core.typing import Groups
from rlrun.memory.loaders.replay import placed, tables_of
from rlrun.memory.table.sample import origins
from rlrun.training.callback import Callback


class _Drawn(NamedTuple):
    """A batch drawn ahead, None at the end, or an error; and the versions of the tables."""

    groups: Groups | None
    versions: tuple[int, ...] | None  # None after a resume
    error: Exception | None = None


class Prefetch(Callback):
    """Draws up to `depth` batches ahead in a thread; the batches are the same as without it.

    A batch is drawn ahead only if its loader makes no environment step before it. This holds for all batches of a data
    set, and for a memory with several updates after one round of steps. The first batch after new steps waits for them,
    because they depend on the newest policy.

    It is a loader and a callback. As a callback it waits for the thread before a checkpoint, and ends it with training.
    Checkpoints hold the batches that were drawn ahead.

    Args:
        loader: of the batches, with a method `ready` (no environment step comes before the next batch) and `tables`.
        depth: number of batches.

    Raises:
        ConfigError: the loader has no `ready`, or its next batch depends on the last update.
    """

    def __init__(self, loader: Any, *, depth: int = 1) -> None:
        require_at_least("depth", depth, 1)
        for place, part in _nested(loader, "loader"):
            if not (hasattr(part, "ready") and hasattr(part, "tables")):
                raise ConfigError(
                    f"{place}: a {type(part).__name__} cannot tell which batches can be drawn ahead; wanted a "
                    "ReplayLoader, a DatasetLoader, or a mixture of them"
                )
            for table in part.tables:
                if table.grows:
                    raise ConfigError(
                        "a callback writes to a table between two batches, such as imagined rows, so nothing can be "
                        "drawn ahead: leave prefetch out"
                    )
                if table.sampler.learns:
                    raise ConfigError(
                        f"what {type(table.sampler).__name__} draws depends on the priorities of the batch before, so "
                        "nothing can be drawn ahead: leave prefetch out, or sample otherwise"
                    )
            for adaptor in chain(getattr(part, "adaptors", ()), *(table.adaptors for table in part.tables)):
                if getattr(adaptor, "learns", False):
                    raise ConfigError(
                        f"what {type(adaptor).__name__} makes of a batch depends on the update before, so nothing can "
                        "be drawn ahead: leave prefetch out"
                    )
        self.loader = loader
        self.depth = depth
        self._drawn: deque[_Drawn] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self._task: Future[None] | None = None

    def names(self) -> dict[str, tuple[str, ...]]:
        """Return the names that batches will have, by data group."""
        names: dict[str, tuple[str, ...]] = self.loader.names()
        return names

    def begin_training(self) -> None:
        if self._pool is None:
            threads = torch.get_num_threads()  # a new thread would take as many as the machine has
            self._pool = ThreadPoolExecutor(1, "prefetch", torch.set_num_threads, (threads,))

    def end_batch(self) -> None:
        """Wait for the thread."""
        if self._task is not None:
            wait([self._task])

    def end_training(self, error: BaseException | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = self._task = None

    def __iter__(self) -> Iterator[Groups]:
        if self._pool is None:
            raise RequestError("callbacks.prefetch is missing: a Prefetch must be among the callbacks, too")
        batches = iter(self.loader)
        while (groups := self._next(batches)) is not None:
            self._task = self._pool.submit(self._draw, batches)
            yield groups

    def _next(self, batches: Iterator[Groups]) -> Groups | None:
        self.end_batch()
        if not self._drawn:
            return next(batches, None)
        groups, versions, error = self._drawn.popleft()
        if error is not None:
            raise error
        if versions is not None and versions != self._versions():
            raise RlrunError(
                "prefetch: the memory changed, without the loader, after a batch was drawn ahead from it; "
                "leave prefetch out where another part writes to the memory"
            )
        return groups

    def _draw(self, batches: Iterator[Groups]) -> None:
        while len(self._drawn) < self.depth and self.loader.ready():
            if self._drawn and self._drawn[-1].groups is None:
                return
            try:
                drawn = _Drawn(next(batches, None), self._versions())
            except Exception as error:  # raised when its batch is requested, as without prefetch
                drawn = _Drawn(None, None, error)
            self._drawn.append(drawn)

    def _versions(self) -> tuple[int, ...]:
        return tuple(table.index.version for table in self.loader.tables)

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"draws up to {self.depth} batches of {path_of(self.loader)} ahead"

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state, and the batches that were drawn ahead."""
        self.end_batch()
        ahead = [drawn.groups for drawn in self._drawn if drawn.groups is not None]
        rows = [origins(groups, tables_of(self.loader)) for groups in ahead]
        return {"ahead": ahead, "origins": rows, "loader": self.loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state["loader"])
        ahead = zip(state["ahead"], state["origins"], strict=True)
        self._drawn = deque(_Drawn(placed(groups, self.loader, part), None) for groups, part in ahead)


def _nested(loader: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the loaders within a loader, each with its place in the config, then the loader itself."""
    for name, part in getattr(loader, "parts", {}).items():
        yield from _nested(part, f"{place}.{name}")
    yield place, loader
