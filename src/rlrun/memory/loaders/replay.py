"""Loaders that alternate between collecting and learning."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol

from rlrun.core import distributed
from rlrun.core.errors import ConfigError, RunDirError, did_you_mean, require_at_least, require_counts
from rlrun.core.schedules import positive
from rlrun.core.spaces import map_tree
from rlrun.core.typing import Groups, Tree
from rlrun.memory.table.mix import Mix
from rlrun.memory.table.sample import Sample, with_origins
from rlrun.memory.table.table import Table

_messages = logging.getLogger("rlrun")

CHUNK = 1000  # steps of a warm-up call: short enough to react to a signal in between
ENOUGH = 10  # episodes without a window after which a warning comes


class Steps(Protocol):
    """The part of a collector that loaders use."""

    @property
    def steps(self) -> int:
        """Environment steps made so far, of all envs together."""

    @property
    def observation(self) -> Tree:
        """The current observation of every env, [N, …], on which the agent acts next."""

    def collect(self, steps: int, random: bool = False) -> int:
        """Make at least `steps` environment steps; return the number of steps made."""


class ReplayLoader:
    """Alternates between collecting and learning: `updates_per_step` updates for each environment step.

    First come `warm_up` random steps, minus the rows of the table (after an import), and more until the table has a
    window. All envs step together, so several updates may follow one round. `collect_steps` steps are made at a time:
    after 256 of them with half an update a step, 128 updates follow.

    Without a collector the table does not change. With an asynchronous collector and `steps_per_update` 0, updates do
    not wait for steps. A resumed run whose memory was not saved first fills the table by its own agent.

    Args:
        table: a table or a `Mix`; the collector writes to it.
        collector: makes the steps; None = nothing is collected.
        batch: windows of a batch.
        length: steps of a window.
        updates_per_step: updates for each environment step.
        steps_per_update: the inverse of `updates_per_step`, which it replaces; 0 = updates do not wait for steps.
        collect_steps: steps made at a time.
        warm_up: steps with random actions before the first update.
        offline: updates before the first environment step, from the rows of the table; no warm-up follows them.
        data_group: name of the batches.
    """

    def __init__(
        self,
        *,
        table: Table | Mix,
        collector: Steps | None,
        batch: int,
        length: int = 1,
        updates_per_step: float = 1.0,
        steps_per_update: float | None = None,
        collect_steps: int = 1,
        warm_up: int = 1000,
        offline: int = 0,
        data_group: str = "default",
    ) -> None:
        if not hasattr(table, "sample"):
            raise ConfigError(f"table: wanted a table or a rlrun.memory.Mix, got a {type(table).__name__}")
        require_at_least("batch", batch, 1)
        require_at_least("length", length, 1)
        require_at_least("warm_up", warm_up, 0)
        require_at_least("offline", offline, 0)
        require_at_least("collect_steps", collect_steps, 1)
        self.table = table
        self.collector = collector
        self.batch = batch
        self.length = length
        self.collect_steps = collect_steps
        self.warm_up = 0 if offline else warm_up
        self.offline = offline
        self.data_group = data_group
        # an asynchronous collector; its `take` stores the steps that have arrived, without waiting
        self.ahead: Any = collector if steps_per_update == 0 and hasattr(collector, "take") else None
        if self.ahead is not None:
            if collect_steps > 1:
                raise ConfigError("collect_steps must be 1 with steps_per_update=0, when updates wait for no step")
            self.rate = Fraction(1)
        elif steps_per_update is not None:
            self.rate = 1 / positive("steps_per_update", steps_per_update)
        else:
            self.rate = positive("updates_per_step", updates_per_step)
        self.updates = 0  # since the warm-up; before the first environment step, since the beginning
        self.start: int | None = None  # environment steps at the end of the warm-up
        # environment steps at the beginning and the end of a running warm-up or refill of the table
        self._since: int | None = None
        self._until = 0
        self._newest: Sample | None = None
        self._known: dict[str, float] = {}  # metrics of the newest sample before a resume

    def names(self) -> dict[str, tuple[str, ...]]:
        """Return the names that batches will have, by data group."""
        return {self.data_group: self.table.names(self.length)}

    def __iter__(self) -> Iterator[Groups]:
        while self._before_steps():
            self.updates += 1
            yield self._batch(self.batch)
        self._until_ready()
        if (missing := self._missing()) > math.ceil(1 / self.rate) + self.collect_steps:
            raise RunDirError(f"loader: the saved state has {self.updates} updates, {missing} steps before the next")
        while True:
            if self.ahead is not None:
                self.ahead.take()
            missing = self._missing()
            if missing > 0 and self.collector is not None:
                while missing > 0:
                    missing -= self.collector.collect(missing)
                if hasattr(self.table, "draw_ahead"):
                    self.table.draw_ahead(self._due(self.collector), self.batch, self.length)
            self.updates += 1
            yield self._batch(self.batch)

    def _batch(self, size: int) -> Groups:
        self._newest, self._known = self.table.sample(size, self.length), {}
        return {self.data_group: self._newest}

    def _before_steps(self) -> bool:
        """Return True if the next update comes before the first environment step."""
        return self.start is None and self._since is None and self.updates < self.offline

    def _until_ready(self) -> None:
        """Collect until the table has rows to learn from; do nothing without a collector."""
        if self.collector is not None:
            self._prepare(self.collector)
        elif self.start is None:
            self.start = 0

    def _prepare(self, collector: Steps) -> None:
        """Warm up, or fill a table whose rows were not saved; a resumed run continues either."""
        now, learning = collector.steps, self.start is not None
        if not learning and self._since is None:
            self._since, self._until = now, now + self.warm_up - max(now, len(self.table))
            self.updates = 0
        elif learning and not distributed.all_true(self.table.windows(self.length) > 0):
            self._since, self._until = now if self._since is None else self._since, now + self.warm_up
        if self._since is not None:
            self._fill(collector, random=not learning and self.warm_up > 0)
            self.start = collector.steps if self.start is None else self.start + collector.steps - self._since
            self._since = None

    def _fill(self, collector: Steps, *, random: bool) -> None:
        """Collect until the last step of the warm-up, and further until the table has a window."""
        fill, warned = getattr(collector, "fill", collector.collect), False
        while True:
            missing = self._until - collector.steps
            windows = self.table.windows(self.length)
            if missing <= 0 and distributed.all_true(windows > 0 or self.table.full()):
                return
            episode_end = getattr(collector, "episodes", 0)
            if not warned and not windows and episode_end >= ENOUGH:
                warned = True
                _messages.warning(
                    "loader: of %s episodes none holds a window of %s transitions, so there are no updates; shorter "
                    "windows help, or memory.short=pad, or a smaller memory.min_length", episode_end, self.length
                )  # fmt: skip
            fill(min(max(missing, 1), CHUNK), random=random)

    def _missing(self) -> int:
        """Return the number of environment steps before the next update."""
        if self.collector is None or self.start is None or self.ahead is not None:
            return 0
        # whole numbers: a float would drift over a million updates
        updates, steps = self.rate.numerator, self.rate.denominator
        due = -((self.updates + 1) * -steps // updates)  # steps after warm-up at which the next update is due
        due += -due % self.collect_steps
        return self.start + due - self.collector.steps

    def _due(self, collector: Steps) -> int:
        """Return the number of updates before the next environment step."""
        steps = collector.steps - (self.start or 0)
        return (steps - steps % self.collect_steps) * self.rate.numerator // self.rate.denominator - self.updates

    def ready(self) -> bool:
        """Return True if no environment step comes before the next batch."""
        if self.start is None:
            return self._before_steps()
        return self.ahead is None and self._missing() <= 0

    @property
    def waits(self) -> bool:
        """Whether another part still has to fill the table, so that a `JointLoader` skips this one."""
        return self.collector is None and not self.table.windows(self.length)

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the ages of the newest sample's rows."""
        return self._known if self._newest is None else self._newest.metrics

    @property
    def tables(self) -> tuple[Table, ...]:
        """Tables of the batches."""
        return tuple(getattr(self.table, "tables", (self.table,)))

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the schedule, and the metrics of the newest sample."""
        position = {"updates": self.updates, "start": self.start, "since": self._since, "until": self._until}
        return {**position, "metrics": self.metrics}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the position; the collector restores its own steps."""
        require_counts({name: state[name] for name in ("start", "since") if state[name] is not None})
        require_counts({"updates": state["updates"]})
        self.updates, self.start = state["updates"], state["start"]
        self._since, self._until = state["since"], state["until"]
        self._known = dict(state["metrics"])


