"""Groups of runs, the runs that count in each, and the config keys in which groups differ.

A report compares groups. The runs of a group have the same overrides, except seed, task (`env`) and keys that may
change on resume. Overrides define a group, not configs, because presets give each task other numbers. If configs of
one group and task differ, a report says so.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.analysis.report.runs import TASK, Run, is_circumstance
from rlrun.core.errors import RequestError, did_you_mean

NONE = "—"  # stands for a missing value
FOLDER = "folder"  # value of --by that groups by the folders of the command line
REASON = 300  # most letters of the reason why a run does not count, as a page may have thousands
UNFINISHED = {
    "running": "it is still running",
    "stopped": "it was stopped; rlrun resume continues it",
    "interrupted": "it was interrupted; rlrun resume continues it",
}


@dataclass(frozen=True)
class Fate:
    """A run with its group, and whether its score counts."""

    group: str  # the label of its group
    run: Run
    score: float | None  # the last value of the metric, if it counts
    why_not: str | None  # the reason why it does not count
    drawn: bool  # whether the learning curve includes it
    again: bool = False  # whether another run of the same group, task and seed counts instead


@dataclass(frozen=True)
class Group:
    """Runs that are compared as one group."""

    label: str
    fates: list[Fate]

    def scores(self, task: str) -> list[float]:
        """Return the scores that count on a task, in the order of seeds."""
        return [fate.score for fate in self.fates if fate.run.task == task and fate.score is not None]

    def values(self) -> dict[str, dict[str, set[str]]]:
        """Return task -> config key -> values as texts."""
        values: dict[str, dict[str, set[str]]] = {}
        configs = {(id(fate.run.settings), fate.run.task): fate.run.settings for fate in self.fates}
        for (_, task), settings in configs.items():  # equal configs are the same object
            for key, value in settings.items():
                values.setdefault(key, {}).setdefault(task, set()).add(text_of(value))
        return values


def groups_of(runs: Sequence[Run], metric: str, by: Sequence[str] = ()) -> tuple[list[Group], list[str]]:
    """Return the groups, by label, and the overrides that all runs have in common.

    Args:
        runs: all, at least one.
        metric: its last value is a run's score.
        by: keys whose values define groups; empty = all overrides.

    Raises:
        RequestError: no run has one of the keys.
    """
    marks = [_marks(run, by, runs) for run in runs]
    common = set.intersection(*map(set, marks))
    named = common if by else set()  # labels include these even if all runs have them
    if not by and any(set(mark) <= common for mark in marks):
        named = {override for override in common if override.startswith(("algorithm=", "preset="))}
    groups: dict[str, list[Run]] = {}
    for run, mark in zip(runs, marks, strict=True):
        label = " ".join(override for override in mark if override in named or override not in common)
        groups.setdefault(label or "as configured", []).append(run)
    tasks = ({run.overrides[key] for key in run.overrides if key in TASK or _may_change(key)} for run in runs)
    shared = sorted(common - named) + sorted(set.intersection(*tasks))
    return [Group(label, _fates(label, groups[label], metric)) for label in sorted(groups, key=_natural)], shared


def differences(groups: Iterable[Group]) -> dict[str, list[str]]:
    """Return the config keys in which groups differ on the same task, with each group's values as texts.

    Links to other keys (`${algorithm.lr}`) are left out.
    """
    by_group = [group.values() for group in groups]
    known = [values for values in by_group if values]  # other groups have no run that has begun
    differing = {}
    for key in dict.fromkeys(key for values in known for key in values):
        tasks = [values.get(key, {}) for values in known]
        differs = {} in tasks or any(
            len({frozenset(texts[task]) for texts in tasks if task in texts}) > 1 for task in set().union(*tasks)
        )
        cells = [sorted(set().union(*values.get(key, {}).values())) for values in by_group]
        if differs and not all(text.startswith("${") for cell in cells for text in cell):
            differing[key] = [" | ".join(map(cut, cell)) or NONE for cell in cells]
    return dict(sorted(differing.items(), key=lambda item: not item[0].startswith("algorithm.")))


def text_of(value: Any) -> str:
    """Return a config value as text."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def cut(text: str, letters: int = 60) -> str:
    """Return a text, cut to a number of letters."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def _natural(text: str) -> list[tuple[int, float, str]]:
    """Return a sort key for natural order: 2 before 10."""
    parts = re.split(r"(\d{1,15}(?:\.\d{1,15})?(?:e[+-]?\d{1,2})?)", text)
    return [(0, float(part), "") if index % 2 else (1, 0.0, part) for index, part in enumerate(parts)]


def _may_change(key: str) -> bool:
    return key.split(".")[0] in ("stop", "evaluation")


def _marks(run: Run, by: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """Return the texts that define a run's group: its sorted overrides, or the values of the keys in `by`."""
    if not by:
        names = [key for key in run.overrides if key not in TASK and not is_circumstance(key) and not _may_change(key)]
        return [run.overrides[key] for key in sorted(names, key=lambda key: (key not in ("algorithm", "preset"), key))]
    marks, alike = [], sum(source.name == run.source.name for source in {peer.source for peer in runs})
    for key in by:
        typed = run.overrides[key].partition("=")[2] if key in run.overrides else None
        folder = run.source.name if alike == 1 else str(run.source)
        value = folder if key == FOLDER else run.settings.get(key, typed)
        if value is None and not any(key in peer.settings or key in peer.overrides for peer in runs):
            keys = {FOLDER, *(name for peer in runs for name in (*peer.settings, *peer.overrides))}
            raise RequestError(f"--by {key}: no run has this key{did_you_mean(key, keys)}")
        marks.append(f"{key}={NONE if value is None else text_of(value)}")
    return marks


def _fates(group: str, runs: Iterable[Run], metric: str) -> list[Fate]:
    """Return the fate of each run; of several with the same task and seed, only the newest completed one counts."""
    counting: set[tuple[str, int | None]] = set()
    fates = []
    for run in sorted(runs, key=lambda run: (run.status == "completed", run.created), reverse=True):
        again = run.seed is not None and (run.task, run.seed) in counting
        counting.add((run.task, run.seed))
        curve, score, why = run.curves.get(metric), None, None
        if again:
            why = f"another run of seed {run.seed} counts"
        elif run.status != "completed":
            why = cut(run.reason or UNFINISHED.get(run.status, "no reason was recorded"), REASON)
        elif curve is None or metric in run.broken:
            why = f"{metric} {'is not a finite number at the end' if metric in run.broken else 'was never measured'}"
        else:
            score = curve[next(reversed(curve))]
        fates.append(Fate(group, run, score, why, drawn=curve is not None and not again, again=again))
    return sorted(fates, key=lambda fate: (fate.run.task, fate.run.seed is None, fate.run.seed or 0, fate.run.created))
