"""Sections of the page of results about what runs learn and whether they survive."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from benchmarks.claims_of_pixels import ENOUGH, GAIN, GOOD, PLAIN, met, scores
from benchmarks.tables import Lines, table, verdict


def measured(part: dict[str, Any]) -> str:
    """Return when and on which processor a part of a result was measured; parts differ in both."""
    return f"{part['machine']['date']}, {part['machine']['processor']}"


def learning(result: dict[str, Any]) -> Lines:
    """Returns and answers that runs learn."""
    heads = ["run", "what", "bar", "seeds", "met in", "values", "seconds", "measured"]
    rows = []
    for name, claim in result.items():
        runs = claim["runs"]
        values = ", ".join(map(_learned, runs))
        bar = f"{'≤' if claim['at_most'] else '≥'} {claim['bar']:g}, {claim['enough']}: {verdict(claim)}"
        seeds = ", ".join(str(run["seed"]) for run in runs)
        seconds = sum(run["wall_seconds"] for run in runs) / len(runs)
        rows.append([name, claim["unit"], bar, seeds, claim["held"], values, f"{seconds:.0f}", measured(claim)])
    overrides = [f"* {name}: `{' '.join(claim['words'])}`" for name, claim in result.items()]
    return [*table(heads, rows), "", *overrides, *_pixels(result)]


def _pixels(result: dict[str, Any]) -> Lines:
    """Scores of control from pixels, if all of it was measured."""
    score = scores(result)
    if not score:
        return []
    bar = f"{GAIN:g} above plain SAC; or {ENOUGH:g}, where that has more than {GOOD:g}"
    rows = [
        [name, f"{value:.2f}", "" if name == PLAIN else f"{bar}: {'met' if met(score, name) else 'missed'}"]
        for name, value in score.items()
    ]
    how = "Pictures: (mean return - random actions) / (SAC on the state - random actions)."
    return ["", how, "", *table(["run", "score", "bar"], rows)]


def _learned(run: dict[str, Any]) -> str:
    """Return the value of a run, with its last evaluation, or with what was found beside, such as lines of a game."""
    last, beside = run.get("evaluations", {}).get("last"), run.get("beside", {})
    value = "failed" if run["value"] is None else f"{run['value']:.4g}"
    if "run" in beside:
        played, alone = beside["run"], beside["alone"]
        return f"{value} of {played['lines']} (network alone {alone['lost']} of {alone['lines']})"
    if beside:
        return f"{value} ({', '.join(f'{name} {number:.3g}' for name, number in beside.items())})"
    return value if last is None else f"{value} (last evaluation {last:.4g})"


def chain(result: dict[str, Any]) -> Lines:
    """Number of updates, uniform and by priority."""
    heads = ["length", "rows", "updates, uniform", "updates, prioritized", "ratio of medians", "bar"]
    rows = []
    for length, case in result.items():
        counts = [", ".join(f"{count:,}" for count in case[name]) for name in ("uniform", "prioritized")]
        bar = f"≤ {case['bar']:g}: {verdict(case)}"
        rows.append([length, f"{2 ** (int(length) + 1) - 2:,}", *counts, f"{case['ratio']:.2f}", bar])
    how = (
        "The blind cliffwalk of arXiv 1511.05952: one row has a reward; updates of one row until all values are right."
    )
    return [how, "", *table(heads, rows)]


def ledger(result: dict[str, Any]) -> Lines:
    """Entries of the ledgers that train for three updates, and those that do not."""
    parts = result.values()
    count, entries, skipped = (sum(part[key] for part in parts) for key in ("trained", "entries", "skipped"))
    failed = [(text, fault) for part in parts for text, fault in part["failed"].items()]
    hours = sum(part["wall_seconds"] for part in parts) / 3_600
    first = (
        f"{count - skipped - len(failed)} of {count} different commands trained, which {entries} entries say; "
        f"{skipped} need a package that is not installed. Hours: {hours:.1f}."
    )
    rows = [[", ".join(fault["entries"]), f"`{text}`", fault["error"]] for text, fault in failed]
    return [first, *(["", *table(["entries", "command", "error"], rows)] if rows else [])]


def resilience(result: dict[str, Any]) -> Lines:
    """Runs that were killed, against uninterrupted ones."""
    groups = list(dict.fromkeys(group for cell in result.values() for group in cell.get("identical", ())))
    heads = [
        "run",
        "kills",
        "inside a write",
        "resumes",
        "damaged",
        "passed over",
        "workers left",
        *groups,
        "bar",
        "seconds",
        "date",
    ]
    rows = []
    for name, cell in result.items():
        counts = [f"{cell['kills']} of {cell['wanted']}" if "kills" in cell else cell["error"]]
        counts += [str(cell.get(key, "")) for key in ("inside_a_write", "resumes")]
        counts += [str(len(cell["damaged"])) if "damaged" in cell else ""]
        counts += [str(cell.get(key, "")) for key in ("passed_over", "left_behind")]
        same = [{True: "identical", False: "differ"}.get(cell.get("identical", {}).get(group), "") for group in groups]
        rows.append([name, *counts, *same, verdict(cell), f"{cell['wall_seconds']:.0f}", measured(cell)])
    how = (
        "Each run once without a stop, and once killed by SIGKILL at random moments and resumed by the command. The "
        "last checkpoints and the metrics, without times, are compared bit by bit. Inside a write: kills that left a "
        "half-written checkpoint; damaged: visible checkpoints that did not verify after a kill; passed over: "
        "checkpoints that a resume could not use; workers left: processes of environments that outlived the killed "
        "process. leaving: processes (of an environment, or of a collector) that stopped by SIGKILL, SIGSEGV, "
        "`os._exit(0)`, `sys.exit(0)` or an exception, while training and after a resume; its kills are runs that "
        "ended with exit code 1 and a line that names the process and the cause. ranks: two ranks of torchrun; in turn "
        "one was killed, the other, a torchrun, and one rank was sent SIGTERM. The parameters are those of both ranks, "
        "which are the same; the rest is all of both checkpoints."
    )
    overrides = [f"* {name}: `{' '.join(cell['words'])}`" for name, cell in result.items()]
    return [how, "", *table(heads, rows), "", *overrides]


def sweeps(result: dict[str, Any]) -> Lines:
    """Sweeps that were killed with all their processes, against an uninterrupted one."""
    groups = list(dict.fromkeys(group for case in result.values() for group in case.get("identical", ())))
    counted = ["completed", "finished once", "started over"]
    heads = ["launcher", "kills", *counted, *groups, "bar", "seconds", "measured"]
    rows = []
    for name, case in result.items():
        killed = Counter(kill["victim"] for kill in case["kills"])
        counts = [str(case.get(key.replace(" ", "_"), "")) for key in counted]
        same = [f"{case['identical'][group]} of {case['jobs']}" if "jobs" in case else "" for group in groups]
        outcome = ", ".join(f"{killed[victim]} {victim}" for victim in killed) if "jobs" in case else case["error"]
        rows.append([name, outcome, *counts, *same])
        rows[-1] += [verdict(case), f"{case['wall_seconds']:.0f}", measured(case)]
    how = (
        "A sweep, four jobs at a time, that was killed by SIGKILL at random moments and continued by the same command, "
        "against an uninterrupted one. Kills: of the scheduler alone, of one job, of all processes. Finished once: "
        "jobs that one process completed; started over: jobs that did not resume from their checkpoint; then the "
        "number of jobs that are identical, bit by bit."
    )
    overrides = [f"* {name}: `{' '.join(case['words'])}`" for name, case in result.items()]
    return [how, "", *table(heads, rows), "", *overrides]


def search(result: dict[str, Any]) -> Lines:
    """A search against random trials."""
    shown = {"drawn": _drawn, "cartpole": _cartpole, "quadratic": _quadratic}
    return [line for name, part in result.items() for line in (*shown[name](part), "")][:-1]


def _drawn(part: dict[str, Any]) -> Lines:
    curves = list(part["curves"].values())
    counts = {side: f"{number:.0f}" for side, number in part["evaluations"].items()}
    return [
        f"DQN on CartPole, learning rate and target period: {len(curves)} points, {len(curves[0])} runs at each, were "
        f"measured once; {part['studies']} studies of 30 trials, of {part['seeds']} runs each, draw theirs from these "
        f"on both sides. The answer of a study is expected to come to {part['means']['search']:.1f} by the search "
        f"(tpe, pruned; {counts['search']} evaluations a study), {part['means']['random']:.1f} at random "
        f"({counts['random']}); {part['best']:.1f} is the most that there is. Gain {part['gain']:.1f} with a standard "
        f"error of {part['error']:.1f}, bar: more than two of these: {verdict(part)}; ahead in "
        f"{part['ahead']} studies. The number of runs a trial, and how long a median waits, were chosen on these "
        "curves, so the gain is a flattering one.",
    ]


def _cartpole(part: dict[str, Any]) -> Lines:
    rows = []
    for study in part["studies"]:
        for side in part["sides"]:
            result = study[side]
            counts = ", ".join(f"{number} {state}" for state, number in result["trials"].items())
            low, high = result["interval"]
            row = [f"{result['mean']:.1f} [{low:.1f}, {high:.1f}]", f"{result['searched']:.1f}", counts]
            row += [f"{result['env_steps']:,.0f}", f"{result['seconds']:.0f}", f"`{' '.join(result['values'])}`"]
            rows.append([str(study["seed"]), side, *row])
    heads = ["study", "side", "mean over fresh seeds", "in the search", "trials", "steps", "seconds", "values"]
    first = part["studies"][0]["search"]
    return [
        f"The same by real studies, the best of each side over the same {len(first['scores'])} fresh seeds. On average "
        f"{part['means']['search']:.1f} by the search, {part['means']['random']:.1f} at random; ahead in "
        f"{part['ahead']} of {len(part['studies'])} studies: {verdict(part)}.",
        "",
        *table(heads, rows),
        "",
        f"* `{' '.join(part['words'])}`",
        *(f"* {side}: `{' '.join(overrides)}`" for side, overrides in part["sides"].items()),
    ]


def _quadratic(part: dict[str, Any]) -> Lines:
    means = part["means"]
    return [
        f"A noisy quadratic of three numbers, whose largest value is 0, {len(part['studies'])} studies of as many "
        f"trials: on average {means['search']:.3f} by tpe, {means['random']:.3f} at "
        f"random; tpe ahead in {part['ahead']}: {verdict(part)}.",
    ]


def why(result: dict[str, Any]) -> Lines:
    """Diagnoses of runs with and without a planted fault."""
    lines: Lines = []
    what = {"sabotaged": "the planted cause is named first", "healthy": "no fault is named"}
    for group, part in result.items():
        rows = []
        for run in part["runs"]:
            causes = ", ".join(run["said"]) or "nothing"
            counts = [str(run["checks"]), str(run["unmade"]), str(run["seconds"])]
            rows.append([run["name"], str(run["seed"]), causes, "right" if run["right"] else "wrong", *counts])
        heads = ["run", "seed", "causes, in order", "", "checks", "not made", "seconds"]
        bar = f"{part['right']} of {len(part['runs'])}, bar ≥ {part['bar']}: {verdict(part)}"
        date = measured(part)
        lines += [f"{group.capitalize()} runs, {date}: {what[group]} in {bar}.", "", *table(heads, rows), ""]
        lines += [*(f"* {run['name']}: `{' '.join(run['words'])}`" for run in part["runs"]), ""]
    return lines[:-1]


def halfcheetah(result: dict[str, Any]) -> Lines:
    """Off-policy algorithms next to a rival's."""
    rows = []
    for name, part in result.items():
        for run in part["runs"]:
            values = [f"{run[side]['mean']:.0f} ({run[side]['seconds']:.0f} s)" for side in ("rlrun", "rival")]
            rows.append([name, str(run["seed"]), *values])
        rows.append([name, "mean", *(f"{part['means'][side]:.0f}" for side in ("rlrun", "rival"))])
    verdicts = [f"* {name}, at least the rival's mean: {verdict(part)}" for name, part in result.items()]
    rival = next(iter(result.values()))["requirement"]
    return [
        f"Mean return of 20 fresh episodes by the last policy, the same numbers on both sides ({rival}); seconds of "
        "training in parallel, so speeds are not compared here.",
        "",
        *table(["case", "seed", "rlrun", "stable-baselines3"], rows),
        "",
        *verdicts,
    ]