class CollectLoader:
    """Only collects: serves an empty batch after every `every` environment steps.

    Callbacks count these rounds as updates. A run that stopped during a round finishes it.

    Args:
        collector: makes the steps; None = no steps, for algorithms that learn without data.
        every: environment steps of a round, all envs together.
        warm_up: steps with random actions, which are the first round.
        data_group: name of the empty batches.
    """

    def __init__(
        self, *, collector: Steps | None = None, every: int = 1, warm_up: int = 0, data_group: str = "default"
    ) -> None:
        require_at_least("every", every, 1)
        self.collector = collector
        self.every = every
        self.warm_up = warm_up
        self.data_group = data_group

    def names(self) -> dict[str, tuple[str, ...]]:
        """Return the one data group, which is empty."""
        return {self.data_group: ()}

    def __iter__(self) -> Iterator[Groups]:
        while True:
            if self.collector is not None:
                steps, collect = self.collector.steps, getattr(self.collector, "fill", self.collector.collect)
                while (missing := self.warm_up - self.collector.steps) > 0:
                    collect(min(missing, CHUNK), random=True)
                if steps == self.collector.steps:
                    collect(self.every - steps % self.every)
            yield {self.data_group: {}}

    def ready(self) -> bool:
        """Return False: each round begins with environment steps."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state, as the collector has the position."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""


def chosen(columns: Sequence[str] | None, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that a loader's `columns` keep; None = all.

    Raises:
        ConfigError: one is given twice, or there is no such name.
    """
    wanted = tuple(names) if columns is None else tuple(columns)
    for name in wanted:
        if name not in names:
            raise ConfigError(f"columns: there is no '{name}'; there are {', '.join(names)}{did_you_mean(name, names)}")
        if wanted.count(name) > 1:
            raise ConfigError(f"columns: '{name}' is given twice")
    return wanted


def tables_of(loader: Any) -> tuple[Table, ...]:
    """Return the tables of a loader's batches."""
    tables: tuple[Table, ...] = getattr(getattr(loader, "loader", loader), "tables", ())  # a prefetch wraps a loader
    return tables


def placed(groups: Groups, loader: Any, origins: Sequence[Mapping[str, Any]] = ()) -> Groups:
    """Return batches of a checkpoint on the device of this loader's batches.

    origins: rows of the samples among them, from `origins`.
    """
    device, tables = getattr(getattr(loader, "loader", loader), "device", None), tables_of(loader)
    wanted = device if device is not None else tables[0].device if tables else None
    groups = groups if wanted is None else map_tree(lambda value: value.to(wanted), groups)
    return with_origins(groups, origins, tables)
