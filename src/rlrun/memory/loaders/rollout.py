"""On-policy data: rollouts of all envs, served in epochs of minibatches and then dropped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import ConfigError, RlrunError, require_at_least, require_counts
from rlrun.core.generators import Seeded
from rlrun.core.spaces import flat, map_tree
from rlrun.core.typing import Array, Batch, Groups
from rlrun.memory.adaptors.adaptor import Adaptor, adapted, arrange, check
from rlrun.memory.adaptors.transforms import Normalize
from rlrun.memory.loaders.replay import Steps, chosen
from rlrun.memory.table.rollout_table import END_STATE, STATE, Rollout
from rlrun.memory.table.storage import joined


class RolloutLoader(Seeded):
    """Collects `horizon` steps of every env, serves them `epochs` times in shuffled minibatches, and drops them.

    Adaptors get a rollout once, as windows [N, T, …] that may span several episodes, with `rows` None. The loader calls
    their method `rollout`, if they have one. Envs are neighbors in memory: `x[:, t]` is contiguous. Void rows of a
    vector environment that resets itself are left out.

    If the table has a column `state`, of a recurrent network before each step, all batches have it: [B, S], or a tree
    of such parts, of the first row of each window; other states are not stored. Windows then also have `valid` and
    `episode_end` [B, T]. The state begins again after a row with `episode_end`.

    Args:
        table: the collector writes to it.
        collector: makes the steps.
        horizon: steps of every env.
        minibatch: rows of a minibatch; all have equal size, a little more if there is a remainder; None = all rows.
        epochs: how often each row is served.
        length: of windows: 1 = single rows [B, …]; the horizon = whole envs [B, T, …]; or a divisor of it, with `valid`
            [B, T] flagging transitions.
        unroll: replaces `length` if the table has a `state`; None = the same.
        columns: names that batches keep; None = all.
        adaptors: a list, or by name; batches also have the names that an adaptor `keeps`.
        seed: of the order of rows.
        data_group: name of the batches.
        device: of the batches.
    """

    def __init__(
        self,
        *,
        table: Rollout,
        collector: Steps,
        horizon: int,
        minibatch: int | None = None,
        epochs: int = 1,
        length: int = 1,
        unroll: int | None = None,
        columns: Sequence[str] | None = None,
        adaptors: Sequence[Adaptor] | Mapping[str, Adaptor] = (),
        seed: int = 0,
        data_group: str = "default",
        device: str = "cpu",
    ) -> None:
        if not isinstance(table, Rollout):
            raise ConfigError(
                f"table: wanted a rlrun.memory.Rollout, got a {type(table).__name__}; "
                "this algorithm learns from rollouts, so it takes memory=rollout alone"
            )
        self.adaptors = table.adaptors = arrange(adaptors, rewards=table.rewards, on_policy=True)
        self.envs = table.num_envs * math.prod(getattr(adaptor, "copies", 1) for adaptor in self.adaptors)
        minibatch = horizon * self.envs if minibatch is None else minibatch
        self.stateful = "state" in table.names()
        windows, length = ("unroll", unroll) if self.stateful and unroll is not None else ("length", length)
        for name, value in {"horizon": horizon, "minibatch": minibatch, "epochs": epochs, windows: length}.items():
            require_at_least(name, value, 1)
        if horizon % length:
            raise ConfigError(f"{windows}: {length} does not divide the horizon of {horizon}")
        self.table = table
        self.collector = collector
        self.horizon = horizon
        self.length = length
        self.data_group = data_group
        self.device = torch.device(device)
        super().__init__(seed)
        before = table.names()
        check(self.adaptors, (*before, "valid", *(column.name for column in table.columns)))
        names = adapted(before, self.adaptors)
        if length > 1:
            names = (*names, "valid", *(("episode_end",) if self.stateful else ()))
        extra = [name for adaptor in self.adaptors for name in getattr(adaptor, "keeps", ())]
        self._columns = self._with_state((*chosen(columns, names), *extra), names)
        self._rollout = self._epochs(minibatch, epochs)  # rows [T * N, …], those of a step side by side
        table.reserve(horizon, length)

    def _with_state(self, columns: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
        """Return columns with those that a recurrent network needs."""
        needed = [name for name in ("state", "episode_end", "valid") if self.stateful and name in names]
        return tuple(dict.fromkeys((*columns, *needed)))

    def _epochs(self, minibatch: int, epochs: int) -> Epochs:
        options = {"length": self.length, "stride": self.envs}
        return Epochs(minibatch=minibatch, epochs=epochs, generator=self.generator, **options)

    @property
    def epoch(self) -> int:
        """Complete epochs of this rollout."""
        return self._rollout.epoch

    @property
    def epochs(self) -> int:
        """Number of epochs of a rollout."""
        return self._rollout.epochs

    def names(self) -> dict[str, tuple[str, ...]]:
        """Return the names that batches will have, by data group."""
        return {self.data_group: self._columns}

    def __iter__(self) -> Iterator[Groups]:
        while True:
            if self._rollout.over:
                self._collect()
            yield {self.data_group: self._rollout.next()}

    def renew(self) -> None:
        """Drop the rest of this rollout; the next batch comes from a new one."""
        self._rollout.end()

    def _collect(self) -> None:
        while self.table.filled < self.horizon:
            self.collector.collect(1)
        steps, valid = self.table.steps(self.collector.observation)
        ends = steps.pop(END_STATE, None)
        batch: Batch = {name: map_tree(_envs_first, tree) for name, tree in steps.items()}
        if ends is not None:
            batch[END_STATE] = {"place": _envs_first(ends["place"]), STATE: map_tree(torch.from_numpy, ends[STATE])}
        batch["valid"] = _envs_first(valid)
        for adaptor in self.adaptors:
            batch = adaptor.rollout(batch) if hasattr(adaptor, "rollout") else adaptor(batch, None)
        if "episode_end" in self._columns:
            batch["episode_end"] = batch["terminated"] | batch["truncated"] | ~batch["valid"]
        rows = {name: map_tree(partial(self._flat, name), batch[name]) for name in self._columns}
        if self.length == 1:
            windows = np.flatnonzero(batch["valid"].numpy().T)
        else:
            starts = np.arange(0, self.horizon, self.length)[:, None]
            windows = (starts * self.envs + np.arange(self.envs)).ravel()
        self._rollout.begin(rows, windows)
        self.table.clear()

    def _flat(self, name: str, value: Tensor) -> Tensor:
        """Return [N, T, …] as rows [T * N, …] on the device; a view for columns that adaptors left unchanged."""
        wanted = (self.envs, self.horizon // self.length if name == STATE else self.horizon)
        if tuple(value.shape[:2]) != wanted:
            shape = list(value.shape)
            raise RlrunError(f"loader.adaptors: '{name}' came back as {shape}, wanted {[*wanted, '…']} (envs, steps)")
        return value.detach().transpose(0, 1).flatten(0, 1).to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the rest of the rollout and the position in it; the collector saves its own state."""
        return {**self._rollout.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the minibatch after the last one."""
        super().load_state_dict(state)
        self._rollout.load_state_dict(state, self.device)
        rows = flat(self._rollout.rows)
        for column in self.table.columns:
            if column.choices and column.name in rows and column.keys[0] == "action":
                column.require_choices(rows[column.name].numpy(force=True), "the saved rollout")


def _envs_first(array: Array) -> Tensor:
    """Return [T, N, …] as a tensor [N, T, …] that shares its memory."""
    return torch.from_numpy(array).transpose(0, 1)


class Epochs:
    """Serves windows of rows in shuffled minibatches, every window once an epoch; `state` has one row a window.

    Args:
        minibatch: rows of a minibatch; all have equal size, a little more if there is a remainder.
        epochs: how often each row is served.
        length: rows of a window.
        stride: distance between successive rows of a window.
        generator: shuffles.
    """

    def __init__(
        self, *, minibatch: int, epochs: int, length: int = 1, stride: int = 1, generator: np.random.Generator
    ) -> None:
        self.minibatch = minibatch
        self.epochs = epochs
        self.length = length
        self.stride = stride
        self.generator = generator
        self.epoch, self.served = epochs, 0  # complete epochs, and minibatches served of the running one
        self.number = 0  # minibatches since the beginning
        self.rows: Batch = {}  # [rows, …]
        self.starts = np.empty(0, np.int64)  # first row of each window, in the order of this epoch
        self._whole: Batch | None = None  # all rows, if they are one minibatch

    @property
    def over(self) -> bool:
        """Return True if all epochs are over."""
        return self.epoch >= self.epochs

    def begin(self, rows: Batch, starts: Array) -> None:
        """Set the rows to serve, in windows that begin at `starts`."""
        self.rows, self.starts = rows, starts
        self.epoch = self.served = self.number = 0
        self._whole = None
        self._shuffle()

    def end(self) -> None:
        """Drop the rest."""
        self.epoch, self.served = self.epochs, 0
        self.rows, self._whole = {}, None

    def next(self) -> Batch:
        """Return the next minibatch [B, …], or [B, length, …] for windows; one of all rows is gathered only once."""
        windows, count = len(self.starts), self._count
        first, end = (number * windows // count for number in (self.served, self.served + 1))
        batch = self._whole or self._taken(self.starts[first:end])
        if count == 1:
            self._whole = batch
        self.served += 1
        self.number += 1
        if self.served == count:
            self.epoch, self.served = self.epoch + 1, 0
            if self.over:
                self.end()
            else:
                self._shuffle()
        return dict(batch)

    @property
    def _count(self) -> int:
        """Minibatches an epoch; each has a window at least, even if that has more rows than `minibatch`."""
        windows = len(self.starts)
        return max(min(windows, windows * self.length // self.minibatch), 1)

    def _shuffle(self) -> None:
        if self._count > 1:  # a single minibatch has the same mean in any order
            self.generator.shuffle(self.starts)

    def _taken(self, starts: Array) -> Batch:
        """Return the windows that begin at these rows."""
        rows = windows = starts
        if self.length > 1:
            rows = rows[:, None] + np.arange(self.length) * self.stride
            windows = starts // (self.length * self.stride) * self.stride + starts % self.stride
        return {
            name: map_tree(partial(_take, windows if name == STATE else rows), tree) for name, tree in self.rows.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the rows and the position; the owner saves the generator."""
        counted = {"epoch": self.epoch, "served": self.served, "number": self.number}
        return {**counted, "rows": self.rows, "starts": self.starts}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Continue with the minibatch after the last one."""
        require_counts({name: state[name] for name in ("epoch", "served", "number")})
        self.epoch, self.served, self.number = state["epoch"], state["served"], state["number"]
        self.rows = _restored(state["rows"], device)
        self.starts, self._whole = np.array(state["starts"]), None


def _take(rows: Array, value: Tensor) -> Tensor:
    if value.is_cpu:  # numpy takes half the time; the rows are valid, "clip" saves their check
        return torch.from_numpy(value.numpy().take(rows, axis=0, mode="clip"))
    index = torch.from_numpy(rows).to(value.device)
    return value.index_select(0, index.flatten()).view(*rows.shape, *value.shape[1:])


def _restored(rows: Batch, device: torch.device) -> Batch:
    return {name: map_tree(lambda value: value.to(device), value) for name, value in rows.items()}


REWARDS = {"reward", "value", "advantage", "return_"}  # columns in the unit of rewards
PHASE = "auxiliary"  # the data group of phases


class PhasicLoader(RolloutLoader):
    """Serves rollouts, and after every `interval` of them a phase: epochs over all their rows, in group `auxiliary`.

    A batch has one of the groups, and only the callbacks of that group run. Rows of a phase are those of the rollouts,
    after their adaptors. If running statistics scale rewards, the columns of `REWARDS` have the newest rollout's scale.

    Args:
        interval: rollouts between two phases; 0 = no phases.
        phase_epochs: how often a phase serves each row.
        phase_minibatch: rows of a phase's minibatch.
        phase_columns: names of the rollouts' columns that a phase keeps.
        rollouts: as of `RolloutLoader`.
    """

    def __init__(
        self,
        *,
        interval: int,
        phase_epochs: int,
        phase_minibatch: int,
        phase_columns: Sequence[str],
        **rollouts: Any,
    ) -> None:
        super().__init__(**rollouts)
        require_at_least("interval", interval, 0)
        require_at_least("phase_epochs", phase_epochs, 1)
        require_at_least("phase_minibatch", phase_minibatch, 1)
        self.interval = interval
        self.phase = self._epochs(phase_minibatch, phase_epochs)
        self._phase_columns = self._with_state(chosen(phase_columns, self._columns), self._columns)
        self._rollouts: list[tuple[Batch, Array]] = []  # rows and windows of each rollout since the last phase

    def names(self) -> dict[str, tuple[str, ...]]:
        return {**super().names(), PHASE: self._phase_columns}

    def __iter__(self) -> Iterator[Groups]:
        rollouts = super().__iter__()
        while True:
            if self._rollout.over and 0 < self.interval <= len(self._rollouts):
                self._begin()
            while not self.phase.over:
                yield {PHASE: self.phase.next()}
            yield next(rollouts)

    def _scale(self) -> float:
        """Return the factor of normalizers to rewards."""
        return math.prod(
            float(adaptor.normalizer.scale)
            for adaptor in self.adaptors
            if isinstance(adaptor, Normalize) and adaptor.column == "reward"
        )

    def _collect(self) -> None:
        if not self.interval:
            super()._collect()
            return
        before = self._scale()
        super()._collect()
        changed = self._scale() / before
        for rows, _ in self._rollouts:
            rows |= {name: rows[name] * changed for name in rows.keys() & REWARDS}
        # copies, since unchanged columns are views of the table, which the next rollout overwrites
        rows = {name: map_tree(torch.clone, self._rollout.rows[name]) for name in self._phase_columns}
        self._rollouts.append((rows, self._rollout.starts.copy()))

    def _begin(self) -> None:
        """Begin a phase over all rollouts since the last one."""
        rows = {name: joined([batch[name] for batch, _ in self._rollouts]) for name in self._phase_columns}
        rollout = self.horizon * self.envs  # rows of one
        starts = np.concatenate([starts + number * rollout for number, (_, starts) in enumerate(self._rollouts)])
        self._rollouts = []
        self.phase.begin(rows, starts)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the rollout that is served, the rows kept, and the rest of a phase."""
        rollouts = [{"rows": rows, "starts": starts} for rows, starts in self._rollouts]
        return {**super().state_dict(), "phase": self.phase.state_dict(), "kept": rollouts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.phase.load_state_dict(state["phase"], self.device)
        self._rollouts = [
            (_restored(rollout["rows"], self.device), np.array(rollout["starts"])) for rollout in state["kept"]
        ]
