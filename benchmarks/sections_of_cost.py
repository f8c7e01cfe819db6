"""Sections of the page of results about time and memory."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import Lines, interval, table, verdict


def speed(result: dict[str, Any]) -> Lines:
    """Runs against hand-written loops of the same parts."""
    heads = [
        "run",
        "steps/s",
        "loop of its parts, steps/s",
        "ratio",
        "ratio of processor time",
        "bar",
        "rounds",
        "load",
        "date",
    ]
    rows = []
    for name, case in result.items():
        speeds, loads = case["env_steps_per_second"], [record["load"] for record in case["rounds"]]
        ratios = [interval(case[key], ".3f") for key in ("ratio", "ratio_of_processor_time")]
        bar = f"≥ {case['bar']}: {verdict(case)}"
        counts = [str(len(loads)), f"{min(loads)}–{max(loads)}"]
        both = [interval(speeds[side], ",.0f") for side in ("rlrun", "bare")]
        rows.append([name, *both, *ratios, bar, *counts, case["machine"]["date"]])
    overrides = [f"* {name}: `{' '.join(case['words'])}`" for name, case in result.items()]
    how = "Both sides in separate processes that take turns; ratios within a round; load: processes that ran before."
    return [how, "", *table(heads, rows), "", *overrides]


def kept(result: dict[str, Any]) -> Lines:
    """Processor time of an earlier commit over that of this one."""
    rows = [
        [name, interval(case["ratio"], ".3f"), f"≥ {case['bar']}: {verdict(case)}", str(len(case["rounds"]))]
        for name, case in result["cases"].items()
    ]
    rows.append(["geometric mean", f"{result['geometric_mean']:.3f}", f"≥ {result['bar']}: {verdict(result)}", ""])
    how = f"Processor time at commit {result['against'][:7]} over that of this one; above 1 is faster."
    return [how, "", *table(["case", "ratio", "bar", "rounds"], rows)]


def startup(result: dict[str, Any]) -> Lines:
    """From the command to its answer."""
    shown = {
        "help": "`rlrun --help`",
        "config": "`rlrun config algorithm=sac env=cartpole`",
        "first_step": "`rlrun train algorithm=sac env=cartpole` to its first environment step",
    }
    rows = [[shown[name], interval(case, ".2f"), f"< {case['bar']}: {verdict(case)}"] for name, case in result.items()]
    return table(["command", "processor seconds", "bar"], rows)


def dispatch(result: dict[str, Any]) -> Lines:
    """The cost of the trainer."""
    row = [f"{result['callbacks']} callbacks with empty hooks, an update", f"{result['microseconds']:.1f}"]
    return table(["what", "µs", "bar"], [[*row, f"< {result['bar']:.0f}: {verdict(result)}"]])


def models(result: dict[str, Any]) -> Lines:
    """Planning and imagining next to forward passes."""
    how = (
        "Processor time next to the forward passes of the same network in torch alone, by turns. A decision: 500 "
        "sequences of 15 actions, 5 iterations, layers 3 × 200. Imagined: 400 episodes of 5 steps with their actions "
        "and stored rows, next to passes of all 5 members, layers 4 × 200; each member evaluates its own alone."
    )
    rows = [
        [name, f"{case['milliseconds']:.0f}", f"{case['ratio']:.2f}", f"≤ {case['bar']:g}: {verdict(case)}"]
        for name, case in result.items()
    ]
    return [how, "", *table(["what", "ms", "ratio", "bar"], rows)]


def trees(result: dict[str, Any]) -> Lines:
    """Simulations of tree searches by a small network."""
    how = (
        "Thousands of simulations a second of one thread, medians. 25 simulations a tree, 4 actions, dynamics and "
        "prediction of one hidden layer of 64 in torch. Trees of Python objects ask the same networks node by node. "
        f"Bar: PUCT in 64 trees at once is so many times as fast: {result['ratio']:.1f}, ≥ {result['bar']:g}: "
        f"{verdict(result)}."
    )
    batches = sorted({int(batch) for speeds in result["thousands"].values() for batch in speeds})
    rows = [
        [name, *(f"{speeds[batch]:.0f}" if batch in speeds else "" for batch in batches)]
        for name, speeds in (
            (name, {int(key): value for key, value in of.items()}) for name, of in result["thousands"].items()
        )
    ]
    return [how, "", *table(["search", *(f"{batch} at once" for batch in batches)], rows)]


def peers(result: dict[str, Any]) -> Lines:
    """Training next to other libraries'."""
    lines = [
        "Environment steps a second at steady state, after learning has begun; the same numbers on both sides, every "
        "side in a separate process with one thread; they take turns. Ratio: rlrun's speed to that side's, within a "
        "round. First step: from the start of the process to the first step of the environment.",
        "",
    ]
    for name, part in result.items():
        shown = _compared if "sides" in part else _solved if "runs" in part else _begun
        lines += [*shown(name, part), ""]
    return lines[:-1]


