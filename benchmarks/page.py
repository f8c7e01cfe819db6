"""Results on disk, and the page that is made from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import PRODUCTS, machine

RESULTS = Path(__file__).parent / "results"
Lines = list[str]


def save(name: str, found: dict[str, Any], *, folder: Path = RESULTS) -> None:
    """Write a result with what it was measured on; named parts of an older one that were left out now stay."""
    path = folder / f"{name}.json"
    here = machine()
    folder.mkdir(parents=True, exist_ok=True)
    earlier = held(name, folder=folder)
    old_parts = {part: result for part, result in earlier.items() if name in PARTED and part not in found}
    if name in PARTED:
        found = {part: {**result, "machine": here} for part, result in found.items()}
    path.write_text(json.dumps({"machine": here, "found": {**old_parts, **found}}, indent=1) + "\n")


def held(name: str, *, folder: Path = RESULTS) -> dict[str, Any]:
    """Return a result that is there already, else nothing."""
    path = folder / f"{name}.json"
    result: dict[str, Any] = json.loads(path.read_text())["found"] if path.exists() else {}
    return result


def write(*, folder: Path = RESULTS) -> None:
    """Make README.md anew from the results that there are."""
    lines = ["# Measured", "", "Made by `python -m benchmarks`; one thread. Medians, with the least and the most.", ""]
    for name, section in SECTIONS.items():
        path = folder / f"{name}.json"
        if path.exists():
            result = json.loads(path.read_text())
            lines += [f"## {name.capitalize()}", "", f"{conditions(result['machine'])}.", ""]
            lines += [*section(result["found"]), ""]
    (folder / "README.md").write_text("\n".join(lines).rstrip() + "\n")


def conditions(here: dict[str, Any]) -> str:
    """Return date, machine and versions in a line."""
    versions = ", ".join(f"{name} {here[name]}" for name in ("python", "torch", "numpy", "gymnasium"))
    products = f" ({here[PRODUCTS]})" if PRODUCTS in here else ""  # earlier results do not tell
    return f"{here['date']}, {here['cores']} cores of {here['processor']}, {versions}{products}"


def table(heads: list[str], rows: list[list[str]]) -> Lines:
    """Return a table in Markdown."""
    return ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]


def speed(found: dict[str, Any]) -> Lines:
    """Runs against bare loops."""
    heads = [
        "run",
        "steps/s",
        "bare loop, steps/s",
        "ratio",
        "ratio of processor time",
        "bar",
        "rounds",
        "load",
        "date",
    ]
    rows = []
    for name, case in found.items():
        speeds, loads = case["env_steps_per_second"], [record["load"] for record in case["rounds"]]
        ratios = [_spread(case[key], ".3f") for key in ("ratio", "ratio_of_processor_time")]
        bar = f"≥ {case['bar']}: {_verdict(case)}"
        counts = [str(len(loads)), f"{min(loads)}–{max(loads)}"]
        both = [_spread(speeds[side], ",.0f") for side in ("rlrun", "bare")]
        rows.append([name, *both, *ratios, bar, *counts, case["machine"]["date"]])
    overrides = [f"* {name}: `{' '.join(case['words'])}`" for name, case in found.items()]
    how = (
        "Both sides in processes of their own that take turns; ratios within a round; load: processes that ran before."
    )
    return [how, "", *table(heads, rows), "", *overrides]


def kept(found: dict[str, Any]) -> Lines:
    """Processor time of an earlier commit over that of this one."""
    rows = [
        [name, _spread(case["ratio"], ".3f"), f"≥ {case['bar']}: {_verdict(case)}", str(len(case["rounds"]))]
        for name, case in found["cases"].items()
    ]
    rows.append(["geometric mean", f"{found['geometric_mean']:.3f}", f"≥ {found['bar']}: {_verdict(found)}", ""])
    how = f"Processor time at commit {found['against'][:7]} over that of this one, the two in turns; above 1 is faster."
    return [how, "", *table(["case", "ratio", "bar", "rounds"], rows)]


def startup(found: dict[str, Any]) -> Lines:
    """From the command to its answer."""
    shown = {
        "help": "`rlrun --help`",
        "config": "`rlrun config algorithm=sac env=cartpole`",
        "first_step": "`rlrun train algorithm=sac env=cartpole` to its first environment step",
    }
    rows = [[shown[name], _spread(case, ".2f"), f"< {case['bar']}: {_verdict(case)}"] for name, case in found.items()]
    return table(["command", "processor seconds", "bar"], rows)


def dispatch(found: dict[str, Any]) -> Lines:
    """What the trainer costs."""
    row = [f"{found['callbacks']} callbacks with empty hooks, an update", f"{found['microseconds']:.1f}"]
    return table(["what", "µs", "bar"], [[*row, f"< {found['bar']:.0f}: {_verdict(found)}"]])


def learning(found: dict[str, Any]) -> Lines:
    """What runs learn."""
    heads = ["run", "what", "bar", "seeds", "held", "values", "seconds", "date"]
    rows = []
    for name, claim in found.items():
        runs = claim["runs"]
        values = ", ".join(map(_learned, runs))
        bar = f"{'≤' if claim['at_most'] else '≥'} {claim['bar']:g}, {claim['enough']}: {_verdict(claim)}"
        seeds = ", ".join(str(run["seed"]) for run in runs)
        seconds = sum(run["wall_seconds"] for run in runs) / len(runs)
        rows.append(
            [name, claim["unit"], bar, seeds, claim["held"], values, f"{seconds:.0f}", claim["machine"]["date"]]
        )
    overrides = [f"* {name}: `{' '.join(claim['words'])}`" for name, claim in found.items()]
    return [*table(heads, rows), "", *overrides]


def _learned(run: dict[str, Any]) -> str:
    """Return what a run came to, with its last evaluation where that is known."""
    last = run.get("evaluations", {}).get("last")
    value = "failed" if run["value"] is None else f"{run['value']:.4g}"
    return value if last is None else f"{value} (last evaluation {last:.4g})"


def peers(found: dict[str, Any]) -> Lines:
    """Training beside other libraries'."""
    lines = [
        "Environment steps a second at steady state, after learning has begun; the same numbers on both sides, every "
        "side in a process of its own, one thread, processes in turn. Ratio: rlrun's speed to that side's, within a "
        "round. First step: from the start of the process to the first step of the environment.",
        "",
    ]
    for name, part in found.items():
        shown = _beside_peers if "sides" in part else _solved if "runs" in part else _begun
        lines += [*shown(name, part), ""]
    return lines[:-1]


