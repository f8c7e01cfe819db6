"""Every entry of the ledgers of ALF and Emote, trained for three updates as written.

Each entry is a process of its own. A part is a module of one of them; its outcome is saved when it ends, and a second
call trains the parts that are missing, that failed, or whose entries changed.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from handbook.compatibility import NAMES, entries, said
from tests.forked import start

from benchmarks import page

MODULE = "tests.compatibility.trial"
LIMIT = 180.0  # seconds of an entry


def parts() -> dict[str, dict[str, list[str]]]:
    """Return module -> overrides -> the entries that say them, without those that name no overrides."""
    result: dict[str, dict[str, list[str]]] = {}
    for system in NAMES:
        for (module, *name), text in entries(system).items():
            if said(text):
                part = module if system == "emote" else f"{system}.{module}"
                result.setdefault(part, {}).setdefault(text, []).append(".".join(name))
    return result


def measure(
    names: Iterable[str] = (),
    *,
    shard: tuple[int, int] = (1, 1),
    again: bool = False,
    folder: Path = page.RESULTS,
) -> dict[str, Any]:
    """Return the outcome of each module.

    Args:
        names: of modules; none = all.
        shard: number and count of shares, of which one is trained now; counted from 1.
        again: train modules that passed, too.
        folder: of the results.
    """
    texts, results = parts(), dict[str, Any]()
    number, count = shard
    for name in list(names or texts)[number - 1 :: count]:
        digest = hashlib.sha256(json.dumps(list(texts[name])).encode()).hexdigest()[:16]
        earlier = page.load("ledger", folder=folder).get(name, {})
        if again or earlier.get("digest") != digest or not earlier.get("passed"):
            page.save("ledger", {name: {"digest": digest, **one_module(texts[name])}}, folder=folder)
        results[name] = page.load("ledger", folder=folder)[name]
    return results


def one_module(texts: dict[str, list[str]]) -> dict[str, Any]:
    """Train the entries of a module; an error is in the result, and stops no other entry."""
    begun, outcomes = time.perf_counter(), {text: one_entry(text) for text in texts}
    failed = {text: outcome["error"] for text, outcome in outcomes.items() if "error" in outcome}
    for text, error in failed.items():
        print(f"{', '.join(texts[text])}: {text}\n    {error}", flush=True)
    return {
        "passed": not failed,
        "entries": sum(map(len, texts.values())),
        "trained": len(texts),
        "skipped": sum("skipped" in outcome for outcome in outcomes.values()),
        "failed": {text: {"entries": texts[text], "error": error} for text, error in failed.items()},
        "wall_seconds": round(time.perf_counter() - begun, 1),
    }


def one_entry(text: str, *, limit: float = LIMIT) -> dict[str, Any]:
    """Train an entry in a process and a folder of its own; return what `tests.compatibility.trial` prints."""
    with TemporaryDirectory() as place:
        log = Path(place) / "log.txt"
        child = start([text], folder=Path(place), log=log, module=MODULE)
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return {"error": f"no three updates within {limit:g} s"}
        printed = log.read_text(errors="replace").strip().splitlines() or [""]
        if code != 0:
            return {"error": f"exited with {code}: {printed[-1]}"}
        outcome: dict[str, Any] = json.loads(printed[-1])
        return outcome