def _compared(name: str, case: dict[str, Any]) -> Lines:
    """Return the table of a case, the sides without figures, and those that are faster than rlrun."""
    heads = ["side", "version", "steps/s", "rlrun's ratio", "first step, s", "peak, MB"]
    rows, ratio = [], case["ratio"]
    for side, stats in case["sides"].items():
        quotient = interval(ratio["rlrun"][side], ".2f") if side in ratio["rlrun"] else ""
        figures = [interval(stats[key], form) for key, form in (("first_step", ".1f"), ("megabytes", ".0f"))]
        counts = [f"{stats[key]:,}" for key in ("steps_of_optimizers", "parameters")]
        version = next((number for package, number in stats["versions"].items() if package not in case["machine"]), "")
        rows.append([side, version, interval(stats["speed"], ",.0f"), quotient, *figures, *counts])
    bars = [
        f"{bar['side']} ≥ {bar['least']:g} × {bar['peer']}: {interval(reached, '.2f') if reached else 'not measured'}, "
        f"{verdict(bar)}"
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
    """Return the time to reach a return, by seed."""
    rival = next(side for side in part["seconds"] if side != "rlrun")
    rows = [
        [str(run["seed"]), *(f"{side['seconds']:.1f} s, {_reached(side)}" for side in run["sides"].values())]
        for run in part["runs"]
    ]
    rows.append(["median", *(interval(part["seconds"][side], ".1f") + " s" for side in ("rlrun", rival))])
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
        f"* rlrun ≤ {part['bar']:g} of the time: {part['ratio']:.2f}, {verdict(part)}; "
        f"load {min(loads)}–{max(loads)}, {part['machine']['date']}",
    ]


def _begun(name: str, part: dict[str, Any]) -> Lines:
    """Return seconds to the first step."""
    loads = [record["load"] for record in part["rounds"]]
    rows = [[f"`{' '.join(overrides)}`", interval(part[side], ".2f")] for side, overrides in part["commands"].items()]
    return [
        f"### {name}",
        "",
        *table(["command", "seconds to the first step of its environment"], rows),
        "",
        f"* rlrun ≤ {part['bar']:g} of the time: {interval(part['ratio'], '.2f')}, {verdict(part)}; "
        f"{len(loads)} rounds, load {min(loads)}–{max(loads)}, {part['machine']['date']}",
    ]


def _reached(side: dict[str, Any]) -> str:
    return f"{side['env_steps']:,} steps" if side["reached"] else "not reached"


def memory(result: dict[str, Any]) -> Lines:
    """The replay memory alone, against other libraries'."""
    timed = {name: part for name, part in result.items() if "thousands" in part}
    how = (
        "Processor time of separate processes that take turns; memories are full; tensors on the CPU; ratios "
        "within a round; bytes: of the tensors, a transition."
    )
    heads = ["part", "side", "thousand transitions/s", "rlrun's speed / its", "bar", "bytes"]
    rows = [row for name, part in timed.items() for row in _sides(name, part)]
    uses = {side: (use, part["versions"][side]) for part in timed.values() for side, use in part["how"].items()}
    notes = [f"* {side} ({', '.join(map(' '.join, version.items()))}): {use}" for side, (use, version) in uses.items()]
    sizes = [
        [row["what"], f"{row['ratio']:.3f}" if "ratio" in row else row["error"], f"≤ {row['bar']}: {verdict(row)}"]
        for name, row in result.items()
        if name not in timed
    ]
    lines = [how, "", *table(heads, rows), "", *(_about(name, part) for name, part in timed.items()), "", *notes, ""]
    return lines + table(["what a full table takes", "ratio", "bar"], sizes)


