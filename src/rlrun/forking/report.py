"""What a run took over from another, in a table and in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Fate = Literal["loaded", "skipped", "missing", "misfit"]
FATES: tuple[Fate, ...] = ("loaded", "skipped", "missing", "misfit")
SHOWN = 6  # names a line


class Entry(NamedTuple):
    """One named thing, and what became of it."""

    part: str
    name: str  # full
    fate: Fate
    why: str = ""


@dataclass
class Report:
    """What became of everything that a run could take over."""

    origin: str
    entries: list[Entry] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # what follows from it and may surprise

    def of(self, fate: Fate) -> list[Entry]:
        return [entry for entry in self.entries if entry.fate == fate]

    def lines(self, most: int | None = SHOWN) -> Iterator[str]:
        """Yield a table of counts by part, then the names of what was not loaded; at most so many of a kind."""
        yield f"starts from {self.origin}"
        rows = [("part", *FATES), *self._rows(), ("total", *(str(len(self.of(fate))) for fate in FATES))]
        widths = [max(len(row[column]) for row in rows) for column in range(len(FATES) + 1)]
        for first, *counts in rows:
            cells = [count.rjust(width) for count, width in zip(counts, widths[1:], strict=True)]
            yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()
        yield from (f"{entry.name}: {entry.why}" for entry in self.of("loaded") if entry.why)
        for fate in FATES[1:] if most is not None else FATES:
            entries = self.of(fate)
            shown = [f"{entry.name} ({entry.why})" if entry.why else entry.name for entry in entries[:most]]
            more = [] if most is None or len(entries) <= most else [f"and {len(entries) - most} more"]
            if entries:
                yield f"{fate}: {', '.join([*shown, *more])}"
        yield from self.remarks

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for part in dict.fromkeys(entry.part for entry in self.entries):
            fates = [entry.fate for entry in self.entries if entry.part == part]
            yield part, *(str(fates.count(fate) or "") for fate in FATES)