def defaults(result: dict[str, Any]) -> Lines:
    """Defaults on tasks without a preset, next to a peer's."""
    rows, compared = [], [part["compared"] for part in result.values() if part["compared"]]
    for name, part in result.items():
        for policy in ("best", "last"):
            sides = [_mean_and_seeds(part.get(side), policy) for side in ("rlrun", "stable-baselines3")]
            random = f"{part['random']:.1f}" if "random" in part else ""
            row = [name, policy, *sides, random, "", "", ""]
            if part["compared"]:
                gap = part["compared"][policy]
                verdict = "met" if gap["gain"] >= -2 * gap["error"] else "missed"
                row[5:] = [f"{gap['gain']:.1f} ± {gap['error']:.1f}", f"{gap['share']:.2f}", verdict]
            rows.append(row)
    heads = ["task", "policy", "rlrun", "stable-baselines3", "at random", "difference", "share", "≥ -2 errors"]
    lines = [
        "Mean return of 20 fresh episodes, of each seed in brackets, by the policy of the best evaluation and by the "
        "last one; each library with its own defaults, rlrun with `preset=null`. The error is the standard error of "
        "the difference; the share is the difference over the peer's distance from the policy at random.",
        "",
        *table(heads, rows),
        "",
    ]
    for policy in ("best", "last") if compared else ():
        share = sum(gaps[policy]["share"] for gaps in compared) / len(compared)
        verdict = "met" if share >= -0.05 else "missed"
        lines.append(f"* mean share of {len(compared)} tasks, {policy} policy: {share:.2f}, bar ≥ -0.05: {verdict}")
    for name, part in result.items():
        bar = ""
        if part["reached"] is not None:
            what = f"best ≥ {part['bar']:g}" if part["fall"] is None else f"last within {part['fall']:g} of the best"
            wanted = "their mean" if part["enough"] is None else f"{part['enough']} of 5"
            verdict = "met" if part["bar_met"] else "missed"
            bar = f"; {what}: {part['reached']} of {len(part['rlrun'])}, bar {wanted}: {verdict}"
        lines.append(f"* {name}: `{' '.join(part['command'])}`{bar}")
    return lines


