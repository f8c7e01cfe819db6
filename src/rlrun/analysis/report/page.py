"""The page of a report, and its tables as HTML, Markdown and CSV.

The page has no scripts and needs no network. It follows the reader's light or dark mode and is legible on a phone.
"""

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeAlias
from urllib.parse import quote

from rlrun.analysis.report import figures
from rlrun.analysis.report.figures import Figure
from rlrun.analysis.report.findings import Comparison, Findings
from rlrun.analysis.report.groups import NONE, Group
from rlrun.analysis.report.runs import Run
from rlrun.analysis.report.wording import between, chance, interval, listed, number, whole
from rlrun.core.files import counted
from rlrun.core.version import VERSION

RUNS = 3_000  # most rows of a table
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # spreadsheets evaluate cells that begin with one of these
COLUMNS = ("group", "task", "seed", "status", "counts", "score", "env_steps", "updates", "seconds", "why_not", "run")
VERDICTS = 6  # most verdicts at the top of the page
LONG = 36  # letters from which a cell may be wrapped
SAFE = "default-src 'none'; style-src 'unsafe-inline'"  # content security policy: the browser loads nothing
STYLE = """\
*{box-sizing:border-box}
body{margin:0 auto;max-width:1080px;padding:16px;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,"DejaVu Sans","Liberation Sans",Arial,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}
h2{font-size:1.15rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--grid);padding-bottom:.25rem}
p,ul{margin:.5rem 0}
ul{padding-left:1.25rem}
figcaption{margin-top:.25rem}
.faint,figcaption{color:var(--faint);font-size:.875rem}
.verdict{border-left:4px solid var(--hue0);padding:.25rem .75rem;margin:.5rem 0}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr));gap:1.25rem;align-items:start}
figure{margin:0;min-width:0;max-width:560px}
figure h3{font-size:1rem;margin:0 0 .25rem}
svg.figure{display:block;width:100%;height:auto}
.scroll{overflow-x:auto;margin:.5rem 0}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .6rem;border-bottom:1px solid var(--grid);text-align:left;vertical-align:top;
white-space:nowrap;overflow-wrap:normal}
td.long{white-space:normal;min-width:14rem;overflow-wrap:anywhere}
td.n,th.n{text-align:right}
th{color:var(--faint);font-weight:600}
a{color:var(--hue0)}
a:focus-visible,.scroll:focus-visible,summary:focus-visible{outline:2px solid var(--hue0);outline-offset:2px}
code{font-family:ui-monospace,"DejaVu Sans Mono",monospace;font-size:.9em}
@media print{body{max-width:none}.scroll{overflow:visible}details>*{display:block}}
"""
METHOD = """\
<p>A run's <b>score</b> is the last value of <code>{metric}</code> of a completed run. Nothing is imputed for a run that
failed or is missing.</p>
<p><b>IQM</b>, the interquartile mean, is the mean of the middle half of the scores of all runs on all tasks; with
fewer than four scores it is the mean. <b>Mean</b>: over tasks, of the mean over runs. <b>Performance profile</b>: the
share of runs {side} τ. <b>Probability of improvement</b>: that a run of the one group scores {better}
than a run of the other on the same task, ties counting half, on average over tasks. All are defined as in Agarwal et
al. (2021), “Deep Reinforcement Learning at the Edge of the Statistical Precipice”, and equal to the numbers of its
library rliable.</p>
<p><b>Intervals</b> hold the middle 95 % of {resamples} resamples of the stratified bootstrap ({bands} for curves and
profiles): runs are drawn again within each task, seed {seed}. They say how sure the number is over seeds, not over
other tasks. Those of curves and profiles hold at each point by itself, not for the whole line.</p>
<p><b>Verdict.</b> Two groups are distinguished only if the 95 % interval of the difference of their IQMs excludes 0,
and besides a permutation test of that difference, which shuffles runs between the two groups within each task, gives
p &lt; 0.05 after Holm's correction for {family} of groups. Otherwise they are <b>not distinguishable</b> by these runs,
which does not mean that they are equal. Intervals are not corrected for the number of comparisons; p is. The difference
of IQMs is of the groups' typical runs: where one group fails on a few seeds only, look at mean and profile.</p>
<p><b>Curves</b> have the runs that were measured, also those that failed later or still run; between measurements of
a run they are straight, and no run is drawn beyond its last one. Where the number of runs changes, a strip below
shows it.</p>
<p><b>Groups</b> are runs of the same overrides, whatever their seed, environment, budget,
evaluation, logging and machine.</p>
"""


