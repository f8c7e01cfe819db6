"""What an examination says, line by line."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class HealthFinding:
    """One line.

    Attributes:
        status: `ok`; `note`, something optional is missing or could be better; `problem`, training would break.
        group: what it is about: `package`, `extra`, `disk`, …
        name: of what in it.
        text: what was found.
        remedy: what can be done about it, where something can.
    """

    status: Status
    group: str
    name: str
    text: str
    remedy: str | None = None

    def describe(self) -> str:
        """Return the line without its status."""
        return f"{self.text}: {self.remedy}" if self.remedy else self.text


@dataclass(frozen=True)
class HealthReport:
    """All that was found."""

    findings: list[HealthFinding]

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong that training needs."""
        return all(finding.status != "problem" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `rlrun doctor --json` prints."""
        return {"ok": self.healthy, "findings": [asdict(finding) for finding in self.findings]}
