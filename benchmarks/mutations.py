"""Lines of shipped code changed one at a time, at a commit before and today: do tests notice?

`python -m benchmarks.mutations --against COMMIT` runs the cases of mutations.yaml in a worktree of each commit and
prints a table. It writes results/mutations.json after each case, and a second call runs the missing cases.
The exit status is 1 if a change that was caught before is not caught today.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.kept import checkout
from benchmarks.process import ROOT

CASES = Path(__file__).with_suffix(".yaml")
RESULTS = ROOT / "benchmarks" / "results" / "mutations.json"
SIDES = ("before", "after")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", re.MULTILINE)  # of pytest's summary
SECONDS = 120  # of one test; a change may make it run forever


class CannotRun(Exception):
    """A case has no outcome, for a reason that is none of the change's."""


@dataclass(frozen=True)
class Change:
    """One line of one commit.

    Attributes:
        path: below src/rlrun.
        old, new: the text that is replaced, which the file holds once, and what replaces it.
        tests: paths and patterns below tests/ of the files that test this code.
    """

    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    @contextmanager
    def applied(self, tree: Path) -> Iterator[None]:
        """Change a tree for as long as the block lasts.

        Raises:
            CannotRun: the file does not hold the old text once.
        """
        file = tree / "src" / "rlrun" / self.path
        text = file.read_text() if file.exists() else ""
        if text.count(self.old) != 1:
            raise CannotRun(f"src/rlrun/{self.path} holds {text.count(self.old)} times: {self.old}")
        file.write_text(text.replace(self.old, self.new))
        try:
            yield
        finally:
            file.write_text(text)

    def test_files(self, tree: Path) -> list[str]:
        """Return the files to run, relative to the tree.

        Raises:
            CannotRun: a pattern matches no file.
        """
        files: list[str] = []
        for pattern in self.tests:
            matches = sorted(path.relative_to(tree).as_posix() for path in (tree / "tests").glob(pattern))
            if not matches:
                raise CannotRun(f"tests/{pattern} is no file")
            files += matches
        return files


def load_cases(names: Iterable[str] = ()) -> dict[str, dict[str, Change]]:
    """Return the change of each side by the name of the case; names: of some cases, all if empty."""
    wanted = set(names)
    cases = {}
    for entry in yaml.safe_load(CASES.read_text()):
        if not wanted or entry["id"] in wanted:
            sides = {"before": entry["before"], "after": {**entry["before"], **entry["after"]}}
            cases[entry["id"]] = {
                side: Change(**{**fields, "tests": tuple(fields["tests"])}) for side, fields in sides.items()
            }
    return cases


def run(change: Change, tree: Path) -> dict[str, Any]:
    """Return whether the tests of a change fail, and the first that does.

    Raises:
        CannotRun: the change cannot be made, the tests do not start, or the test fails without the change, too.
    """
    files = change.test_files(tree)
    with change.applied(tree):
        status, output = _pytest(tree, files)
    if status == 0:
        return {"caught": False, "test": None}
    names = FAILED.findall(output)
    if status != 1 or not names:
        raise CannotRun(output[-500:])
    if _pytest(tree, names[:1])[0] != 0:
        raise CannotRun(f"{names[0]} fails without the change, too")
    return {"caught": True, "test": names[0]}


def _pytest(tree: Path, names: list[str]) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-x", "-n0", f"--timeout={SECONDS}", "--hypothesis-seed=0", *names]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    result = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


def measure(commits: dict[str, str], cases: dict[str, dict[str, Change]]) -> dict[str, Any]:
    """Run the cases that have no outcome at these commits yet, and return all outcomes; commits: by side."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for side, name in commits.items():
        with checkout(name) as (commit, tree):
            for case, changes in cases.items():
                change = changes[side]
                place = {"commit": commit, **asdict(change), "tests": list(change.tests)}
                entry = results.setdefault(case, {}).get(side, {})
                if "caught" in entry and place.items() <= entry.items():
                    continue
                try:
                    outcome = run(change, tree)
                except CannotRun as error:
                    outcome = {"error": str(error)}
                results[case][side] = {**place, **outcome}
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
                print(f"{side:<7} {case:<36} {describe(results[case][side])}", flush=True)
    return results


def describe(entry: dict[str, Any]) -> str:
    """Return an outcome as a cell of the table."""
    if "caught" not in entry:
        return f"no outcome: {entry.get('error', 'not run')}"
    return entry["test"] if entry["caught"] else "not caught"


def lost(results: dict[str, Any], cases: Iterable[str]) -> list[str]:
    """Return the cases that were caught before, and are not known to be caught today."""
    caught = {side: {case for case in cases if results[case].get(side, {}).get("caught")} for side in SIDES}
    return sorted(caught["before"] - caught["after"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutations", description=__doc__)
    parser.add_argument("cases", nargs="*", help="default: all")
    parser.add_argument("--against", required=True, metavar="COMMIT", help="the commit before")
    parser.add_argument("--today", default="HEAD", metavar="COMMIT")
    parser.add_argument("--side", choices=SIDES, help="only this one; default: both")
    arguments = parser.parse_args()
    cases = load_cases(arguments.cases)
    commits = {"before": arguments.against, "after": arguments.today}
    sides = SIDES if arguments.side is None else (arguments.side,)
    results = measure({side: commits[side] for side in sides}, cases)
    for case in cases:
        print(f"{case:<36} {' | '.join(describe(results[case].get(side, {})) for side in SIDES)}")
    for side in SIDES:
        caught = sum(bool(results[case].get(side, {}).get("caught")) for case in cases)
        print(f"{side}: {caught} of {len(cases)} caught")
    missed = lost(results, cases)
    print("caught before and not today:", ", ".join(missed) or "none")
    return 1 if missed or any("error" in results[case].get(side, {}) for case in cases for side in sides) else 0


if __name__ == "__main__":
    sys.exit(main())
