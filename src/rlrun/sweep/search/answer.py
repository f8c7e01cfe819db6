"""What a search found: its best trials, over seeds that it has not seen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun.files import counted, write_json
from rlrun.rundir import RunDir
from rlrun.sweep.search.plan import Plan
from rlrun.sweep.search.scores import interval
from rlrun.sweep.search.study import Trial
from rlrun.watching import printable


@dataclass
class Candidate:
    """A trial that is run again.

    Attributes:
        trial: with what it came to in the search.
        runs: with fresh seeds, by the keys of their jobs.
        scores: of the completed ones, a list for each objective.
    """

    trial: Trial
    runs: Mapping[str, RunDir]
    scores: list[list[float]] = field(default_factory=list)


def answer(plan: Plan, trials: Sequence[Trial], candidates: Sequence[Candidate], path: Path) -> dict[str, Any]:
    """Return what was found, and write it into a file; the best candidate over fresh seeds is the first one."""
    sign = -1.0 if plan.settings.directions[0] == "maximise" else 1.0
    rows = [_about(plan, rank, candidate) for rank, candidate in enumerate(candidates, start=1)]
    rows.sort(key=lambda row: math.inf if row["mean"] is None else sign * row["mean"][0])
    content = {
        "objective": plan.settings.objectives,
        "direction": plan.settings.directions,
        "trials": dict(Counter(trial.state for trial in trials)),
        "seeds": plan.seeds,
        "fresh_seeds": plan.fresh if any(candidate.runs for candidate in candidates) else [],
        "best": rows[0] if rows else None,
        "candidates": rows,
    }
    write_json(path, content)
    return content


def _about(plan: Plan, rank: int, candidate: Candidate) -> dict[str, Any]:
    """Return what is known of a candidate; it has no mean where one of its runs failed."""
    whole = bool(candidate.runs) and all(
        len(scores) == len(candidate.runs) and not any(map(math.isnan, scores)) for scores in candidate.scores
    )
    return {
        "words": plan.words_of(candidate.trial.values),
        "command": plan.command(candidate.trial.values),
        "trial": candidate.trial.number,
        "rank": rank,  # in the search
        "searched": candidate.trial.results,
        "mean": [sum(scores) / len(scores) for scores in candidate.scores] if whole else None,
        "interval": [interval(scores) for scores in candidate.scores] if whole else None,
        "scores": candidate.scores,
    }


def told(plan: Plan, content: Mapping[str, Any]) -> str:
    """Return the answer in words; its last line is a command."""
    counts = content["trials"]
    incomplete = [f"{counts[state]} {state}" for state in ("pruned", "failed") if state in counts]
    number = counted(sum(counts.values()), "trial") + (f" ({', '.join(incomplete)})" if incomplete else "")
    if not content["best"]:
        return f"{number}: none came to a number"
    fresh = content["fresh_seeds"]
    over = f"over the fresh seeds {fresh[0]} to {fresh[-1]}" if fresh else "in the search, which flatters"
    lines = [f"{number}; {', '.join(plan.settings.objectives)} {over}:"]
    lines += [f"  {_figures(row)}  {' '.join(row['words'])}  (trial {row['trial']})" for row in content["candidates"]]
    best, several = content["best"], len(plan.settings.objectives) > 1
    if fresh and best["rank"] != 1 and not several:
        first = next(row for row in content["candidates"] if row["rank"] == 1)
        lines.append(f"the search itself had trial {first['trial']} first, at {first['searched'][0]:.4g}")
    return "\n".join(map(printable, [*lines, best["command"]]))


def _figures(candidate: Mapping[str, Any]) -> str:
    searched = ", ".join(f"{value:.4g}" for value in candidate["searched"])
    if candidate["mean"] is None:
        why = "a run failed" if candidate["scores"] and any(candidate["scores"]) else "not run again"
        return f"{why}, in the search {searched}"
    means = []
    for mean, bounds in zip(candidate["mean"], candidate["interval"], strict=True):
        means.append(f"{mean:.4g}" + (f" [{bounds[0]:.4g}, {bounds[1]:.4g}]" if bounds else ""))
    return f"{', '.join(means)}, in the search {searched}"