def _beside_peers(name: str, case: dict[str, Any]) -> Lines:
    """Return the table of a case, who is not in it, and where rlrun is behind."""
    heads = ["side", "version", "steps/s", "rlrun's ratio", "first step, s", "peak, MB"]
    rows, ratio = [], case["ratio"]
    for side, stats in case["sides"].items():
        beside = _spread(ratio["rlrun"][side], ".2f") if side in ratio["rlrun"] else ""
        figures = [_spread(stats[key], form) for key, form in (("first_step", ".1f"), ("megabytes", ".0f"))]
        counts = [f"{stats[key]:,}" for key in ("steps_of_optimizers", "parameters")]
        version = next((number for package, number in stats["versions"].items() if package not in case["machine"]), "")
        rows.append([side, version, _spread(stats["speed"], ",.0f"), beside, *figures, *counts])
    bars = [
        f"{bar['side']} ≥ {bar['least']:g} × {bar['peer']}: {_spread(reached, '.2f') if reached else 'not measured'}, "
        f"{_verdict(bar)}"
        for bar in case["bars"]
        for reached in [ratio.get(bar["side"], {}).get(bar["peer"])]
    ]
    slower = [side for side, spread in ratio["rlrun"].items() if spread["median"] < 1]
    loads, first, last = case["load"], *case["window"]
    about = f"{len(loads)} rounds, load {min(loads)}–{max(loads)}, {case['machine']['date']}"
    return [
        f"### {name}",
        "",
        *table([*heads, "optimizer steps", "parameters"], rows),
        "",
        f"* `{' '.join(case['words'])}`, environment steps {first:,} to {last:,}; {about}",
        *(f"* {bar}" for bar in bars),
        *(f"* without {side}: {why}" for side, why in case["absent"].items()),
        *([f"* rlrun is slower than: {', '.join(slower)}"] if slower else []),
    ]