class Hyperlink(NamedTuple):
    """A text that links to a file."""

    text: str
    path: Path


Cell: TypeAlias = str | tuple[Hyperlink, ...]


class ReportTable(NamedTuple):
    """A table of texts."""

    title: str  # heading
    head: list[str]  # names of the columns
    rows: Sequence[Sequence[Cell]]  # each as long as the head
    text_columns: int  # number of first columns with text; the others have numbers


def finals(findings: Findings) -> ReportTable:
    """Return the table of final scores of each group, aggregated over the common tasks."""
    names = {"iqm": "IQM [95 %]", "mean": "mean [95 %]", "median": "median [95 %]", "optimality_gap": "gap to 1 [95 %]"}
    wanted = [name for name in names if any(name in res.aggregates for res in findings.results)]
    rows: list[list[Cell]] = []
    for res in findings.results:
        estimates = [interval(res.aggregates[name]) if name in res.aggregates else NONE for name in wanted]
        runs = [fate.run for fate in res.group.fates if fate.score is not None]
        speeds = [run.speed for run in runs if run.speed is not None]
        columns = between((run.steps for run in runs), whole), number(median(speeds) if speeds else None)
        rows.append([res.group.label, _counts(res.group), *estimates, *columns])
    head = ["group", "runs that count", *(names[name] for name in wanted), "steps", "steps/s"]
    return ReportTable("Final scores" + (", normalized" if findings.bounds else ""), head, rows, 2)


def by_task(findings: Findings) -> ReportTable:
    """Return the table of final scores of each group on each task, without normalization."""
    rows: list[list[Cell]] = []
    for task in findings.tasks:
        for label, tasks in ((result.group.label, result.tasks) for result in findings.results):
            if task in tasks:
                scores, iqm, mean = tasks[task]
                ends = [number(scores.values.min()), number(scores.values.max())]
                rows.append([task, label, str(len(scores.values)), interval(iqm), interval(mean), *ends])
    head = ["task", "group", "runs", "IQM [95 %]", "mean [95 %]", "lowest", "highest"]
    return ReportTable("Final scores by task", head, rows, 2)


def comparisons(findings: Findings) -> ReportTable:
    """Return the table of pairs of groups with verdicts."""
    rows = []
    for pair in findings.comparisons:
        numbers = [interval(pair.difference), interval(pair.improvement), chance(pair.chance)]
        rows.append([f"{pair.first} − {pair.second}", pair.verdict, *numbers])
    sign = "<" if findings.options.lower else ">"
    head = ["first − second", "verdict", "difference of IQM [95 %]", f"P(first {sign} second) [95 %]", "p, corrected"]
    return ReportTable("Comparisons", head, rows, 2)


def left_out(findings: Findings) -> ReportTable:
    """Return the table of runs that do not count, with reasons."""
    rows = [
        [fate.group, fate.run.task, _seed(fate.run), fate.run.status, fate.why_not, fate.run.path.name]
        for fate in findings.fates
        if fate.why_not is not None
    ]
    return ReportTable("Runs that do not count", ["group", "task", "seed", "status", "why", "run"], rows[:RUNS], 6)


def differing(findings: Findings) -> ReportTable:
    """Return the table of config keys in which groups differ."""
    head = ["key", *(result.group.label for result in findings.drawn)]
    return ReportTable(
        "Differences of config", head, [[key, *cells] for key, cells in findings.differing.items()], len(head)
    )


