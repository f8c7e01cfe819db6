"""Several tables that are sampled as one, each with its share of a batch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from rlrun.core.errors import ConfigError, RlrunError, require_at_least, require_known
from rlrun.core.schedules import Schedule, positive
from rlrun.core.typing import Batch
from rlrun.memory.table.sample import Sample
from rlrun.memory.table.storage import joined
from rlrun.memory.table.table import Table

UNIT = 1_000_000  # parts of 1 in which shares are counted that are not all fixed


@dataclass
class _Part:
    """A table and its share of every n-th batch."""

    name: str
    table: Table
    share: Fraction | Schedule | None  # None = what the others leave
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

    Shares are relative, among the tables whose turn it is. Where one is null, the others are parts of 1, and that table
    gets the rest; then a share may be a schedule over samples. Rounding errors of one sample are corrected in the next,
    so shares are exact over time. A table without a window leaves its share to the others. A loader takes a `Mix` as
    its table, with feedback.

    Args:
        parts: each `{table, share}` or `{table, share, every}`, in a list or by name.

    Raises:
        ConfigError: a share is no number above 0, shares leave no rest, `every` is no number from 1, or the tables'
            columns differ.
    """

    def __init__(self, parts: Sequence[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]]) -> None:
        entries = parts.items() if isinstance(parts, Mapping) else ((str(i), part) for i, part in enumerate(parts))
        self.parts = [_part(name, entry) for name, entry in entries]
        if not self.parts:
            raise ConfigError("loader.parts: there are no tables to mix")
        fixed = [part.share.denominator for part in self.parts if isinstance(part.share, Fraction)]
        rests = [part for part in self.parts if part.share is None]
        self._moves = any(callable(part.share) for part in self.parts)
        if len(rests) > 1 or (self._moves and not rests):
            raise ConfigError("loader.parts: where a share is a schedule, one other share is null, and gets the rest")
        self._unit = math.lcm(*fixed, UNIT if rests else 1)
        self._weigh(0)
        self._weighs = any("weight" in part.table.names() for part in self.parts)
        self._holding: list[str] = []  # parts that could have given to the newest sample, were it their turn
        self._samples = 0
        self._owed: dict[
            str, dict[str, int]
        ] = {}  # by whose turn it is: what rounding has kept from each, in parts of rows
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

    def sample(self, count: int, length: int = 1) -> Sample:
        """Return windows of all tables: rows of the first, then of the second, and so on.

        Raises:
            RlrunError: no table holds a window, or the columns do not fit together.
        """
        batches = []
        for part, share in zip(self.parts, self._counts(count, length), strict=True):
            if share:
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
        return Sample(mixed, [part for batch in batches for part in batch.parts], batches[0].copies)

    def _counts(self, count: int, length: int) -> list[int]:
        """Return how many windows each table gives, `count` in all."""
        holding = [part for part in self.parts if part.holds(length)] or self.parts[:1]  # its error tells why
        names = [part.name for part in holding]
        if names != self._holding:  # other shares from now on; old debts are not theirs
            self._holding, self._owed = names, {}
        if self._moves:
            self._weigh(self._samples)
        self._samples += 1
        due = [part for part in holding if self._samples % part.every == 0] or holding
        owed = self._owed.setdefault(" ".join(part.name for part in due), {part.name: 0 for part in due})
        total = sum(part.weight for part in due)
        if not total:  # the others would have given all
            return [count if part is due[0] else 0 for part in self.parts]
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

    def _weigh(self, sample: int) -> None:
        """Set the weights of all parts as they are at a sample.

        Raises:
            ConfigError: shares leave no rest.
        """
        for part in self.parts:
            if callable(part.share):
                part.weight = round(part.share(sample) * self._unit)
            elif part.share is not None:
                part.weight = int(part.share * self._unit)
        for rest in (part for part in self.parts if part.share is None):
            rest.weight = self._unit - sum(part.weight for part in self.parts if part is not rest)
        if wrong := next((part for part in self.parts if part.weight < 0), None):
            place = f"loader.parts.{wrong.name}.share"
            raise ConfigError(
                f"{place}: it is {wrong.weight / self._unit:g} at sample {sample:,}; shares are from 0 to 1"
            )

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
        self._holding, self._samples = list(state["holding"]), state["samples"]
        self._owed = {names: dict(parts) for names, parts in state["owed"].items()}
        weights = {part.name: part.weight for part in self.parts}
        most = max(sum(weights.values()), self._unit) * len(weights)
        for parts in self._owed.values():
            if not parts.keys() <= weights.keys() or any(abs(int(count)) > most for count in parts.values()):
                raise RlrunError(f"what rounding has kept from each table cannot be {parts}")


def _part(name: str, entry: Mapping[str, Any]) -> _Part:
    require_known(f"parts.{name}", entry, ("table", "share", "every"))
    table = entry.get("table")
    if table is not None and not hasattr(table, "sample"):
        raise ConfigError(f"parts.{name}.table: wanted a table that is sampled, got a {type(table).__name__}")
    if table is None or "share" not in entry:
        raise ConfigError(f"parts.{name}: wanted a table and its share, given {', '.join(entry) or 'nothing'}")
    if entry["table"].sampler.by_burst:
        raise ConfigError(f"parts.{name}: a Mix draws samples singly; it wants memory.sampler.feedback=update")
    every = entry.get("every", 1)
    require_at_least(f"parts.{name}.every", every, 1)
    share = entry["share"]
    share = share if share is None or callable(share) else positive(f"parts.{name}.share", share)
    return _Part(name, entry["table"], share, every)