def _solved(name: str, part: dict[str, Any]) -> Lines:
    """Return the way to a return, seed by seed."""
    rival = next(side for side in part["seconds"] if side != "rlrun")
    rows = [
        [str(run["seed"]), *(f"{side['seconds']:.1f} s, {_reached(side)}" for side in run["sides"].values())]
        for run in part["runs"]
    ]
    rows.append(["median", *(_spread(part["seconds"][side], ".1f") + " s" for side in ("rlrun", rival))])
    loads = [run["load"] for run in part["runs"]]
    return [
        f"### {name}",
        "",
        f"From the command to its end, imports and evaluations included: {part['algorithm'].upper()} on CartPole until "
        f"20 greedy episodes, every 2,560 steps, have a mean return of {part['return']:.0f}, within {part['budget']:,} "
        f"steps; {part['requirement']} with the settings that its zoo tuned.",
        "",
        *table(["seed", "rlrun", rival], rows),
        "",
        f"* rlrun ≤ {part['bar']:g} of the time: {part['ratio']:.2f}, {_verdict(part)}; "
        f"load {min(loads)}–{max(loads)}, {part['machine']['date']}",
    ]


def _begun(name: str, part: dict[str, Any]) -> Lines:
    """Return seconds to the first step."""
    loads = [record["load"] for record in part["rounds"]]
    rows = [[f"`{' '.join(overrides)}`", _spread(part[side], ".2f")] for side, overrides in part["commands"].items()]
    return [
        f"### {name}",
        "",
        *table(["command", "seconds to the first step of its environment"], rows),
        "",
        f"* rlrun ≤ {part['bar']:g} of the time: {_spread(part['ratio'], '.2f')}, {_verdict(part)}; "
        f"{len(loads)} rounds, load {min(loads)}–{max(loads)}, {part['machine']['date']}",
    ]


def _reached(side: dict[str, Any]) -> str:
    return f"{side['env_steps']:,} steps" if side["reached"] else "not reached"


def memory(found: dict[str, Any]) -> Lines:
    """The replay memory alone, against other libraries'."""
    timed = {name: part for name, part in found.items() if "thousands" in part}
    how = (
        "Sides in processes of their own that take turns, processor time; memories full before; tensors on the "
        "CPU; ratios within a round; bytes: of the tensors, a transition."
    )
    heads = ["part", "side", "thousand transitions/s", "rlrun's speed / its", "bar", "bytes"]
    rows = [row for name, part in timed.items() for row in _sides(name, part)]
    uses = {side: (use, part["versions"][side]) for part in timed.values() for side, use in part["how"].items()}
    notes = [f"* {side} ({', '.join(map(' '.join, version.items()))}): {use}" for side, (use, version) in uses.items()]
    sizes = [
        [row["what"], f"{row['ratio']:.3f}" if "ratio" in row else row["error"], f"≤ {row['bar']}: {_verdict(row)}"]
        for name, row in found.items()
        if name not in timed
    ]
    lines = [how, "", *table(heads, rows), "", *(_about(name, part) for name, part in timed.items()), "", *notes, ""]
    return lines + table(["what a full table takes", "ratio", "bar"], sizes)