def all_runs(findings: Findings) -> ReportTable:
    """Return the table of all runs, with links to their videos."""
    rows: list[list[Cell]] = []
    for fate in findings.fates[:RUNS]:
        run = fate.run
        name: Cell = (Hyperlink(run.path.name, run.path),) if run.circumstances else run.path.name
        videos = tuple(Hyperlink(path.stem, path) for path in run.videos[-3:])
        numbers = [number(fate.score), whole(run.steps), number(run.seconds)]
        rows.append([fate.group, run.task, _seed(run), run.status, name, videos, *numbers])
    head = ["group", "task", "seed", "status", "run", "videos", "score", "steps", "seconds"]
    return ReportTable("All runs", head, rows, 6)


def to_markdown(findings: Findings, notes: Iterable[str]) -> str:
    """Return the tables of results and the notes as Markdown."""
    several = [by_task(findings)] if findings.apart else []
    parts = []
    for table in (finals(findings), comparisons(findings), *several, left_out(findings)):
        rule = ["---" if index < table.text_columns else "---:" for index in range(len(table.head))]
        rows = [f"| {' | '.join(map(_bare, row))} |" for row in (table.head, rule, *table.rows)]
        parts += ["\n".join([f"**{table.title}**\n", *rows])] if table.rows else []
    caveats = "\n".join(f"* {_bare(note)}" for note in notes)
    return "\n\n".join([*parts, *filter(None, [caveats])]) + "\n"


def _bare(cell: Cell) -> str:
    """Return a cell as Markdown, with markup escaped."""
    text = cell if isinstance(cell, str) else ", ".join(link.text for link in cell)
    return re.sub(r"([\\`*<|]|(?<=\])\()", r"\\\1", " ".join(text.split()))


