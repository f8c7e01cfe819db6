"""Diagnose why a run does not learn, from its files; the Python equivalent of `rlrun why`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rlrun.analysis.why.facts import ENOUGH, Facts, NotApplicable, Number, Unknown, override, read
from rlrun.analysis.why.rules import FILL, RULES
from rlrun.runs.directory import RunDir

__all__ = ["RULES", "Diagnosis", "Finding", "diagnose", "markdown", "why"]

RISING = 0.15  # rise within the newest third of a run, as a share of the range of returns


@dataclass(frozen=True)
class Finding:
    """A likely cause of bad learning.

    Attributes:
        cause: the name of the rule.
        reason: a sentence with the run's own numbers.
        evidence: these numbers, by name.
        remedy: advice, with overrides if they help.
    """

    cause: str
    reason: str
    evidence: Mapping[str, float]
    remedy: str


@dataclass(frozen=True)
class Diagnosis:
    """The results of all rules for a run.

    Attributes:
        run: its folder.
        status: of the run.
        env_steps, updates: of its newest record.
        findings: the most likely cause first.
        healthy: rules that were checked and did not fire.
        unmade: rules that could not be checked, with the missing data.
        notes: further remarks.
        time: the share of training time that each kind of work took.
        damage: errors when reading the run, one line each.
    """

    run: str
    status: str
    env_steps: int
    updates: int
    findings: tuple[Finding, ...]
    healthy: tuple[str, ...]
    unmade: Mapping[str, str]
    notes: tuple[str, ...]
    time: Mapping[str, float]
    damage: tuple[str, ...]

    @property
    def checks(self) -> int:
        """Number of rules that could be checked."""
        return len(self.findings) + len(self.healthy)

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `rlrun why --json` prints."""
        return {**asdict(self), "checks": self.checks}


def why(run: Path | str) -> Diagnosis:
    """Return likely causes why a run does not learn; the run may still be training.

    Raises:
        RunDirError: it is not a run, or its config cannot be read.
        ConfigError: its config is damaged.
    """
    return diagnose(read(RunDir.open(run)))


def diagnose(facts: Facts) -> Diagnosis:
    """Apply the rules to a run's facts; rules that do not fit its kind are left out."""
    findings, healthy, unmade = [], [], {}
    without_env = "env" in facts.config and facts.config["env"] is None
    for rule in RULES:
        if rule.of_env and without_env:
            continue
        try:
            found = rule.check(facts)
        except NotApplicable:
            continue
        except Unknown as lack:
            unmade[rule.name] = str(lack)
            continue
        if found is None:
            healthy.append(rule.name)
        else:
            findings.append(Finding(rule.name, found.reason, found.evidence, found.remedy))
    return Diagnosis(
        run=str(facts.path),
        status=facts.status,
        env_steps=int(facts.env_steps),
        updates=int(facts.updates),
        findings=tuple(findings),
        healthy=tuple(healthy),
        unmade=unmade,
        notes=_notes(facts, healthy=not findings),
        time={work: seconds / facts.seconds for work, seconds in facts.spent.items() if facts.seconds > 0},
        damage=facts.damage,
    )


def _notes(facts: Facts, *, healthy: bool) -> tuple[str, ...]:
    """Return remarks: the ceiling is reached; otherwise, that no preset was used, and that returns still rose."""
    if facts.ceiling is not None:
        return (f"the ceiling is reached: {facts.ceiling}; more steps need not raise returns",)
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
        notes.append(f"returns still rose when the budget ended, from {Number(before)} to {Number(after)}{more}")
    return tuple(notes)


def markdown() -> str:
    """Return the table of `docs/why.md`."""
    rows = [("cause", "named where", "what helps"), ("---", "---", "---")]
    rows += [(rule.name, rule.conditions, FILL.sub("", rule.advice)) for rule in RULES]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
