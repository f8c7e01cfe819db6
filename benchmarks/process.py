"""Run measured work in separate processes of one thread, each in a scratch folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Failed(Exception):
    """A measured process failed."""


class Finished(NamedTuple):
    """What a process printed, and the processor time it and its children took."""

    output: str
    processor_seconds: float


def run(
    arguments: list[str], *, folder: Path, python: Path | str = sys.executable, tree: Path | None = None
) -> Finished:
    """Run a Python process in a folder, with the benchmarks importable.

    arguments: what follows `python`, such as `["-m", "rlrun", "--help"]`; python: the interpreter.
    tree: another checkout, whose benchmarks and source are imported instead.

    Raises:
        Failed: it exited with an error.
    """
    output, errors = folder / f"{os.urandom(4).hex()}.out", folder / f"{os.urandom(4).hex()}.err"
    with output.open("w") as out, errors.open("w") as err:
        process = subprocess.Popen([python, *arguments], cwd=folder, env=environment(tree), stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise Failed(f"python {' '.join(arguments)} exited with {process.returncode}: {errors.read_text()[-2_000:]}")
    return Finished(output.read_text(), usage.ru_utime + usage.ru_stime)


def environment(tree: Path | None = None) -> dict[str, str]:
    """Return the variables of a measured process; it keeps what it compiled, as a user's does."""
    roots = (str(tree), str(tree / "src")) if tree else (str(ROOT),)
    paths = os.pathsep.join(filter(None, (*roots, os.environ.get("PYTHONPATH"))))
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**variables, **THREADS, "PYTHONPATH": paths}


def run_for_json(
    arguments: list[str], *, folder: Path, python: Path | str = sys.executable, tree: Path | None = None
) -> dict[str, Any]:
    """Run a Python process whose last line is one JSON object; the parameters are those of `run`."""
    result: dict[str, Any] = json.loads(run(arguments, folder=folder, python=python, tree=tree).output.splitlines()[-1])
    return result
