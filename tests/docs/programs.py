"""Programs that pages call: `rlrun` runs here, in small; of others as much as can be, each with the reason."""

import importlib.util
import json
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from rlrun.cli.main import main
from rlrun.sweep.sweeping import SweepSettings, split_overrides

from .alone import called
from .pages import ROOT
from .shell import Answer
from .small import keys, overrides_of, small_runs, with_less

# Not everywhere is `jq`: the one filter that pages have.
JQ = f"""#!/bin/bash
[ "$1" = '.[-1].parts' ] && exec {sys.executable} -c 'import json, sys; print(json.load(sys.stdin)[-1]["parts"])'
"""


class Excuse(NamedTuple):
    """A command of a page that cannot do here what it says.

    pattern: of the whole command; reason: why; instead: returns the overrides of what is run.
    """

    pattern: str
    reason: str
    instead: Callable[[list[str]], list[str]]


def rlrun(overrides: list[str], folder: Path) -> Answer:
    """Run `rlrun` with overrides of a page; of a run that it made, the page's overrides have to be known."""
    excuse = next((rule for rule in EXCUSES if re.search(rule.pattern, shlex.join(["rlrun", *overrides]))), None)
    if excuse is not None:
        overrides = excuse.instead(overrides)
    with small_runs():
        answer = called(main, ["rlrun", *with_less(overrides, folder)], folder)
    if answer.code == 0 and overrides[0] == "train" and not {"-m", "--dry-run"} & set(overrides):
        run = folder / (json.loads(answer.out)["path"] if "--json" in overrides else answer.out.split()[-1])
        unheard = [key for key in keys(overrides[1:]) if key not in keys(overrides_of(run))]
        if unheard:
            return Answer(1, answer.out, f"the run in {run} knows nothing of {unheard}")
    return answer


def torchrun(overrides: list[str], folder: Path) -> Answer:
    """Be one process alone; several: tests/runs/test_ranks.py."""
    return rlrun(overrides[overrides.index("rlrun") + 1 :], folder)


# --- what cannot run here


def _listed(overrides: list[str]) -> list[str]:
    """Make the launcher of a sweep, and list jobs, a few of them."""
    SweepSettings(split_overrides([override for override in overrides[1:] if override[0] != "-"])[1]).launcher()
    return [*(re.sub(r"range\(\d+\)", "range(2)", override) for override in overrides), "--dry-run"]


def _composed(overrides: list[str]) -> list[str]:
    return ["config", *overrides[1 : overrides.index("--run-dir")]]


def _checked(overrides: list[str]) -> list[str]:
    return ["check", *overrides[1:]]


def _without_promise(overrides: list[str]) -> list[str]:
    return [override for override in overrides if override != "--expect"]


def _offline(overrides: list[str]) -> list[str]:
    return [*overrides, "mode=offline"]


def _listing(overrides: list[str]) -> list[str]:
    return ["ls", *overrides[1:]]


EXCUSES = [
    Excuse(r"launcher=slurm", "wants Slurm; its jobs run locally: tests/sweep/test_launchers.py", _listed),
    Excuse(r"launcher\.ranks", "starts torchrun, which knows no small runs: tests/sweep/test_sweeps.py", _listed),
    Excuse(r"launcher=ray", "wants Ray; jobs by it: tests/sweep/test_launchers.py", _listed),
    Excuse(r"--to wandb", "wants an account: tests/callbacks/test_sinks.py", _offline),
    Excuse(r"rlrun watch", "wants a terminal: tests/cli/test_watch.py", _listing),
    Excuse(r"--expect", "a run of a moment keeps no promise: tests/cli/test_expect.py", _without_promise),
    Excuse(r"compile=true", "compiles for ten seconds: tests/compile/test_algorithms.py", _checked),
    Excuse(r"with=export_onnx", "writes files, which takes seconds: tests/export/test_during.py", _checked),
]
if importlib.util.find_spec("mujoco") is None:
    EXCUSES.append(Excuse(r"env=hopper", "wants the extra mujoco, which is not installed", _composed))


# --- other programs


def python(overrides: list[str], folder: Path) -> Answer:
    """Be `python`: a script runs, packages and suites of tests are looked at."""
    if overrides[:2] == ["-m", "pip"]:
        return pip(overrides[2:], folder)
    if overrides[:2] == ["-m", "pytest"]:
        return _pytest(overrides[2:], folder)
    return called(lambda: runpy.run_path(overrides[0], run_name="__main__"), overrides, folder, script=True)


def pip(overrides: list[str], folder: Path) -> Answer:
    """Look at what is to be installed: files and extras there are. The gate does it, but a project of the page here."""
    if overrides == ["install", "-e", "."] and (folder / "pyproject.toml").exists():
        return _installed(folder)
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        extra.strip() for group in re.findall(r"\[([\w, ]+)\]", shlex.join(overrides)) for extra in group.split(",")
    }
    wrong = sorted(extras - set(own["optional-dependencies"]))
    wrong += [name for option, name in pairwise(overrides) if option == "-c" and not _there(name)]
    what = [override for override in overrides[1:] if override[0] not in "-." and not _there(override)]
    wrong += [override for override in what if override.partition("[")[0] not in (own["name"], "pytest")]
    return Answer(1 if overrides[0] != "install" or wrong else 0, "", f"pip: there is no {', '.join(wrong)}")


def _installed(folder: Path) -> Answer:
    """Put a project where it can be imported, with its entry points; without its dependency, which is rlrun."""
    about = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    place = folder / f"{about['name']}-{about['version']}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n")
    groups = about.get("entry-points", {}).items()
    lines = [line for name, table in groups for line in (f"[{name}]", *(f"{key} = {table[key]}" for key in table))]
    (place / "entry_points.txt").write_text("\n".join(lines))
    sys.path.append(str(folder))  # until the page ends
    importlib.invalidate_caches()
    return Answer(0)


def _there(name: str) -> bool:
    return (ROOT / name).exists()


def _pytest(overrides: list[str], folder: Path) -> Answer:
    """Look for the tests. Those of `rlrun init` run in tests/cli/test_init.py, those of rlrun are these."""
    places = [override for override in overrides if "/" in override or override == "tests"] or ["tests"]
    home = folder if (folder / "pyproject.toml").exists() else ROOT
    missing = [place for place in places if not any((home / place).glob("**/test_*.py"))]
    return Answer(len(missing), "", f"pytest: no tests in {missing}")


def elsewhere(overrides: list[str], folder: Path) -> Answer:
    """Be a checker of the gate, `.ci/run`, or wandb, which needs a server; tests/sweep/test_search.py is its agent."""
    return Answer(0)


def requeue(overrides: list[str], folder: Path) -> Answer:
    """Be a scheduler's command, which nobody calls for a run that came to its end."""
    return Answer(1, "", "requeue: the run was not stopped")


PROGRAMS = {
    "rlrun": rlrun,
    "torchrun": torchrun,
    "python": python,
    "pip": pip,
    "wandb": elsewhere,
    "requeue": requeue,
    "ruff": elsewhere,
    "mypy": elsewhere,
    "mkdocs": elsewhere,
}
SCRIPTS = {"jq": JQ}
