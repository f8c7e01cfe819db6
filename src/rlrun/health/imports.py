"""Try which modules can be imported, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 120.0  # seconds for the modules of a process
AT_A_TIME = 2  # processes


@dataclass(frozen=True)
class Tried:
    """What came of importing a module.

    Attributes:
        error: the first line of what went wrong, or None.
        about: what the module says of the machine.
    """

    error: str | None = None
    about: dict[str, Any] = field(default_factory=dict)


def try_imports(modules: Iterable[str]) -> dict[str, Tried]:
    """Import modules elsewhere; return what came of each.

    Those that follow one that takes its process along are tried in another.
    """
    names = list(dict.fromkeys(modules))
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        shares = pool.map(_try, [names[first::AT_A_TIME] for first in range(AT_A_TIME)])
        return {name: tried for share in shares for name, tried in share.items()}


def _try(modules: Sequence[str]) -> dict[str, Tried]:
    results: dict[str, Tried] = {}
    while remaining := modules[len(results) :]:
        answers, end = _ask(remaining)
        results |= answers
        if len(answers) < len(remaining):
            results[remaining[len(answers)]] = Tried(error=end)
    return results


def _ask(modules: Sequence[str]) -> tuple[dict[str, Tried], str]:
    """Return the answers of one process, and how it ended."""
    command = [sys.executable, "-P", "-m", "rlrun.health.probe", *modules]  # -P: no module of the working directory
    quiet = {**os.environ, "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    try:
        process = subprocess.run(command, capture_output=True, timeout=PATIENCE, env=quiet, check=False)
        text, end = process.stdout, f"importing it ends Python (exit code {process.returncode})"
    except subprocess.TimeoutExpired as error:
        text, end = error.stdout or b"", f"importing it takes more than {PATIENCE:.0f} s"
    answers = [json.loads(line) for line in text.decode(errors="replace").splitlines() if line.endswith("}")]
    return {answer["module"]: Tried(answer["error"], answer["about"]) for answer in answers}, end