def _sides(name: str, part: dict[str, Any]) -> list[list[str]]:
    """Return a row for each side of a part that has a figure, or lacks one that a bar needs."""
    rows = []
    for side in (*part["thousands"], *(side for side in part["missed"] if side in part["absent"])):
        speed = interval(part["thousands"][side], ",.0f") if side in part["thousands"] else "none"
        ratio = interval(part["ratio"][side], ".2f") if side in part["ratio"] else ""
        size = f"{part['bytes'][side] / part['transitions']:.0f}" if part["bytes"].get(side) else ""
        rows.append([name, side, speed, ratio, _bar(side, part), size])
    return rows


def _bar(side: str, part: dict[str, Any]) -> str:
    """Return the bar of a side and whether it is met; "" without a bar."""
    verdict = "missed" if side in part["missed"] else "met"
    if side in part["bars"]:
        return f"≥ {part['bars'][side]:g}: {verdict}"
    if side == "rlrun" and part.get("most_microseconds"):
        return f"{interval(part['microseconds'], '.2f')} ≤ {part['most_microseconds']:g} µs: {verdict}"
    return verdict if side in part["missed"] else ""


def _about(name: str, part: dict[str, Any]) -> str:
    """Return what a part measures, its conditions, and the sides without figures."""
    loads, reasons = part["load"], {}
    for side, why in part["absent"].items():
        reasons.setdefault(why, []).append(side)
    absent = "; ".join(f"{', '.join(sides)} ({why})" for why, sides in reasons.items())
    conditions = f"{len(loads)} rounds, load {min(loads)}–{max(loads)}, {part['machine']['date']}"
    return f"* {name}: {part['what']}; {conditions}{'; without ' if absent else ''}{absent}"


def checkpoints(result: dict[str, Any]) -> Lines:
    """The cost of saving, loading and listing."""
    rows = []
    for figure in result["figures"].values():
        bar = f"≤ {figure['bar']:g}: {verdict(figure)}" if "bar" in figure else ""
        rows.append([figure["what"], interval(figure, ".3f"), bar])
    loads = result["load"]
    how = (
        f"A memory of {result['memory']}, with two networks and their optimizers, saved by the callback of a run; "
        f"{len(loads)} rounds, load {min(loads)}–{max(loads)}."
    )
    return [how, "", *table(["what", "measured", "bar"], rows)]


def overhead(result: dict[str, Any]) -> Lines:
    """The cost of a sweep in addition to its jobs."""
    heads = ["jobs", "workers", "alone, s", "whole sweep, s", "ratio", "memory early, MB", "at the end", "growth"]
    figures = [interval(result[name], form) for name, form in (("seconds", ".1f"), ("ratio", ".2f"))]
    sizes = [interval(result[name], form) for name, form in (("early", ".0f"), ("late", ".0f"), ("growth", ".2f"))]
    row = [str(result["jobs"]), str(result["workers"]), f"{result['ideal']:.0f}", *figures, *sizes]
    bars = f"Bars: ratio ≤ {result['bar']:g}, growth ≤ {result['bar_growth']:g}: {verdict(result)}."
    how = (
        "Each job waits 1 s in all for its environment. Time from the command to its end: python and torch are "
        "imported once, every config is composed and checked before the first job starts. Each job is a process that "
        "builds, trains, and writes a checkpoint, its manifest and summary. Memory: of the scheduler and the "
        "process that forks the jobs, after a fifth of the jobs and at the end."
    )
    return [how, "", *table(heads, [row]), "", bars]


def asynchronous(result: dict[str, Any]) -> Lines:
    """Steps during learning, against steps between updates."""
    heads = ["updates a step", "stepped by a", "ms a step", "between updates, ms a step", "ratio", "bar"]
    rows = []
    for case in result.values():
        times = [interval(case["milliseconds"][side], ".1f") for side in (case["kind"], "sync")]
        bar = f"< {case['bar']:g}: {verdict(case)}" if "bar" in case else ""
        rows.append([case["updates"], case["kind"], *times, interval(case["ratio"], ".2f"), bar])
    how = (
        "SAC on a Pendulum that sleeps 10 ms a step; time from one environment step to the next, updates included. The "
        "best possible ratio is one half, where learning takes as long as stepping; the bar applies there."
    )
    overrides = [f"* {name}: `{' '.join(case['words'])}`" for name, case in result.items()]
    return [how, "", *table(heads, rows), "", *overrides]
