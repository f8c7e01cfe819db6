"""What a conformance test says."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Outcome = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True)
class Verdict:
    """Of one check.

    Attributes:
        check: its name.
        outcome: `skipped` where it cannot be told, or does not apply.
        text: why.
    """

    check: str
    outcome: Outcome
    text: str = ""


@dataclass(frozen=True)
class Examined:
    """All checks of one command."""

    words: list[str]
    verdicts: list[Verdict]

    @property
    def passed(self) -> bool:
        return all(verdict.outcome != "failed" for verdict in self.verdicts)


@dataclass(frozen=True)
class Report:
    """All commands that were tried of a plugin."""

    plugin: str
    examined: list[Examined]

    @property
    def passed(self) -> bool:
        return all(trial.passed for trial in self.examined)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `rlrun plugin test --json` prints."""
        return {"plugin": self.plugin, "passed": self.passed, "examined": [asdict(trial) for trial in self.examined]}


def several(lines: list[str], shown: int = 3) -> str:
    """Return the first lines of many, and how many more there are."""
    more = f" (and {len(lines) - shown} more)" if len(lines) > shown else ""
    return "; ".join(lines[:shown]) + more
