"""One HTML page: no script, nothing from a network, light or dark as the reader's system is, legible on a phone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape
from pathlib import Path
from urllib.parse import quote

from rlrun import __version__
from rlrun.files import counted
from rlrun.reporting import tables
from rlrun.reporting.figures import Drawing
from rlrun.reporting.findings import Comparison, Findings
from rlrun.reporting.plotting import DARK, LIGHT, Theme, rules
from rlrun.reporting.tables import Cell, Table
from rlrun.reporting.wording import chance, interval

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
VERDICTS = 6  # at the top, at most
LONG = 36  # letters from which a cell may be broken
SAFE = "default-src 'none'; style-src 'unsafe-inline'"  # the browser itself sees to it that nothing is loaded
METHOD = """\
<p>A run's <b>score</b> is the last value of <code>{metric}</code> of a completed run. Nothing is imputed for a run that
failed or is missing.</p>
<p><b>IQM</b>, the interquartile mean, is the mean of the middle half of the scores of all runs on all tasks; with
fewer than four scores it is the mean. <b>Mean</b>: over tasks, of the mean over runs. <b>Performance profile</b>: the
share of runs above τ. <b>Probability of improvement</b>: that a run of the one arm scores higher
than a run of the other on the same task, ties counting half, on average over tasks. All are defined as in Agarwal et
al. (2021), “Deep Reinforcement Learning at the Edge of the Statistical Precipice”, and equal to the numbers of its
library rliable.</p>
<p><b>Intervals</b> hold the middle 95 % of {resamples} resamples of the stratified bootstrap ({bands} for curves and
profiles): runs are drawn again within each task, seed {seed}. They tell how sure the number is over seeds, not over
other tasks. Those of curves and profiles hold at each point by itself, not for the whole line.</p>
<p><b>Verdict.</b> Two arms are told apart only if the 95 % interval of the difference of their IQMs excludes 0, and
besides a permutation test of that difference, which shuffles runs between the two arms within each task, gives
p &lt; 0.05 after Holm's correction for {family} of arms. Otherwise they are <b>not distinguishable</b> by these runs,
which does not mean that they are equal. Intervals are not corrected for the number of comparisons; p is. The difference
of IQMs is of the arms' typical runs: where one arm fails on a few seeds only, look at mean and profile.</p>
<p><b>Curves</b> have the runs that were measured, also those that failed later or go on still; between measurements of
a run they are straight, and no run is drawn beyond its last one. Where the number of runs changes, a strip below
shows it.</p>
<p><b>Arms</b> are runs of the same words, whatever their seed, environment, budget,
evaluation, logging and machine.</p>
"""


def page(findings: Findings, drawings: Iterable[Drawing], notes: Iterable[str], folder: Path) -> str:
    """Return the page.

    Args:
        findings: all numbers.
        drawings: the figures.
        notes: what to know before.
        folder: in which the page will lie; links lead from there.
    """
    title = escape(findings.options.title)
    sections = [
        _section("In short", _verdicts(findings)),
        _section("Before using these numbers", _listed(notes)),
        _section("Final scores", _table(tables.finals(findings), folder) if findings.common else ""),
        _section("Curves and comparisons", _figures(drawings)),
        _section("Comparisons", _table(tables.comparisons(findings), folder)),
        _section("Final scores by task", _table(tables.by_task(findings), folder) if findings.apart else ""),
        _section("Runs that do not count", _table(tables.left_out(findings), folder)),
        _section("What differs between the arms", _table(tables.differing(findings), folder)),
        _section("Machines and speed", _table(tables.machines(findings), folder)),
        _section("All runs", _table(tables.all_runs(findings), folder)),
        _section("How this was computed", _method(findings)),
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(SAFE)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>\n:root{{color-scheme:light dark;{_variables(LIGHT)}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}\n{STYLE}{rules()}</style>\n</head>\n"
        f"<body>\n<header>\n<h1>{title}</h1>\n{_overview(findings)}</header>\n<main>\n{''.join(sections)}</main>\n"
        f'<footer class="faint"><p>Made by <code>rlrun report</code>, rlrun {__version__}.</p></footer>\n'
        "</body>\n</html>\n"
    )


def _variables(theme: Theme) -> str:
    plain = "".join(f"--{name}:{theme[name]};" for name in ("paper", "ink", "faint", "grid"))
    return plain + "".join(f"--hue{index}:{hue};" for index, hue in enumerate(theme["hues"]))


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}</section>\n" if content else ""


def _overview(findings: Findings) -> str:
    runs = sum(len(result.arm.fates) for result in findings.results)
    sizes = f"{counted(runs, 'run')}, {counted(len(findings.results), 'arm')}, {counted(len(findings.tasks), 'task')}"
    shared = f"; all with <code>{escape(' '.join(findings.words))}</code>" if findings.words else ""
    tasks = escape(", ".join(findings.tasks[:12]) + (" …" if len(findings.tasks) > 12 else ""))
    metric = escape(findings.options.metric)
    return f'<p class="faint">{sizes} ({tasks}){shared}. Scores are <code>{metric}</code>.</p>\n'


def _verdicts(findings: Findings) -> str:
    paragraphs = [_verdict(comparison) for comparison in findings.comparisons[:VERDICTS]]
    if len(findings.comparisons) > VERDICTS:
        apart = sum(comparison.distinguishable for comparison in findings.comparisons)
        paragraphs.append(
            f"<p>Of {len(findings.comparisons)} pairs {apart or 'none'} can be told apart; all are listed below.</p>\n"
        )
    if not paragraphs and findings.results and findings.results[0].aggregates:
        best = findings.results[0]
        text = f"<b>{escape(best.arm.label)}</b>: interquartile mean {interval(best.aggregates['iqm'])}."
        paragraphs = [f'<p class="verdict">{text}</p>\n']
    return "".join(paragraphs)


def _verdict(comparison: Comparison) -> str:
    numbers = f"IQM differs by {interval(comparison.difference)}, p = {chance(comparison.chance)}".replace("= <", "<")
    first, second = f"<b>{escape(comparison.one)}</b>", f"<b>{escape(comparison.other)}</b>"
    if not comparison.distinguishable:
        return f'<p class="verdict">{first} and {second}: not distinguishable ({numbers}).</p>\n'
    higher, lower = (first, second) if comparison.difference.value > 0 else (second, first)
    return f'<p class="verdict">{higher} scores higher than {lower} ({numbers}).</p>\n'


def _listed(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>\n" for text in texts)
    return f"<ul>\n{items}</ul>\n" if items else ""


def _figures(drawings: Iterable[Drawing]) -> str:
    figures = [
        f"<figure>\n<h3>{escape(drawing.figure.title)}</h3>\n{drawing.figure.svg(drawing.name, drawing.description)}"
        f"<figcaption>{escape(drawing.caption)}</figcaption>\n</figure>\n"
        for drawing in drawings
    ]
    return f'<div class="figures">\n{"".join(figures)}</div>\n' if figures else ""


def _table(table: Table, folder: Path) -> str:
    if not table.rows:
        return ""
    classes = ["" if index < table.words else ' class="n"' for index in range(len(table.head))]
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(table.head, classes, strict=True))
    rows = "".join(
        f"<tr>{''.join(_cell(cell, kind, folder) for cell, kind in zip(row, classes, strict=True))}</tr>\n"
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
    links = (f'<a href="{escape(_way(link.path, folder))}">{escape(link.text)}</a>' for link in cell)
    return f"<td{kind}>{' '.join(links)}</td>"


def _way(path: Path, folder: Path) -> str:
    """Return a link from a folder, in which no name can be taken for a scheme."""
    return "./" + quote(os.fsencode(os.path.relpath(path, folder).replace(os.sep, "/")))


def _method(findings: Findings) -> str:
    pairs, options = findings.pairs, findings.options
    return METHOD.format(
        metric=escape(options.metric),
        resamples=f"{options.resamples:,}",
        bands=f"{findings.band_resamples:,}",
        seed=options.seed,
        family=f"all {pairs:,} pairs" if pairs > 1 else "the one pair",
    )
