"""The tables of a report, and how they read as Markdown and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeAlias

from rlrun.reporting.arms import Arm, shown
from rlrun.reporting.findings import Findings, middle
from rlrun.reporting.runs import Run
from rlrun.reporting.wording import NONE, between, chance, interval, number, whole

RUNS = 3_000  # rows of the table of all runs, at most
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a cell begins that a spreadsheet would compute
COLUMNS = ("arm", "task", "seed", "status", "counts", "score", "env_steps", "updates", "seconds", "why_not", "run")


class Link(NamedTuple):
    """A text that leads to a file."""

    text: str
    path: Path


Cell: TypeAlias = str | tuple[Link, ...]


class Table(NamedTuple):
    """Rows of texts.

    Attributes:
        title: what it holds.
        head: names of the columns.
        rows: as long as the head each.
        words: so many columns are words, the others numbers.
    """

    title: str
    head: list[str]
    rows: list[list[Cell]]
    words: int = 1


def finals(findings: Findings) -> Table:
    """Return the final scores of each arm, over the common tasks."""
    names = {"iqm": "IQM [95 %]", "mean": "mean [95 %]", "median": "median [95 %]", "optimality_gap": "gap to 1 [95 %]"}
    wanted = [name for name in names if any(name in res.aggregates for res in findings.results)]
    rows: list[list[Cell]] = []
    for res in findings.results:
        figures = [interval(res.aggregates[name]) if name in res.aggregates else NONE for name in wanted]
        counting = [fate.run for fate in res.arm.fates if fate.score is not None]
        speed = middle(run.speed for run in counting)
        rows.append(
            [res.arm.label, counts(res.arm), *figures, between((run.steps for run in counting), whole), number(speed)]
        )
    head = ["arm", "runs that count", *(names[name] for name in wanted), "steps", "steps/s"]
    return Table("Final scores" + (", normalised" if findings.bounds else ""), head, rows, words=2)


def by_task(findings: Findings) -> Table:
    """Return the final scores of each arm on each task, as they are."""
    rows: list[list[Cell]] = []
    for task in findings.tasks:
        for result in findings.results:
            if task in result.tasks:
                scores, middle_half, mean = result.tasks[task]
                extremes = [number(float(value)) for value in (scores.values.min(), scores.values.max())]
                rows.append([task, result.arm.label, str(len(scores.values)), interval(middle_half), interval(mean)])
                rows[-1] += extremes
    head = ["task", "arm", "runs", "IQM [95 %]", "mean [95 %]", "lowest", "highest"]
    return Table("Final scores by task", head, rows, words=2)


def comparisons(findings: Findings) -> Table:
    """Return each pair of arms, with a verdict."""
    rows: list[list[Cell]] = [
        [
            f"{comparison.one} − {comparison.other}",
            comparison.verdict,
            interval(comparison.difference),
            interval(comparison.improvement),
            chance(comparison.chance),
        ]
        for comparison in findings.comparisons
    ]
    head = ["first − second", "verdict", "difference of IQM [95 %]", "P(first > second) [95 %]", "p, corrected"]
    return Table("Comparisons", head, rows, words=2)


def left_out(findings: Findings) -> Table:
    """Return the runs that do not count, and why."""
    rows: list[list[Cell]] = [
        [result.arm.label, fate.run.task, _seed(fate.run), fate.run.status, fate.why_not, fate.run.path.name]
        for result in findings.results
        for fate in result.arm.fates
        if fate.why_not is not None
    ]
    return Table("Runs that do not count", ["arm", "task", "seed", "status", "why", "run"], rows[:RUNS], words=6)


def differing(findings: Findings) -> Table:
    """Return the keys of the config by which arms differ."""
    rows: list[list[Cell]] = [[key, *values] for key, values in findings.differing.items()]
    labels = [result.arm.label for result in findings.drawn]
    return Table("Differences of config", ["key", *labels], rows, words=1 + len(labels))


def machines(findings: Findings) -> Table:
    """Return on what the runs of each arm were made, and how fast they were."""
    rows: list[list[Cell]] = []
    for result in findings.results:
        runs = [fate.run for fate in result.arm.fates if fate.run.circumstances]
        for machine, group in groupby(sorted(runs, key=_machine), key=_machine):
            members = list(group)
            speeds = between((run.speed for run in members if run.speed is not None), number)
            seconds = middle(run.seconds for run in members)
            rows.append([result.arm.label, *machine, str(len(members)), speeds, number(seconds)])
    head = ["arm", "host", "processor", "device", "versions", "runs", "steps/s", "seconds, median"]
    return Table("Machines and speed", head, rows, words=5)


def all_runs(findings: Findings) -> Table:
    """Return every run, with its videos."""
    rows: list[list[Cell]] = [
        [
            result.arm.label,
            fate.run.task,
            _seed(fate.run),
            fate.run.status,
            (Link(fate.run.path.name, fate.run.path),) if fate.run.circumstances else fate.run.path.name,
            tuple(Link(path.stem, path) for path in fate.run.videos[-3:]),
            number(fate.score),
            whole(fate.run.steps),
            number(fate.run.seconds),
        ]
        for result in findings.results
        for fate in result.arm.fates
    ]
    head = ["arm", "task", "seed", "status", "run", "videos", "score", "steps", "seconds"]
    return Table("All runs", head, rows[:RUNS], words=6)


def markdown(tables: Iterable[Table]) -> str:
    """Return tables as Markdown."""
    return "\n\n".join(f"**{table.title}**\n\n{''.join(_lines(table))}".rstrip() for table in tables) + "\n"


def _lines(table: Table) -> Iterator[str]:
    rule = ["---" if index < table.words else "---:" for index in range(len(table.head))]
    rows: list[list[Cell]] = [[*table.head], [*rule], *table.rows]
    for row in rows:
        yield "| " + " | ".join(_bare(cell) for cell in row) + " |\n"


def _bare(cell: Cell) -> str:
    return plain_markdown(cell if isinstance(cell, str) else ", ".join(link.text for link in cell))


def plain_markdown(text: str) -> str:
    """Return a text in which nothing is taken for markup."""
    return re.sub(r"([\\`*<|]|(?<=\])\()", r"\\\1", " ".join(text.split()))


def to_csv(findings: Findings) -> str:
    """Return a line for each run; a text that a spreadsheet would compute has an apostrophe before it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in findings.results:
        for fate in result.arm.fates:
            run = fate.run
            words = [result.arm.label, run.task, run.seed, run.status, fate.score is not None]
            figures = [fate.score, run.env_steps, run.updates, run.seconds]
            writer.writerow([_harmless(value) for value in (*words, *figures, fate.why_not, str(run.path))])
    return text.getvalue()


def _harmless(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def counts(arm: Arm) -> str:
    """Return how many runs of an arm count, and what became of the others."""
    here = sum(fate.score is not None for fate in arm.fates)
    statuses = Counter(fate.run.status for fate in arm.fates if fate.score is None)
    text = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    return f"{here} of {len(arm.fates)} ({text})" if statuses else str(here)


def _seed(run: Run) -> str:
    return NONE if run.seed is None else str(run.seed)


def _machine(run: Run) -> tuple[str, str, str, str]:
    about = run.circumstances
    versions = ", ".join(f"{name} {shown(about[name])}" for name in ("rlrun", "torch", "python") if about.get(name))
    processor = about.get("cpu") or about.get("platform") or NONE
    device = " ".join(shown(about[name]) for name in ("device", "gpu") if about.get(name))
    return shown(about.get("host") or NONE), shown(processor), device or NONE, versions
