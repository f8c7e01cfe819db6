"""Measure rlrun: python -m benchmarks WHAT, or `all`.

Results go to benchmarks/results/, with the page README.md made from all of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from benchmarks import (
    asynchronous,
    beside,
    checkpoints,
    defaults,
    dispatch,
    estimate,
    kept,
    learning,
    memory,
    overhead,
    page,
    peers,
    priority_chain,
    resilience,
    search,
    speed,
    startup,
    sweeps,
    values,
    why,
)
from benchmarks.side import CASES

MEASURES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "speed": lambda given: speed.measure(given.speed, rounds=given.rounds),
    "peers": lambda given: peers.measure(given.peers, peers=given.beside_peers, rounds=given.rounds),
    "kept": lambda given: kept.measure(given.kept, against=given.against, rounds=given.rounds),
    "startup": lambda given: startup.measure(rounds=given.rounds),
    "dispatch": lambda given: dispatch.measure(),
    "learning": lambda given: learning.measure(
        given.learning, seeds=given.seeds, workers=given.workers, words=given.word
    ),
    "memory": lambda given: memory.measure(given.memory, rivals=given.rivals, rounds=given.rounds),
    "chain": lambda given: priority_chain.measure([6, 8, 10, 12], range(5)),
    "checkpoints": lambda given: checkpoints.measure(rounds=given.rounds),
    "resilience": lambda given: resilience.measure(given.resilience, kills=given.kills, workers=given.workers),
    "overhead": lambda given: overhead.measure(rounds=given.rounds),
    "sweeps": lambda given: sweeps.measure(given.launcher),
    "async": lambda given: asynchronous.measure(rounds=given.rounds),
    "estimate": lambda given: estimate.measure(given.estimate),
    "search": lambda given: search.measure(given.studies, parts=given.search, workers=given.workers, words=given.word),
    "why": lambda given: why.measure(given.why),
    "beside": lambda given: beside.measure(given.beside, seeds=given.seeds, workers=given.workers, words=given.word),
    "defaults": lambda given: defaults.measure(
        given.defaults, seeds=given.seeds, sides=given.sides, workers=given.workers, again=given.again
    ),
    "values": lambda given: values.measure(),
}


def seeds_of(text: str) -> list[int]:
    """Read `0-4`, `3` or `0,2,4`."""
    parts = [part.split("-") for part in text.split(",")]
    return [seed for part in parts for seed in range(int(part[0]), int(part[-1]) + 1)]


def parser() -> argparse.ArgumentParser:
    """Return what the command understands."""
    found = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    commands = found.add_subparsers(dest="command", required=True)
    made = {name: commands.add_parser(name) for name in (*MEASURES, "all", "page")}
    for name in ("speed", "peers", "startup", "memory", "checkpoints", "overhead", "async", "all"):
        made[name].add_argument("--rounds", type=int, default=5)
    for name in ("learning", "all"):
        made[name].add_argument("--seeds", type=seeds_of, default=list(range(5)))
    made["beside"].add_argument("--seeds", type=seeds_of, default=list(range(3)))
    made["defaults"].add_argument("--seeds", type=seeds_of, default=list(range(5)))
    for name in ("defaults", "all"):
        made[name].add_argument("--sides", nargs="+", choices=defaults.SIDES, default=defaults.SIDES)
        made[name].add_argument("--again", action="store_true", help="forget earlier runs of these tasks")
    for name in ("search", "all"):
        made[name].add_argument("--studies", type=seeds_of, default=list(range(5)), help="their seeds")
    for name in ("learning", "search", "beside", "all"):
        made[name].add_argument("--word", action="append", default=[], help="a further word for every run")
    for name in ("learning", "resilience", "search", "beside", "defaults", "all"):
        made[name].add_argument("--workers", type=int, default=2)
    for name in ("resilience", "all"):
        made[name].add_argument("--kills", type=int, default=resilience.KILLS)
    for name in ("memory", "all"):
        made[name].add_argument(
            "--rivals", nargs="*", choices=[*memory.REQUIREMENTS, "none"], help="who is measured beside; default: all"
        )
    made["speed"].add_argument("speed", nargs="*", metavar="CASE", help=", ".join(CASES))
    made["peers"].add_argument("peers", nargs="*", metavar="PART", help=", ".join(peers.PARTS))
    for name in ("peers", "all"):
        made[name].add_argument(
            "--peers", dest="beside_peers", nargs="*", choices=peers.PEERS, help="who is measured beside; default: all"
        )
    made["kept"].add_argument("kept", nargs="*", metavar="CASE", help=", ".join(peers.CASES))
    made["kept"].add_argument("--against", required=True, metavar="COMMIT", help="the commit before")
    made["kept"].add_argument("--rounds", type=int, default=10)
    made["learning"].add_argument("learning", nargs="*", metavar="CLAIM", help=", ".join(learning.CLAIMS))
    made["memory"].add_argument("memory", nargs="*", metavar="PART", help=", ".join(memory.PARTS))
    made["resilience"].add_argument(
        "resilience", nargs="*", metavar="CELL", help=", ".join([*resilience.PARTS, *resilience.CELLS])
    )
    made["sweeps"].add_argument("--launcher", action="append", choices=list(sweeps.LAUNCHERS), help="default: all")
    made["estimate"].add_argument("estimate", nargs="*", metavar="CASE", help=", ".join(estimate.CASES))
    made["why"].add_argument("why", nargs="*", metavar="GROUP", help=", ".join(why.GROUPS))
    made["search"].add_argument("search", nargs="*", metavar="PART", help=", ".join(search.PARTS))
    made["all"].set_defaults(
        speed=[], peers=[], learning=[], memory=[], resilience=[], launcher=None, estimate=[], why=[]
    )
    made["beside"].add_argument("beside", nargs="*", metavar="CASE", help=", ".join(beside.CASES))
    made["defaults"].add_argument("defaults", nargs="*", metavar="TASK", help=", ".join(defaults.TASKS))
    made["all"].set_defaults(search=[], beside=[], peers=[], defaults=[])
    return found


def main(words: list[str]) -> int:
    """Measure, save, and make the page anew; 1 where a bar was missed."""
    given = parser().parse_args(words)
    if given.command == "page":
        page.write()
        print("benchmarks/results/README.md")
        return 0
    chosen = [name for name in MEASURES if name != "kept"] if given.command == "all" else [given.command]
    passed = True
    for name in chosen:
        found = MEASURES[name](given)
        page.save(name, found)
        parts = [found] if "passed" in found else list(found.values())
        passed &= all(part.get("passed", True) for part in parts)
    page.write()
    print(f"benchmarks/results/README.md: {'every bar met' if passed else 'a bar was missed'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
