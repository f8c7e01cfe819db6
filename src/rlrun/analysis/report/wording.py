"""Format numbers and intervals, and warn where the numbers of a report may mislead."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from rlrun.analysis.report.findings import DRAWN, Findings
from rlrun.analysis.report.groups import NONE, cut
from rlrun.analysis.report.runs import PLAYED
from rlrun.analysis.report.statistics import Interval
from rlrun.core.files import counted

FEW = 5  # runs; with fewer, percentile intervals are too narrow
APART = 1.05  # budgets count as different above this ratio
KEYS = 6  # most differing keys that are named


def number(value: float | None, size: float | None = None) -> str:
    """Return a number with three to five significant digits.

    size: of the largest of several numbers that get the same number of decimals.
    """
    if value is None or not math.isfinite(value):
        return NONE
    size = round(abs(value) if size is None else size, 3)
    if size >= 1e7 or (size == 0 and value != 0):
        text = f"{value:.3g}"
    else:
        text = f"{value:,.{0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3}f}"
    return text.replace("-", "−").replace("e+", "e")


def interval(estimate: Interval) -> str:
    """Return `12.3 [10.1, 14.0]`, or `12.3 (no interval)`."""
    if not math.isfinite(estimate.low):
        return f"{number(estimate.value)} (no interval)"
    size = max(map(abs, estimate))
    value, low, high = (number(part, size) for part in estimate)
    return f"{value} [{low}, {high}]"


def whole(value: float) -> str:
    """Return a count with separated thousands."""
    return f"{value:,.0f}" if abs(value) < 1e15 else number(value)


def between(values: Iterable[float], write: Callable[[float], str]) -> str:
    """Return a range such as `2,900 to 3,100`; a single number if the shown digits are the same."""
    known = sorted(values)
    return " to ".join(dict.fromkeys(write(value) for value in (known[0], known[-1]))) if known else NONE


def chance(p: float) -> str:
    """Return a p value."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def listed(names: Sequence[str], most: int) -> str:
    """Return up to `most` names, separated by commas."""
    return ", ".join(names[:most]) + (" …" if len(names) > most else "")


def notes(findings: Findings) -> list[str]:
    """Return warnings about the numbers, the most important first."""
    lines = [*_left_out(findings), *_tasks(findings), *_few(findings), *_unlike(findings), *_scale(findings)]
    return [*lines, *findings.troubles]


def _left_out(findings: Findings) -> Iterator[str]:
    if findings.options.metric == PLAYED:
        yield f"Scores are {PLAYED}: returns of episodes played in training, while exploring. No evaluation is shown."
    without = {"completed": "without a score"}
    unused = Counter(
        "there twice" if fate.again else without.get(fate.run.status, fate.run.status)
        for fate in findings.fates
        if fate.why_not is not None
    )
    if unused:
        kinds = ", ".join(f"{count} {kind}" for kind, count in unused.most_common())
        yield (
            f"{unused.total()} of {counted(len(findings.fates), 'run')} {'does' if unused.total() == 1 else 'do'} not "
            f"count in scores: {kinds}. If that depends on the group, its scores are biased."
        )
    for task in findings.tasks:
        runs = [(fate.group, fate.run.seed) for fate in findings.fates if fate.run.task == task]
        seeds = {seed for _, seed in runs if seed is not None}
        for label in dict.fromkeys(label for label, seed in runs if seed is not None):
            missing = sorted(seeds.difference(seed for group, seed in runs if group == label))
            if missing:
                yield f"{label} has no run on {task} of seed {listed([*map(str, missing)], 20)}, which others have."


def _tasks(findings: Findings) -> Iterator[str]:
    uncommon = [task for task in findings.tasks if task not in findings.common]
    if not findings.common:
        yield "There is no task on which every group has a run that counts: nothing is aggregated or compared."
    elif uncommon:
        yield f"Aggregates and comparisons leave out {', '.join(uncommon)}: not every group has runs there that count."
    counts = {res.group.label: res.scores.counts for res in findings.results if res.scores is not None}
    uneven = [label for label, runs in counts.items() if runs.min() < runs.max()]
    if uneven:
        named = listed(uneven, DRAWN)
        yield f"Fewer runs on some tasks than on others: {named}. In IQMs and profiles these tasks weigh less."
    if len(findings.results) > DRAWN:
        yield (
            f"Figures and comparisons show the best {DRAWN} of {len(findings.results)} groups. They were chosen by the "
            "same scores that are shown, which overrates the best: repeat it with new seeds."
        )


def _few(findings: Findings) -> Iterator[str]:
    counts = {res.group.label: int(res.scores.counts.min()) for res in findings.results if res.scores is not None}
    few = [f"{label} ({counted(count, 'run')})" for label, count in counts.items() if count < FEW]
    if few:
        yield (
            f"Few seeds: {listed(few, DRAWN)}. Below {FEW} runs a task, percentile intervals are too narrow; one run "
            "has none. Run more seeds before deciding by these numbers."
        )


def _unlike(findings: Findings) -> Iterator[str]:
    for group in (result.group for result in findings.results):
        differing = {
            key: sorted(set().union(*tasks.values()))
            for key, tasks in group.values().items()
            if any(len(texts) > 1 for texts in tasks.values())
        }
        if differing:
            keys = [f"{key}: {' | '.join(map(cut, texts[:4]))}" for key, texts in differing.items()]
            more = f" and {len(keys) - KEYS} more keys" if len(keys) > KEYS else ""
            yield f"Runs of {group.label} on the same task have different configs: {'; '.join(keys[:KEYS])}{more}."
    runs = [fate.run for fate in findings.fates if fate.score is not None]
    for task in findings.tasks:
        steps = [run.steps for run in runs if run.task == task]
        if steps and max(steps) > APART * min(steps):
            yield (
                f"On {task} runs that count have made {between(steps, whole)} steps: scores after "
                "different budgets are compared."
            )
    for name, noun in (("host", "machines"), ("rlrun", "versions of rlrun"), ("torch", "versions of torch")):
        values = sorted({cut(str(run.circumstances.get(name))) for run in runs})
        if len(values) > 1:
            yield f"Runs that count were made with different {noun}: {listed(values, DRAWN)}."


def _scale(findings: Findings) -> Iterator[str]:
    if findings.bounds:
        ranges = "; ".join(f"{task}: {number(low)} to {number(high)}" for task, (low, high) in findings.bounds.items())
        chosen = all(task in findings.options.bounds for task in findings.bounds)
        method = "as was asked for" if chosen else "from the lowest to the highest value that any run shown here had"
        yield f"Normalized scores are 0 to 1 on each task, {method}: {ranges}. Intervals take these bounds as given."
