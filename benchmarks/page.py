"""Results on disk, and the page that is made from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import sections_of_cost as cost
from benchmarks import sections_of_outcomes as outcomes
from benchmarks.machine import PRODUCTS, machine
from benchmarks.tables import Lines

RESULTS = Path(__file__).parent / "results"
PARTED = (
    "speed",
    "peers",
    "learning",
    "ledger",
    "memory",
    "resilience",
    "sweeps",
    "search",
    "why",
    "halfcheetah",
    "defaults",
    "values",
)  # results of which parts can be measured alone
SECTIONS: dict[str, Callable[[dict[str, Any]], Lines]] = {
    "speed": cost.speed,
    "peers": cost.peers,
    "kept": cost.kept,
    "startup": cost.startup,
    "dispatch": cost.dispatch,
    "models": cost.models,
    "trees": cost.trees,
    "learning": outcomes.learning,
    "ledger": outcomes.ledger,
    "memory": cost.memory,
    "chain": outcomes.chain,
    "checkpoints": cost.checkpoints,
    "resilience": outcomes.resilience,
    "overhead": cost.overhead,
    "sweeps": outcomes.sweeps,
    "async": cost.asynchronous,
    "search": outcomes.search,
    "why": outcomes.why,
    "halfcheetah": outcomes.halfcheetah,
    "defaults": outcomes.defaults,
    "values": outcomes.values,
    "particles": outcomes.particles,
}


def save(name: str, result: dict[str, Any], *, folder: Path = RESULTS) -> None:
    """Write a result with its machine; parts of an earlier result that are not measured now stay."""
    path = folder / f"{name}.json"
    here = machine()
    folder.mkdir(parents=True, exist_ok=True)
    earlier = load(name, folder=folder)
    old_parts = {part: outcome for part, outcome in earlier.items() if name in PARTED and part not in result}
    if name in PARTED:
        result = {part: {**outcome, "machine": here} for part, outcome in result.items()}
    path.write_text(json.dumps({"machine": here, "found": {**old_parts, **result}}, indent=1) + "\n")


def load(name: str, *, folder: Path = RESULTS) -> dict[str, Any]:
    """Return a saved result; {} if there is none."""
    path = folder / f"{name}.json"
    result: dict[str, Any] = json.loads(path.read_text())["found"] if path.exists() else {}
    return result


def write(*, folder: Path = RESULTS) -> None:
    """Write README.md from the saved results."""
    lines = ["# Measured", "", "Made by `python -m benchmarks`; one thread. Medians, with the least and the most.", ""]
    for name, section in SECTIONS.items():
        path = folder / f"{name}.json"
        if path.exists():
            saved = json.loads(path.read_text())
            lines += [f"## {name.capitalize()}", "", f"{conditions(saved['machine'])}.", ""]
            lines += [*section(saved["found"]), ""]
    (folder / "README.md").write_text("\n".join(lines).rstrip() + "\n")


def conditions(here: dict[str, Any]) -> str:
    """Return date, machine and versions in a line."""
    versions = ", ".join(f"{name} {here[name]}" for name in ("python", "torch", "numpy", "gymnasium"))
    products = f" ({here[PRODUCTS]})" if PRODUCTS in here else ""  # earlier results lack it
    return f"{here['date']}, {here['cores']} cores of {here['processor']}, {versions}{products}"
