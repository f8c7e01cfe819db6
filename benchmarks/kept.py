"""Speed kept: processor time of rlrun at another commit over that of this working tree; the two alternate.

Each tree runs its own `benchmarks.peers`, so each gets the overrides that it understands. Both processes of a round
take turns of a quarter of a second. So a processor that becomes slower, or is shared, is as slow for both.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.machine import load
from benchmarks.peers import CASES, SLACK
from benchmarks.process import ROOT, Failed, environment
from benchmarks.speed import spread

LEAST, MEAN = 0.97, 1.0  # bars of each case's median ratio, and of their geometric mean
SLICE = 0.25  # seconds of a turn
SAME = ("env_steps", "updates", "parameters")  # or the two commits did not do the same work
TURN = """
import json, sys
from benchmarks import peers
print(json.dumps(peers.turn(peers.CASES[sys.argv[1]], peers.RLRUN)))
"""


def measure(names: list[str] | None = None, *, against: str, rounds: int = 10) -> dict[str, Any]:
    """Return the ratios of each case, and their geometric mean.

    Args:
        names: of `benchmarks.peers.CASES`; None or [] for all.
        against: the commit before, by any name that git knows.
        rounds: of each case; the two trees take turns to go first.

    Raises:
        Failed: there is no such commit, or a case does not run to its end at one of the two.
    """
    with checkout(against) as (commit, before):
        cases = {name: measure_case(name, {"before": before, "after": ROOT}, rounds) for name in names or CASES}
    mean = math.exp(sum(math.log(case["ratio"]["median"]) for case in cases.values()) / len(cases))
    passed = mean >= MEAN and all(case["passed"] for case in cases.values())
    return {"against": commit, "cases": cases, "geometric_mean": mean, "bar": MEAN, "passed": passed}


@contextmanager
def checkout(commit: str) -> Iterator[tuple[str, Path]]:
    """Give the commit's full name and a tree of it, which is removed at the end."""
    with TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        name = _git("rev-parse", "--verify", f"{commit}^{{commit}}")
        _git("worktree", "add", "--detach", str(tree), name)
        try:
            yield name, tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> str:
    result = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    if result.returncode != 0:
        raise Failed(f"git {' '.join(arguments)}: {result.stderr.strip()}")
    return result.stdout.strip()


def measure_case(name: str, trees: dict[str, Path], rounds: int) -> dict[str, Any]:
    """Run both trees, one after the other, and compare them round by round."""
    history = []
    for number in range(rounds):
        entry: dict[str, Any] = {"load": load()}
        entry |= turns(name, {side: trees[side] for side in sorted(trees, reverse=bool(number % 2))})
        for quantity in SAME:
            if not math.isclose(entry["before"][quantity], entry["after"][quantity], rel_tol=SLACK):
                raise Failed(f"{name}: {quantity} differ: {entry['before'][quantity]} and {entry['after'][quantity]}")
        entry["ratio"] = entry["before"]["processor_seconds"] / entry["after"]["processor_seconds"]
        history.append(entry)
        print(f"{name} round {number + 1}: {entry['ratio']:.3f} (load {entry['load']})", flush=True)
    ratio = spread([entry["ratio"] for entry in history])
    return {"ratio": ratio, "bar": LEAST, "passed": ratio["median"] >= LEAST, "rounds": history}


def turns(name: str, trees: dict[str, Path]) -> dict[str, Any]:
    """Run a case once with the code of each tree, alternately; return what their meters say.

    Raises:
        Failed: a tree has no such case, or the case did not come to the end of its window.
    """
    with TemporaryDirectory() as folder, ExitStack() as stack:
        processes = {
            side: stack.enter_context(started(name, tree, Path(folder) / side)) for side, tree in trees.items()
        }
        while running := [process for process in processes.values() if process.poll() is None]:
            for process in running:
                os.killpg(process.pid, signal.SIGCONT)
                try:
                    process.wait(SLICE)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGSTOP)
        for side, process in processes.items():
            if process.returncode:
                raise Failed(f"{name}, {side}: {(Path(folder) / side).read_text()[-2_000:]}")
        return {side: json.loads((Path(folder) / side).read_text().splitlines()[-1]) for side in trees}


@contextmanager
def started(name: str, tree: Path, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a case as a group of processes that writes to a file, and stop the group at once."""
    folder = output.with_suffix(".folder")
    folder.mkdir()
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", TURN, name],
            cwd=folder,
            env=environment(tree),
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        os.killpg(process.pid, signal.SIGSTOP)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
