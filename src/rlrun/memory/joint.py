"""Several sources of batches: as several data groups, or mixed within a batch."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from rlrun.core.errors import ConfigError, RlrunError, did_you_mean, require_at_least
from rlrun.core.spaces import map_tree
from rlrun.core.typing import Batch, Groups, Tree
from rlrun.memory.episodes import joined
from rlrun.memory.loaders import placed, positive
from rlrun.memory.table import Table


class JointLoader:
    """Serves the batches of several loaders together, as several data groups.

    A data group `default` gets the name of its loader here; other groups keep theirs. It ends as soon as one of the
    loaders does. A loader that collects must come before those that draw from the same table.

    Args:
        nested: the one data group in which each loader's batch is an entry under the loader's name.
        loaders: by name.

    Raises:
        ConfigError: two loaders give the same group, or there is no loader.
    """

    def __init__(self, *, nested: str | None = None, **loaders: Any) -> None:
        self.parts = loaders
        self.nested = nested
        if not self.parts:
            raise ConfigError("loader: a JointLoader needs loaders by name")
        self._groups: dict[str, dict[str, str]] = {}  # part -> its group -> the group here
        self._names: dict[str, tuple[str, ...]] = {}
        self._given: dict[str, Groups] = {}  # of the next batch: what loaders that had their turn gave
        owners: dict[str, str] = {}
        for part, loader in self.parts.items():
            if not hasattr(loader, "names"):
                raise ConfigError(f"loader.{part}: wanted a loader, got {loader!r}")
            names = loader.names()
            if nested is not None and len(names) > 1:
                raise ConfigError(f"loader.{part}: one data group can be nested, not several: {', '.join(names)}")
            own = {group: part if group == "default" or nested is not None else group for group in names}
            self._groups[part] = own
            for group, here in own.items():
                if here in owners:
                    raise ConfigError(f"loader.{part} and loader.{owners[here]} both give the data group '{here}'")
                owners[here] = part
                self._names[here] = tuple(names[group])

    def names(self) -> dict[str, tuple[str, ...]]:
        """Return the names that batches will have, by data group."""
        return dict(self._names) if self.nested is None else {self.nested: tuple(self._names)}

    def __iter__(self) -> Iterator[Groups]:
        running = {part: iter(loader) for part, loader in self.parts.items()}
        while True:
            for part, batches in running.items():
                if part in self._given:  # before the run was left, while a later loader collected
                    continue
                groups = next(batches, None)
                if groups is None:
                    return
                self._given[part] = {self._groups[part][group]: batch for group, batch in groups.items()}
            merged = {group: batch for part in self.parts for group, batch in self._given[part].items()}
            self._given = {}
            yield merged if self.nested is None else {self.nested: merged}

    def ready(self) -> bool:
        """Return True if no loader makes an environment step before its next batch."""
        return all(loader.ready() for loader in self.parts.values())

    @property
    def tables(self) -> tuple[Table, ...]:
        """Tables of the batches."""
        return tuple(table for loader in self.parts.values() for table in loader.tables)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all loaders by name, and their batches for an incomplete joint batch."""
        return {"parts": {part: loader.state_dict() for part, loader in self.parts.items()}, "given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the states of all loaders."""
        for part, loader in self.parts.items():
            loader.load_state_dict(state["parts"][part])
        self._given = {part: placed(groups, self.parts[part]) for part, groups in state["given"].items()}


@dataclass
class _Part:
    """A table and its share of every n-th batch."""

    name: str
    table: Table
    share: Fraction
    every: int
    weight: int = 0  # the share as a whole number
    longest: int = 0  # steps of the longest window that it was seen to hold

    def holds(self, length: int) -> bool:
        """Return True if the table has a window; counts windows only until it has one."""
        if not self.table.index.complete[:-1].any():  # empty, perhaps again
            self.longest = 0
        elif self.longest < length and self.table.windows(length):
            self.longest = length
        return self.longest >= length


class Mix:
    """Several tables that are sampled as one, each with its share of every sample, or of every n-th.

    Shares are relative, among the tables whose turn it is. Rounding errors of one sample are corrected in the next, so
    shares are exact over time. A table without a window leaves its share to the others. A loader takes a `Mix` as its
    table, with feedback.

    Args:
        parts: each `{table, share}` or `{table, share, every}`, in a list or by name.

    Raises:
        ConfigError: a share is no number above 0, `every` is no number from 1, or the tables' columns differ.
    """

    def __init__(self, parts: Sequence[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]]) -> None:
        entries = parts.items() if isinstance(parts, Mapping) else ((str(i), part) for i, part in enumerate(parts))
        self.parts = [_part(name, entry) for name, entry in entries]
        if not self.parts:
            raise ConfigError("loader.parts: there are no tables to mix")
        unit = math.lcm(*(part.share.denominator for part in self.parts))
        for part in self.parts:
            part.weight = int(part.share * unit)
        self._weighs = any("weight" in part.table.names() for part in self.parts)
        self._holding: list[str] = []  # parts that could have given to the newest sample, were it their turn
        self._samples = 0
        self._owed: dict[
            str, dict[str, int]
        ] = {}  # by whose turn it is: what rounding has kept from each, in parts of rows
        self._picked: list[tuple[Table, int]] = []  # of the newest sample: tables and how many rows each gave
        first = self.parts[0]
        for part in self.parts[1:]:
            if differing := sorted((set(first.table.names(2)) ^ set(part.table.names(2))) - {"weight"}):
                raise ConfigError(
                    f"loader.parts.{part.name} and loader.parts.{first.name} differ in what they hold: "
                    f"{', '.join(differing)}"
                )

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables, in order."""
        return tuple(part.table for part in self.parts)

    def names(self, length: int = 1) -> tuple[str, ...]:
        """Return the names that a sample will have; `weight` where one of the tables gives it."""
        names = self.parts[0].table.names(length)
        return (*names, "weight") if self._weighs and "weight" not in names else names

    def sample(self, count: int, length: int = 1) -> Batch:
        """Return windows of all tables: rows of the first, then of the second, and so on.

        Raises:
            RlrunError: no table holds a window, or the columns do not fit together.
        """
        self._picked, batches = [], []
        for part, share in zip(self.parts, self._counts(count, length), strict=True):
            if share:
                self._picked.append((part.table, share))
                batches.append(batch := part.table.sample(share, length))
                if self._weighs and "weight" not in batch:
                    batch["weight"] = torch.ones(share, device=batch["reward"].device if "reward" in batch else None)
        if len(batches) == 1:
            return batches[0]
        mixed: Batch = {}
        for name in self.names(length):
            try:
                mixed[name] = joined([batch[name] for batch in batches])
            except (RuntimeError, KeyError) as error:
                raise RlrunError(f"loader.parts: column '{name}' differs between tables: {error}") from error
        return mixed

    def _counts(self, count: int, length: int) -> list[int]:
        """Return how many windows each table gives, `count` in all."""
        holding = [part for part in self.parts if part.holds(length)] or self.parts[:1]  # its error tells why
        names = [part.name for part in holding]
        if names != self._holding:  # other shares from now on; old debts are not theirs
            self._holding, self._owed = names, {}
        self._samples += 1
        due = [part for part in holding if self._samples % part.every == 0] or holding
        owed = self._owed.setdefault(" ".join(part.name for part in due), {part.name: 0 for part in due})
        total = sum(part.weight for part in due)
        counts = dict.fromkeys((part.name for part in self.parts), 0)
        for part in due:
            owed[part.name] += count * part.weight
            counts[part.name] = max(owed[part.name] // total, 0)
        missing = count - sum(counts.values())
        by_rest = sorted(due, key=lambda part: counts[part.name] * total - owed[part.name])
        if missing < 0:
            by_rest = [part for part in reversed(by_rest) if counts[part.name]]
        for part in by_rest[: abs(missing)]:
            counts[part.name] += 1 if missing > 0 else -1
        for part in due:
            owed[part.name] -= counts[part.name] * total
        return list(counts.values())

    def feedback(self, priority: Tensor) -> None:
        """Pass to each table its part of the newest sample's priorities, [B] or [B, T].

        Raises:
            RlrunError: there was no sample yet.
        """
        if not self._picked:
            raise RlrunError("memory: feedback without a sample before it")
        parts = torch.split(priority, [count for _, count in self._picked])
        for (table, _), part in zip(self._picked, parts, strict=True):
            table.feedback(part)

    def rewrite(self, values: Mapping[str, Tree]) -> None:
        """Store new values of columns in each table for its rows of the newest sample; see `Table.rewrite`.

        Raises:
            RlrunError: there was no sample yet, or a column cannot be rewritten.
        """
        if not self._picked:
            raise RlrunError("memory: rewrite without a sample before it")
        first = 0
        for table, count in self._picked:
            part = slice(first, first := first + count)
            table.rewrite(map_tree(lambda value, part=part: value[part], dict(values)))

    def windows(self, length: int) -> int:
        """Return the number of windows in all tables."""
        return sum(part.table.windows(length) for part in self.parts)

    def full(self) -> bool:
        """Return True if all tables are full."""
        return all(part.table.full() for part in self.parts)

    def __len__(self) -> int:
        """Return the number of transitions in the smallest table, so that a warm-up fills it."""
        return min(len(part.table) for part in self.parts)

    def state_dict(self) -> dict[str, Any]:
        """Return the rounding errors of each table, and its longest known window."""
        longest = {part.name: part.longest for part in self.parts}
        return {"owed": self._owed, "held": longest, "holding": self._holding, "samples": self._samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        for part in self.parts:
            part.longest = state["held"][part.name]
        self._holding, self._samples = list(state["holding"]), state.get("samples", 0)
        owed = state["owed"] if "samples" in state else {" ".join(self._holding): state["owed"]}  # earlier versions
        self._owed = {names: dict(parts) for names, parts in owed.items()}
        weights = {part.name: part.weight for part in self.parts}
        most = sum(weights.values()) * len(weights)
        for parts in self._owed.values():
            if not parts.keys() <= weights.keys() or any(abs(int(count)) > most for count in parts.values()):
                raise RlrunError(f"what rounding has kept from each table cannot be {parts}")


def _part(name: str, entry: Mapping[str, Any]) -> _Part:
    for key in entry:
        if key not in ("table", "share", "every"):
            hint = did_you_mean(key, ("table", "share", "every"))
            raise ConfigError(f"loader.parts.{name}: no setting '{key}'{hint}")
    if not hasattr(entry.get("table"), "sample") or "share" not in entry:
        raise ConfigError(f"loader.parts.{name}: wanted a table and its share, given {', '.join(entry) or 'nothing'}")
    every = entry.get("every", 1)
    require_at_least(f"loader.parts.{name}.every", every, 1)
    return _Part(name, entry["table"], positive(f"parts.{name}.share", entry["share"]), every)