def to_csv(findings: Findings) -> str:
    """Return a line for each run; an apostrophe precedes texts that a spreadsheet would evaluate as formulas."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for fate in findings.fates:
        run = fate.run
        overrides = [fate.group, run.task, run.seed, run.status, fate.score is not None]
        row = [*overrides, fate.score, run.env_steps, run.updates, run.seconds, fate.why_not, str(run.path)]
        writer.writerow([f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell for cell in row])
    return text.getvalue()


def _counts(group: Group) -> str:
    """Return the number of runs of a group that count, and the statuses of the others."""
    statuses = Counter(fate.run.status for fate in group.fates if fate.score is None)
    counting = len(group.fates) - statuses.total()
    text = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    return f"{counting} of {len(group.fates)} ({text})" if statuses else str(counting)


def _seed(run: Run) -> str:
    return NONE if run.seed is None else str(run.seed)


def page(findings: Findings, drawings: Iterable[Figure], notes: Iterable[str], folder: Path) -> str:
    """Return the page as HTML.

    Args:
        findings: all numbers.
        drawings: the figures.
        notes: warnings about the numbers.
        folder: of the page; links are relative to it.
    """
    title = escape(findings.options.title)
    caveats = "".join(f"<li>{escape(note)}</li>\n" for note in notes)
    sections = {
        "In short": _verdicts(findings),
        "Before using these numbers": caveats and f"<ul>\n{caveats}</ul>\n",
        "Final scores": _table(finals(findings), folder) if findings.common else "",
        "Curves and comparisons": _figures(drawings),
        "Comparisons": _table(comparisons(findings), folder),
        "Final scores by task": _table(by_task(findings), folder) if findings.apart else "",
        "Runs that do not count": _table(left_out(findings), folder),
        "What differs between the groups": _table(differing(findings), folder),
        "All runs": _table(all_runs(findings), folder),
        "How this was computed": _method(findings),
    }
    light, dark = ("".join(f"--{name}:{pair[theme]};" for name, pair in figures.COLORS.items()) for theme in range(2))
    main = "".join(f"<section>\n<h2>{name}</h2>\n{text}</section>\n" for name, text in sections.items() if text)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(SAFE)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>\n:root{{color-scheme:light dark;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{STYLE}{figures.STYLE}</style>\n</head>\n"
        f"<body>\n<header>\n<h1>{title}</h1>\n{_overview(findings)}</header>\n<main>\n{main}</main>\n"
        f'<footer class="faint"><p>Made by <code>rlrun report</code>, rlrun {VERSION}.</p></footer>\n'
        "</body>\n</html>\n"
    )


def _overview(findings: Findings) -> str:
    counts = {"run": len(findings.fates), "group": len(findings.results), "task": len(findings.tasks)}
    sizes = ", ".join(counted(count, noun) for noun, count in counts.items())
    shared = f"; all with <code>{escape(' '.join(findings.overrides))}</code>" if findings.overrides else ""
    tasks, metric = escape(listed(findings.tasks, 12)), escape(findings.options.metric)
    lower = "; lower is better" if findings.options.lower else ""
    return f'<p class="faint">{sizes} ({tasks}){shared}. Scores are <code>{metric}</code>{lower}.</p>\n'


def _verdicts(findings: Findings) -> str:
    pairs, best = findings.comparisons, findings.results[0]
    paragraphs = [_verdict(pair) for pair in pairs[:VERDICTS]]
    if not pairs and best.aggregates:
        text = f"<b>{escape(best.group.label)}</b>: interquartile mean {interval(best.aggregates['iqm'])}."
        paragraphs = [f'<p class="verdict">{text}</p>\n']
    if len(pairs) > VERDICTS:
        distinct = sum(pair.distinguishable for pair in pairs) or "none"
        paragraphs.append(f"<p>Of {len(pairs)} pairs {distinct} can be distinguished; all are listed below.</p>\n")
    return "".join(paragraphs)


def _verdict(pair: Comparison) -> str:
    numbers = f"IQM differs by {interval(pair.difference)}, p = {chance(pair.chance)}".replace("= <", "<")
    first, second = f"<b>{escape(pair.first)}</b>", f"<b>{escape(pair.second)}</b>"
    text = f"{first} and {second}: not distinguishable"
    if pair.distinguishable:
        better, worse = map(escape, pair.order)
        text = f"<b>{better}</b> scores {pair.better} than <b>{worse}</b>"
    return f'<p class="verdict">{text} ({numbers}).</p>\n'


def _figures(drawings: Iterable[Figure]) -> str:
    parts = "".join(
        f"<figure>\n<h3>{escape(figure.title)}</h3>\n{figure.svg()}"
        f"<figcaption>{escape(figure.caption)}</figcaption>\n</figure>\n"
        for figure in drawings
    )
    return parts and f'<div class="figures">\n{parts}</div>\n'


def _table(table: ReportTable, folder: Path) -> str:
    if not table.rows:
        return ""
    kinds = ["" if index < table.text_columns else ' class="n"' for index in range(len(table.head))]
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(table.head, kinds, strict=True))
    rows = "".join(
        f"<tr>{''.join(_cell(cell, kind, folder) for cell, kind in zip(row, kinds, strict=True))}</tr>\n"
        for row in table.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">\n'
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n"
    )


def _cell(cell: Cell, kind: str, folder: Path) -> str:
    if isinstance(cell, str):
        kind = kind or (' class="long"' if len(cell) > LONG else "")
        return f"<td{kind}>{escape(cell)}</td>"
    # `./` prevents a name with a colon from being parsed as a URL scheme
    paths = ("./" + quote(os.fsencode(os.path.relpath(link.path, folder).replace(os.sep, "/"))) for link in cell)
    links = (f'<a href="{escape(path)}">{escape(link.text)}</a>' for path, link in zip(paths, cell, strict=True))
    return f"<td{kind}>{' '.join(links)}</td>"


def _method(findings: Findings) -> str:
    pairs, options = findings.pairs, findings.options
    return METHOD.format(
        metric=escape(options.metric),
        better=options.better,
        side="below" if options.lower else "above",
        resamples=f"{options.resamples:,}",
        bands=f"{options.band_resamples:,}",
        seed=options.seed,
        family=f"all {pairs:,} pairs" if pairs > 1 else "the one pair",
    )