def chain(found: dict[str, Any]) -> Lines:
    """Updates that priorities save."""
    heads = ["length", "rows", "updates, uniform", "updates, prioritized", "ratio of medians", "bar"]
    rows = []
    for length, case in found.items():
        counts = [", ".join(f"{count:,}" for count in case[name]) for name in ("uniform", "prioritized")]
        bar = f"≤ {case['bar']:g}: {_verdict(case)}"
        rows.append([length, f"{2 ** (int(length) + 1) - 2:,}", *counts, f"{case['ratio']:.2f}", bar])
    how = "The blind cliffwalk of arXiv 1511.05952: one row has a reward; one-row updates of a table until it is right."
    return [how, "", *table(heads, rows)]


def checkpoints(found: dict[str, Any]) -> Lines:
    """What saving, loading and listing take."""
    rows = []
    for figure in found["figures"].values():
        bar = f"≤ {figure['bar']:g}: {_verdict(figure)}" if "bar" in figure else ""
        rows.append([figure["what"], _spread(figure, ".3f"), bar])
    loads = found["load"]
    how = (
        f"A memory of {found['memory']}, with two networks and their optimizers, saved by the callback of a run; "
        f"{len(loads)} rounds, load {min(loads)}–{max(loads)}."
    )
    return [how, "", *table(["what", "measured", "bar"], rows)]


def resilience(found: dict[str, Any]) -> Lines:
    """Runs that were killed, against those that were not; then what somebody else's runs reached."""
    attacked, found = attacks(found.get("attacks")), {name: cell for name, cell in found.items() if name != "attacks"}
    groups = list(dict.fromkeys(group for cell in found.values() for group in cell.get("identical", ())))
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
    for name, cell in found.items():
        counts = [f"{cell['kills']} of {cell['wanted']}" if "kills" in cell else cell["error"]]
        counts += [str(cell.get(key, "")) for key in ("inside_a_write", "resumes")]
        counts += [str(len(cell["damaged"])) if "damaged" in cell else ""]
        counts += [str(cell.get(key, "")) for key in ("passed_over", "left_behind")]
        same = [{True: "identical", False: "differ"}.get(cell.get("identical", {}).get(group), "") for group in groups]
        rows.append([name, *counts, *same, _verdict(cell), f"{cell['wall_seconds']:.0f}", cell["machine"]["date"]])
    how = (
        "Each run once without a stop, and once killed by SIGKILL at random moments and resumed by the command: "
        "what their last checkpoints hold and their metrics, times aside, compared bit by bit. Inside a write: kills "
        "that left a half-written checkpoint behind; damaged: checkpoints that showed and did not verify after a "
        "kill; passed over: checkpoints that a resume could not use; workers left: processes of envs that outlived "
        "the one that was killed. leaving: processes of environments (their own, and one that collects) that left by "
        "SIGKILL, SIGSEGV, `os._exit(0)`, `sys.exit(0)` or an exception while training and after a resume; as a kill "
        "counts a run that ended with exit code 1 and a line that names what left and how."
    )
    overrides = [f"* {name}: `{' '.join(cell['words'])}`" for name, cell in found.items()]
    return [how, "", *table(heads, rows), "", *overrides, *attacked]


def attacks(found: dict[str, Any] | None) -> Lines:
    """What overrides and configs of somebody else reached."""
    if found is None:
        return []
    how = (
        f"{found['attacks']} attacks by the overrides and configs of a run or a sweep from elsewhere, each on those of "
        f"{', '.join(f'`{command}`' for command in found['commands'])} that it concerns. An attack held where the "
        "command ended with exit code 2 and one line, and no code of the run ran, no file outside of the config "
        "folders was read, no file of the user's was changed, and no secret was told. A job of a sweep is tried as "
        f"the process that does it. {_verdict(found)}, {found['wall_seconds']:.0f} s, {found['machine']['date']}."
    )
    rows = [[shape, str(count)] for shape, count in found["trials"].items()]
    wrong = [f"* {name}: {'; '.join(trial['faults'])}" for name, trial in found["wrong"].items()]
    return ["", how, "", *table(["shape", "trials"], rows), *wrong]


