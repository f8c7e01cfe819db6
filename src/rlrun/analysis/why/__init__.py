"""Why a run does not learn, from its files; the Python equivalent of `rlrun why`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import rlrun.analysis.why.learning  # noqa: F401 - appends its rules behind those of `rules`
from rlrun.analysis.why.facts import ENOUGH, Facts, Unknown, read
from rlrun.analysis.why.rules import RULES, NotApplicable, ceiling, override, shown
from rlrun.runs.directory import RunDir

__all__ = ["RULES", "Diagnosis", "Finding", "diagnose", "markdown", "why"]

RISING = 0.15  # of the range of returns, within the newest third of the run


@dataclass(frozen=True)
class Finding:
    """A cause that shows in a run.

    Attributes:
        cause: the name of the rule.
        reason: a sentence with the run's own numbers.
        evidence: these numbers, by name.
        remedy: what to do, with overrides for the command line where there are such.
    """

    cause: str
    reason: str
    evidence: Mapping[str, float]
    remedy: str


@dataclass(frozen=True)
class Diagnosis:
    """What the rules make of a run.

    Attributes:
        run: its folder.
        status: of the run.
        env_steps, updates: how far it came.
        findings: the most likely cause first.
        healthy: rules that looked and found nothing.
        unmade: rules that could not look, and for want of what.
        notes: what is worth knowing besides.
        damage: what could not be read of the run, a line each.
    """

    run: str
    status: str
    env_steps: int
    updates: int
    findings: tuple[Finding, ...]
    healthy: tuple[str, ...]
    unmade: Mapping[str, str]
    notes: tuple[str, ...]
    damage: tuple[str, ...]

    @property
    def checks(self) -> int:
        """How many checks could be made."""
        return len(self.findings) + len(self.healthy)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as JSON takes it."""
        return {**asdict(self), "checks": self.checks}


def why(run: Path | str) -> Diagnosis:
    """Say what is wrong with a run, as far as its files show it; a process may be working on it.

    Raises:
        RunDirError: it is no run, or its config cannot be read.
        ConfigError: its config is damaged.
    """
    return diagnose(read(RunDir.open(run)))


def diagnose(facts: Facts) -> Diagnosis:
    """Apply all rules to what is known of a run; those that mean nothing for its kind are left out."""
    findings, healthy, unmade = [], [], {}
    for rule in RULES:
        try:
            sign = rule.check(facts)
        except NotApplicable:
            continue
        except Unknown as lack:
            unmade[rule.name] = str(lack)
            continue
        if sign is None:
            healthy.append(rule.name)
        else:
            findings.append(Finding(rule.name, *sign))
    return Diagnosis(
        run=str(facts.path),
        status=facts.status,
        env_steps=int(facts.env_steps),
        updates=int(facts.updates),
        findings=tuple(findings),
        healthy=tuple(healthy),
        unmade=unmade,
        notes=_notes(facts, healthy=not findings),
        damage=facts.damage,
    )


def _notes(facts: Facts, *, healthy: bool) -> tuple[str, ...]:
    """Tell of a ceiling, or else of numbers that no preset chose, and of returns that still rose at the end."""
    top = ceiling(facts)
    if top is not None:
        return (f"the ceiling is reached: {top}; more steps need not raise returns",)
    plain = "no preset chose the numbers of this run: they are defaults for any task"
    notes = [plain] if facts.preset is False else []
    values = [point.value for point in facts.returns]
    if not healthy or facts.status != "completed" or len(values) < ENOUGH:
        return tuple(notes)
    third = len(values) // 3
    before, after = median(values[-2 * third : -third]), median(values[-third:])
    if after - before > RISING * (max(values) - min(values)):
        budget = facts.figure("stop.env_steps")
        more = "" if budget is None else f": rlrun resume RUN {override(budget.key, 2 * budget.value)}"
        notes.append(f"returns still rose when the budget ended, from {shown(before)} to {shown(after)}{more}")
    return tuple(notes)


def markdown() -> str:
    """Return the table of `docs/why.md`."""
    rows = [("cause", "named where", "what helps"), ("---", "---", "---"), *(rule[:3] for rule in RULES)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
