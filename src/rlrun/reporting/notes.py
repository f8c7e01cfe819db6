"""What to know before using the numbers of a report: who is missing, what is too little, what is not alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rlrun.files import counted
from rlrun.reporting.arms import Fate, missing_seeds, variations
from rlrun.reporting.findings import DRAWN, FEW, LEVEL, Findings
from rlrun.reporting.runs import PLAYED
from rlrun.reporting.wording import between, chance, number, whole

APART = 1.05  # budgets that differ by more are different
KEYS = 6  # named of those that differ


def notes(findings: Findings) -> list[str]:
    """Return them, what weighs most first."""
    lines = [*_left_out(findings), *_tasks(findings), *_few(findings), *_unlike(findings), *_scale(findings)]
    return [*lines, *findings.troubles]


def _left_out(findings: Findings) -> Iterator[str]:
    fates = [fate for result in findings.results for fate in result.arm.fates]
    if findings.options.metric == PLAYED:
        yield f"Scores are {PLAYED}: returns of episodes played in training, while exploring. No evaluation is shown."
    gone = Counter(_kind(fate) for fate in fates if fate.why_not is not None)
    if gone:
        kinds = ", ".join(f"{count} {kind}" for kind, count in gone.most_common())
        yield (
            f"{gone.total()} of {counted(len(fates), 'run')} {'does' if gone.total() == 1 else 'do'} not count in "
            f"scores: {kinds}. If that depends on the arm, the others flatter it."
        )
    for task in findings.tasks:
        for label, seeds in missing_seeds([result.arm for result in findings.results], task).items():
            named = ", ".join(map(str, seeds[:20])) + (" …" if len(seeds) > 20 else "")
            yield f"{label} has no run on {task} of seed {named}, which others have."


def _kind(fate: Fate) -> str:
    return "there twice" if fate.again else "without a score" if fate.run.status == "completed" else fate.run.status


def _tasks(findings: Findings) -> Iterator[str]:
    apart = [task for task in findings.tasks if task not in findings.common]
    if not findings.common:
        yield "There is no task on which every arm has a run that counts: nothing is aggregated or compared."
    elif apart:
        yield f"Aggregates and comparisons leave out {', '.join(apart)}: not every arm has runs there that count."
    if len(findings.common) > 1:
        uneven = [
            result.arm.label
            for result in findings.results
            if result.scores is not None and result.scores.counts.min() < result.scores.counts.max()
        ]
        if uneven:
            named = ", ".join(uneven[:DRAWN]) + (" …" if len(uneven) > DRAWN else "")
            yield f"Fewer runs on some tasks than on others: {named}. In IQMs and profiles these tasks weigh less."
    if len(findings.results) > DRAWN:
        yield (
            f"Figures and comparisons show the best {DRAWN} of {len(findings.results)} arms. They were chosen by the "
            "same scores that are shown, which flatters the best: repeat it with new seeds."
        )


def _few(findings: Findings) -> Iterator[str]:
    counts = {res.arm.label: int(res.scores.counts.min()) for res in findings.results if res.scores is not None}
    few = [f"{label} ({counted(count, 'run')})" for label, count in counts.items() if count < FEW]
    if few:
        named = ", ".join(few[:DRAWN]) + (" …" if len(few) > DRAWN else "")
        yield (
            f"Few seeds: {named}. Below {FEW} runs a task, percentile intervals are too narrow; one run has none. "
            "Run more seeds before deciding by these numbers."
        )
    hopeless = [comparison for comparison in findings.comparisons if comparison.least >= LEVEL]
    if hopeless:
        least = min(comparison.least for comparison in hopeless)
        yield (
            f"In {counted(len(hopeless), 'comparison')} no difference, however large, could be told from chance: the "
            f"smallest p that so few runs can reach is {chance(least)}, corrected for the number of comparisons."
        )


def _unlike(findings: Findings) -> Iterator[str]:
    for result in findings.results:
        differing = variations(result.arm)
        if differing:
            listed = "; ".join(f"{key}: {' | '.join(values[:4])}" for key, values in list(differing.items())[:KEYS])
            more = f" and {len(differing) - KEYS} more keys" if len(differing) > KEYS else ""
            yield f"Runs of {result.arm.label} on the same task have different configs: {listed}{more}."
    for task in findings.tasks:
        fates = [fate for result in findings.results for fate in result.arm.fates if fate.run.task == task]
        steps = [fate.run.steps for fate in fates if fate.score is not None]
        if steps and max(steps) > APART * min(steps):
            yield (
                f"On {task} runs that count have made {between(steps, whole)} steps: scores after "
                "different budgets are compared."
            )
    runs = [fate.run for result in findings.results for fate in result.arm.fates if fate.score is not None]
    for name, what in (("host", "machines"), ("rlrun", "versions of rlrun"), ("torch", "versions of torch")):
        if len({str(run.circumstances.get(name)) for run in runs}) > 1:
            yield f"Runs were made with different {what}; the table of machines says which."


def _scale(findings: Findings) -> Iterator[str]:
    if findings.bounds:
        ranges = "; ".join(f"{task}: {number(low)} to {number(high)}" for task, (low, high) in findings.bounds.items())
        chosen = all(task in findings.options.bounds for task in findings.bounds)
        how = "as was asked for" if chosen else "from the lowest to the highest value that any run shown here had"
        yield f"Normalised scores are 0 to 1 on each task, {how}: {ranges}. Intervals take these bounds as given."