def overhead(found: dict[str, Any]) -> Lines:
    """What a sweep costs beside its jobs."""
    heads = ["jobs", "workers", "alone, s", "whole sweep, s", "ratio", "memory early, MB", "at the end", "growth"]
    figures = [_spread(found[name], form) for name, form in (("seconds", ".1f"), ("ratio", ".2f"))]
    sizes = [_spread(found[name], form) for name, form in (("early", ".0f"), ("late", ".0f"), ("growth", ".2f"))]
    row = [str(found["jobs"]), str(found["workers"]), f"{found['ideal']:.0f}", *figures, *sizes]
    bars = f"Bars: ratio ≤ {found['bar']:g}, growth ≤ {found['bar_growth']:g}: {_verdict(found)}."
    how = (
        "Each job waits 1 s in all for its environment. From the command to its end: python, torch and all else are "
        "imported once, every config is composed and checked before the first job starts, each job is a process that "
        "builds, trains, and writes a checkpoint, its manifest and summary. Memory is the coordinator's and that of "
        "the process from which jobs are forked, after a fifth of the jobs and at the end."
    )
    return [how, "", *table(heads, [row]), "", bars]


def sweeps(found: dict[str, Any]) -> Lines:
    """Sweeps that were killed with all their processes, against one that was not."""
    groups = list(dict.fromkeys(group for case in found.values() for group in case.get("identical", ())))
    counted = ["completed", "finished once", "started over"]
    heads = ["launcher", "at the kills", *counted, *groups, "bar", "seconds", "date"]
    rows = []
    for name, case in found.items():
        states = [", ".join(f"{count} {state}" for state, count in kill["states"].items()) for kill in case["kills"]]
        counts = [str(case.get(key.replace(" ", "_"), "")) for key in counted]
        same = [f"{case['identical'][group]} of {case['jobs']}" if "jobs" in case else "" for group in groups]
        outcome = "; ".join(states) if "jobs" in case else case["error"]
        episode_end = [_verdict(case), f"{case['wall_seconds']:.0f}", case["machine"]["date"]]
        rows.append([name, outcome, *counts, *same, *episode_end])
    how = (
        "A sweep, four jobs at a time, whose processes were all killed by SIGKILL at two random moments and which was "
        "resumed by the command, against one that nobody disturbed. Finished once: jobs of which one process said so; "
        "started over: jobs that did not go on from the checkpoint they had; then how many are identical, bit by bit."
    )
    overrides = [f"* {name}: `{' '.join(case['words'])}`" for name, case in found.items()]
    return [how, "", *table(heads, rows), "", *overrides]


def asynchronous(found: dict[str, Any]) -> Lines:
    """Stepping beside learning against stepping in between."""
    heads = ["updates a step", "stepped by a", "ms a step", "in between, ms a step", "ratio", "bar"]
    rows = []
    for case in found.values():
        times = [_spread(case["milliseconds"][side], ".1f") for side in (case["kind"], "sync")]
        bar = f"< {case['bar']:g}: {_verdict(case)}" if "bar" in case else ""
        rows.append([case["updates"], case["kind"], *times, _spread(case["ratio"], ".2f"), bar])
    how = (
        "SAC on a Pendulum that sleeps 10 ms a step; from one environment step to the next, updates included. The "
        "best that can be is half, where learning takes as long as stepping; there it is held to the bar."
    )
    overrides = [f"* {name}: `{' '.join(case['words'])}`" for name, case in found.items()]
    return [how, "", *table(heads, rows), "", *overrides]