def _mean_and_seeds(runs: list[dict[str, Any]] | None, policy: str) -> str:
    means = [sum(run[policy]) / len(run[policy]) for run in runs or []]
    return f"{sum(means) / len(means):.1f} ({', '.join(f'{mean:.1f}' for mean in means)})" if means else ""


def values(result: dict[str, Any]) -> Lines:
    """Learned values next to known ones."""
    rows = []
    for name, case in result.items():
        shown = [", ".join(f"{value:.3f}" for value in case[key]) for key in ("values", "true")]
        rows.append([name, *shown, f"{case['error']:.1%}", f"≤ {case['bar']:.0%}: {verdict(case)}"])
    missed = sum(not case["passed"] for case in result.values())
    return [
        "One state, or two that alternate, whose values follow from a linear equation; see `tests/values/known.py`. "
        f"The error is the largest of the states', as a share of the value. {len(result)} cases, {missed} missed.",
        "",
        *table(["case", "learned", "true", "error", "bar"], rows),
    ]


def particles(result: dict[str, Any]) -> Lines:
    """Particle inference next to numpyro's."""
    rows = []
    for name, side in result["sides"].items():
        runs = side["runs"]
        parts = [[run[part] for run in runs] for part in ("all", "intervals", "gap")]
        seconds = [run["seconds"] for run in runs]
        cost = f"{statistics.median(seconds):.1f} ({min(seconds):.1f}–{max(seconds):.1f})"
        overrides = f"`{' '.join(side['words'])}`" if side["words"] else ""
        rows.append([name, overrides, f"{runs[0]['lr']:g}", *map(_mean_and_range, parts), cost])
    heads = [
        "side",
        "further override",
        "learning rate",
        "all rows",
        "in the intervals",
        "in the gap",
        "processor seconds",
    ]
    tried = [
        f"* {name}: " + ", ".join(f"{lr}: {statistics.mean(values):.3f}" for lr, values in rates.items())
        for name, rates in result["tried"].items()
    ]
    versions = ", ".join(
        f"{name} {version}" for name, version in result["sides"]["numpyro"]["runs"][0]["versions"].items()
    )
    return [
        "Mean predictive log-likelihood of a held-out row of a regression with a gap: the mean over "
        f"{len(runs)} seeds of the first weights, with the least and the most; see `benchmarks/particles.py`. "
        f"{result['updates']:,} updates by Adam on all sides. Processor seconds are the median over seeds; the "
        f"most of numpyro's has its compilation. Load: {result['load']}. {versions}.",
        "",
        *table(heads, rows),
        "",
        f"* mean of rlrun's SVGD less that of numpyro's: {result['gain']:.3f}, standard error {result['error']:.3f}; "
        f"bar ≥ 0: {verdict(result)}",
        f"* `{' '.join(result['words'])}`",
        "",
        "Learning rates that were tried, with the mean over two other data sets:",
        "",
        *tried,
    ]


def _mean_and_range(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} ({min(values):.3f}–{max(values):.3f})"
