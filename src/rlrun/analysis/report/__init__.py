"""One page about many runs: scores, their uncertainty, and missing runs; equivalent to `rlrun report`.

runs.py          reads the files of runs and sweeps
groups.py        groups of runs, and the config keys in which they differ
statistics.py    rliable's aggregates and intervals, in numpy
findings.py      all numbers of a report
wording.py       formats numbers, and warns where they may mislead
figures.py       SVG
page.py          tables as HTML, Markdown and CSV, and the page
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.analysis.report.figures import draw, renderer
from rlrun.analysis.report.findings import Findings, ReportOptions, find
from rlrun.analysis.report.groups import groups_of
from rlrun.analysis.report.page import page, to_csv, to_markdown
from rlrun.analysis.report.runs import EVALUATED, PLAYED, Run, add_jobs, gather
from rlrun.analysis.report.wording import interval, notes
from rlrun.core.errors import RequestError, RunDirError, did_you_mean, printable
from rlrun.core.files import counted, place_of, reason, replace, require_writable
from rlrun.runs.progress import VALIDATION, judged, progress

RESAMPLES = 10_000
FEWEST, MOST = 100, 1_000_000  # limits of the number of resamples
ASKED = 20  # number of runs whose metric names are read for a suggestion
Place = Path | str


@dataclass(frozen=True)
class Report:
    """A written report.

    Attributes:
        path: of the page.
        findings: all its numbers.
        markdown: its tables.
        csv: a line for each run.
    """

    path: Path
    findings: Findings
    markdown: str
    csv: str

    @property
    def verdict(self) -> str:
        """One line with the best group, and the number of pairs that can be distinguished."""
        best = next((result for result in self.findings.results if result.aggregates), None)
        if best is None:
            scored = any(result.tasks for result in self.findings.results)
            return "no task is common to all groups: nothing is compared" if scored else "no run has a score"
        pairs, mean = self.findings.comparisons, interval(best.aggregates["iqm"])
        share = f"; {sum(pair.distinguishable for pair in pairs)} of {counted(len(pairs), 'pair')} can be distinguished"
        lower = " (lower is better)" if self.findings.options.lower else ""
        return printable(f"{best.group.label}: interquartile mean {mean}{lower}") + (share if pairs else "")

    def to_json(self) -> dict[str, Any]:
        """Return the object that `rlrun report --json` prints: groups, runs and comparisons with their numbers."""
        findings = self.findings
        groups = [
            {
                "group": result.group.label,
                "aggregates": {name: value._asdict() for name, value in result.aggregates.items()},
                "tasks": {
                    task: {"scores": scores.values.tolist(), "iqm": iqm._asdict(), "mean": mean._asdict()}
                    for task, (scores, iqm, mean) in result.tasks.items()
                },
            }
            for result in findings.results
        ]
        runs = [
            {
                **{name: getattr(fate, name) for name in ("group", "score", "why_not")},
                **{name: getattr(fate.run, name) for name in ("task", "seed", "status")},
                "path": str(fate.run.path),
            }
            for fate in findings.fates
        ]
        pairs = [
            {
                **{name: getattr(pair, name) for name in ("first", "second", "verdict")},
                "difference": pair.difference._asdict(),
                "improvement": pair.improvement._asdict(),
                "p": pair.chance,
            }
            for pair in findings.comparisons
        ]
        about = {"path": str(self.path), "verdict": self.verdict, "metric": findings.options.metric}
        return {**about, "groups": groups, "runs": runs, "comparisons": pairs, "troubles": findings.troubles}


def report(
    *folders: Place,
    out: Place | None = None,
    metric: str | None = None,
    by: Iterable[str] = (),
    bounds: Mapping[str, tuple[float, float]] | None = None,
    title: str | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
    csv: Place | None = None,
    markdown: Place | None = None,
    svg: Place | None = None,
    png: Place | None = None,
) -> Report:
    """Write one page about the runs in some folders and their subfolders.

    Args:
        folders: run folders, sweep folders, or folders that contain these.
        out: file of the page; None = `report.html` in the working directory.
        metric: its last value is a run's score; None = `evaluation/mean_return`, or `episode/return` if no run was
            evaluated, or the objective of a validation if no run has returns.
        by: config keys whose values define a group, or `folder`; empty = all overrides except seed and environment.
        bounds: task -> scores that count as 0 and 1; by default the measured extremes.
        title: of the page.
        seed: of bootstrap and permutation tests.
        resamples: number of resamples of these.
        csv: file with one line for each run.
        markdown: file for the tables.
        svg: folder for the figures.
        png: folder for the figures as PNG (extra: plots).

    Raises:
        RequestError: there is no run, or an option is wrong; nothing was written.
        RlrunError: a file cannot be written.
    """
    places = [_folder(folder) for folder in folders]
    name = title or ", ".join(place.name or str(place) for place in places)
    pixels = None if png is None else renderer()
    findings = _findings(places, ReportOptions(name, metric or "", resamples, seed, bounds or {}), list(by))
    figures, caveats = list(draw(findings)), notes(findings)
    path = place_of("report.html" if out is None else out)
    result = Report(path, findings, _printable(to_markdown(findings, caveats)), _printable(to_csv(findings)))
    texts = {path: _printable(page(findings, figures, caveats, path.parent))}
    texts |= {place_of(place): text for place, text in ((csv, result.csv), (markdown, result.markdown)) if place}
    if svg is not None:
        texts |= {place_of(svg) / f"{plot.name}.svg": _printable(plot.svg(alone=True)) for plot in figures}
    files = {place: text.encode() for place, text in texts.items()}
    if png is not None and pixels is not None:
        files |= {place_of(png) / f"{plot.name}.png": pixels(plot.svg(alone=True)) for plot in figures}
    for place, data in files.items():
        _write(place, data)
    return result


def _findings(places: Sequence[Path], options: ReportOptions, by: list[str]) -> Findings:
    """Return all numbers; if `options` names no metric, one that the runs have is chosen.

    Raises:
        RequestError: there is no run, or an option is wrong.
    """
    metric, resamples, seed = options.metric, options.resamples, options.seed
    if not places:
        raise RequestError("report: name a folder of runs")
    if not FEWEST <= resamples <= MOST:
        raise RequestError(f"--resamples {resamples}: wanted a number from {FEWEST} to {MOST:,}")
    if not 0 <= seed < 1 << 32:
        raise RequestError(f"--seed {seed}: wanted a number from 0 to {(1 << 32) - 1:,}")
    runs, troubles = add_jobs(gather(places, (metric,) if metric else (EVALUATED, PLAYED)), places)
    if not runs:
        raise RunDirError(f"{', '.join(map(str, places))}: there is no run here or below; rlrun ls lists runs")
    if metric and not _measured(runs, metric):
        raise RequestError(f"--metric {metric}: no run has a value of it{_near(metric, runs)}")
    if not metric and not any(run.curves for run in runs) and (name := _validated(runs)):
        return _findings(places, options._replace(metric=name), by)
    metric = metric or (PLAYED if not _measured(runs, EVALUATED) and _measured(runs, PLAYED) else EVALUATED)
    tasks = {run.task for run in runs}
    for task, (low, high) in options.bounds.items():
        if task not in tasks:
            raise RequestError(f"--bounds {task}: no run is on this task{did_you_mean(task, tasks)}")
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise RequestError(f"--bounds {task}={low:g},{high:g}: wanted two finite numbers, the lower one first")
    groups, overrides = groups_of(runs, metric, by)
    lower = any(_minimized(run, metric) for run in runs)
    return find(groups, options._replace(metric=metric, lower=lower), overrides, troubles)


def _printable(text: str) -> str:
    """Replace control characters in a text, except line ends; names of files and overrides may contain any."""
    return "\n".join(map(printable, text.split("\n")))


def _write(place: Path, data: bytes) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"{place.parent} cannot be made: {reason(error)}") from error
    require_writable(place.parent)
    replace(place, data)


def _folder(folder: Place) -> Path:
    place = place_of(folder)
    if not place.is_dir():
        raise RunDirError(f"{place} does not exist" if not place.exists() else f"{place} is a file, not a run folder")
    return place


def _measured(runs: Iterable[Run], metric: str) -> bool:
    return any(metric in run.curves for run in runs)


def _validated(runs: Iterable[Run]) -> str | None:
    """Return the objective of the first run that was judged by held-out data."""
    return next(filter(None, (judged(progress(run.path / "metrics.jsonl")) for run in runs)), None)


def _minimized(run: Run, metric: str) -> bool:
    """Return True if a run's objective is this metric, and smaller values are better."""
    objective, direction = (run.settings.get(f"callbacks.validation.{name}") for name in ("objective", "direction"))
    return direction == "minimize" and metric == f"{VALIDATION}{objective}"


def _near(metric: str, runs: list[Run]) -> str:
    names = {name for run in runs[:ASKED] for name in progress(run.path / "metrics.jsonl") if "/" in name}
    return did_you_mean(metric, names) or (f"; there are {', '.join(sorted(names))}" if names else "")