def estimate(found: dict[str, Any]) -> Lines:
    """What runs were said to take, and took."""
    heads = ["run", "estimated before and after, s", "measured, s", "ratio", "of processor time", "bar", "load", "date"]
    rows = []
    for name, case in found.items():
        estimates = " and ".join(f"{seconds:.0f}" for seconds in case["estimates"])
        processor = f"{case['ratio_of_processor_time']:.2f}" if "ratio_of_processor_time" in case else ""
        rows.append([name, estimates, f"{case['seconds']:.0f}", f"{case['ratio']:.2f}", processor])
        rows[-1] += [f"1 ± {case['bar']:g}: {_verdict(case)}", f"{min(case['load'])}–{max(case['load'])}"]
        rows[-1] += [case["machine"]["date"]]
    how = (
        "`rlrun train --estimate` against the time from the command to its end. Ratio: the mean of both estimates to "
        "the measured time; of processor time: the same of a probe that counts only what its process used."
    )
    many = {name: f" on {case['workers']} workers" if case["workers"] else "" for name, case in found.items()}
    overrides = [f"* {name}: `{' '.join(case['words'])}`{many[name]}" for name, case in found.items()]
    return [how, "", *table(heads, rows), "", *overrides]


def search(found: dict[str, Any]) -> Lines:
    """A search against trials at random."""
    shown = {"drawn": _drawn, "cartpole": _cartpole, "quadratic": _quadratic}
    return [line for name, part in found.items() for line in (*shown[name](part), "")][:-1]


def _drawn(part: dict[str, Any]) -> Lines:
    curves = list(part["curves"].values())
    counts = {side: f"{number:.0f}" for side, number in part["evaluations"].items()}
    return [
        f"DQN on CartPole, learning rate and target period: {len(curves)} points, {len(curves[0])} runs at each, were "
        f"measured once; {part['studies']} studies of 30 trials, of {part['seeds']} runs each, draw theirs from these "
        f"on both sides. The answer of a study is expected to come to {part['means']['search']:.1f} by the search "
        f"(tpe, pruned; {counts['search']} evaluations a study), {part['means']['random']:.1f} at random "
        f"({counts['random']}); {part['best']:.1f} is the most that there is. Gain {part['gain']:.1f} with a standard "
        f"error of {part['error']:.1f}, bar: more than two of these: {_verdict(part)}; ahead in "
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
        f"{part['ahead']} of {len(part['studies'])} studies: {_verdict(part)}.",
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
        f"trials: on average {means['search']:.3f} by tpe, {means['cmaes']:.3f} by cmaes, {means['random']:.3f} at "
        f"random; tpe ahead in {part['ahead']}: {_verdict(part)}.",
    ]


def why(found: dict[str, Any]) -> Lines:
    """What a diagnosis says."""
    lines: Lines = []
    what = {"sabotaged": "the planted cause is named first", "healthy": "nothing is found"}
    for group, part in found.items():
        rows = []
        for run in part["runs"]:
            causes = ", ".join(run["said"]) or "nothing"
            counts = [str(run["checks"]), str(run["unmade"]), str(run["seconds"])]
            rows.append([run["name"], str(run["seed"]), causes, "right" if run["right"] else "wrong", *counts])
        heads = ["run", "seed", "found, in order", "", "checks", "not made", "seconds"]
        bar = f"{part['right']} of {len(part['runs'])}, bar ≥ {part['bar']}: {_verdict(part)}"
        date = part["machine"]["date"]
        lines += [f"{group.capitalize()} runs, {date}: {what[group]} in {bar}.", "", *table(heads, rows), ""]
        lines += [*(f"* {run['name']}: `{' '.join(run['words'])}`" for run in part["runs"]), ""]
    return lines[:-1]


def _sides(name: str, part: dict[str, Any]) -> list[list[str]]:
    """Return a row for each side of a part that has a figure or should have one."""
    rows = []
    for side in (*part["thousands"], *(side for side in part["missed"] if side in part["absent"])):
        speed = _spread(part["thousands"][side], ",.0f") if side in part["thousands"] else "none"
        ratio = _spread(part["ratio"][side], ".2f") if side in part["ratio"] else ""
        size = f"{part['bytes'][side] / part['transitions']:.0f}" if part["bytes"].get(side) else ""
        rows.append([name, side, speed, ratio, _bar(side, part), size])
    return rows


def _bar(side: str, part: dict[str, Any]) -> str:
    """Return what a side was held to, if anything, and whether it was met."""
    verdict = "missed" if side in part["missed"] else "met"
    if side in part["bars"]:
        return f"≥ {part['bars'][side]:g}: {verdict}"
    if side == "rlrun" and part.get("most_microseconds"):
        return f"{_spread(part['microseconds'], '.2f')} ≤ {part['most_microseconds']:g} µs: {verdict}"
    return verdict if side in part["missed"] else ""


def _about(name: str, part: dict[str, Any]) -> str:
    """Return what a part is, how it was measured, and who is not in it."""
    loads, reasons = part["load"], {}
    for side, why in part["absent"].items():
        reasons.setdefault(why, []).append(side)
    absent = "; ".join(f"{', '.join(sides)} ({why})" for why, sides in reasons.items())
    conditions = f"{len(loads)} rounds, load {min(loads)}–{max(loads)}, {part['machine']['date']}"
    return f"* {name}: {part['what']}; {conditions}{'; without ' if absent else ''}{absent}"


def beside(found: dict[str, Any]) -> Lines:
    """Off-policy algorithms beside a rival's."""
    rows = []
    for name, part in found.items():
        for run in part["runs"]:
            values = [f"{run[side]['mean']:.0f} ({run[side]['seconds']:.0f} s)" for side in ("rlrun", "rival")]
            rows.append([name, str(run["seed"]), *values])
        rows.append([name, "mean", *(f"{part['means'][side]:.0f}" for side in ("rlrun", "rival"))])
    verdicts = [f"* {name}, at least the rival's mean: {_verdict(part)}" for name, part in found.items()]
    rival = next(iter(found.values()))["requirement"]
    return [
        f"Mean return of 20 fresh episodes by the last policy, the same numbers on both sides ({rival}); seconds of "
        "training beside one another, so speeds are not compared here.",
        "",
        *table(["case", "seed", "rlrun", "stable-baselines3"], rows),
        "",
        *verdicts,
    ]


def defaults(found: dict[str, Any]) -> Lines:
    """Defaults on tasks without a preset, next to a peer's."""
    rows, compared = [], [part["compared"] for part in found.values() if part["compared"]]
    for name, part in found.items():
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
    for name, part in found.items():
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


def values(found: dict[str, Any]) -> Lines:
    """Learned values next to known ones."""
    rows = []
    for name, case in found.items():
        shown = [", ".join(f"{value:.3f}" for value in case[key]) for key in ("values", "true")]
        rows.append([name, *shown, f"{case['error']:.1%}", f"≤ {case['bar']:.0%}: {_verdict(case)}"])
    missed = sum(not case["passed"] for case in found.values())
    return [
        "One state, or two that alternate, whose values follow from a linear equation; see `tests/values/known.py`. "
        f"The error is the largest of the states', as a share of the value. {len(found)} cases, {missed} missed.",
        "",
        *table(["case", "learned", "true", "error", "bar"], rows),
    ]


PARTED = (
    "speed",
    "peers",
    "learning",
    "memory",
    "resilience",
    "sweeps",
    "estimate",
    "search",
    "why",
    "beside",
    "defaults",
)  # results with parts of their own
SECTIONS: dict[str, Callable[[dict[str, Any]], Lines]] = {
    "speed": speed,
    "peers": peers,
    "kept": kept,
    "startup": startup,
    "dispatch": dispatch,
    "learning": learning,
    "memory": memory,
    "chain": chain,
    "checkpoints": checkpoints,
    "resilience": resilience,
    "overhead": overhead,
    "sweeps": sweeps,
    "async": asynchronous,
    "estimate": estimate,
    "search": search,
    "why": why,
    "beside": beside,
    "defaults": defaults,
    "values": values,
}


def _spread(stats: dict[str, float], form: str) -> str:
    return f"{stats['median']:{form}} ({stats['least']:{form}}–{stats['most']:{form}})"


def _verdict(result: dict[str, Any]) -> str:
    return "met" if result["passed"] else "missed"
