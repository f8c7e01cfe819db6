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
    checkpoints,
    defaults,
    dispatch,
    halfcheetah,
    kept,
    learning,
    ledger,
    memory,
    models,
    overhead,
    page,
    particles,
    peers,
    priority_chain,
    resilience,
    search,
    speed,
    startup,
    sweeps,
    trees,
    values,
    why,
)
from benchmarks.side import CASES

MEASURES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "speed": lambda args: speed.measure(args.speed, rounds=args.rounds),
    "peers": lambda args: peers.measure(args.peers, peers=args.measured_peers, rounds=args.rounds),
    "kept": lambda args: kept.measure(args.kept, against=args.against, rounds=args.rounds),
    "startup": lambda args: startup.measure(rounds=args.rounds),
    "dispatch": lambda args: dispatch.measure(),
    "models": lambda args: models.measure(),
    "trees": lambda args: trees.measure(rounds=args.rounds),
    "learning": lambda args: learning.measure(
        args.learning,
        seeds=args.seeds,
        workers=args.workers,
        overrides=args.override,
        earlier=page.load("learning") if args.add else None,
    ),
    "ledger": lambda args: ledger.measure(args.ledger, shard=args.shard, again=args.again),
    "memory": lambda args: memory.measure(args.memory, rivals=args.rivals, rounds=args.rounds),
    "chain": lambda args: priority_chain.measure([6, 8, 10, 12], range(5)),
    "checkpoints": lambda args: checkpoints.measure(rounds=args.rounds),
    "resilience": lambda args: resilience.measure(args.resilience, kills=args.kills, workers=args.workers),
    "overhead": lambda args: overhead.measure(rounds=args.rounds),
    "sweeps": lambda args: sweeps.measure(args.launcher),
    "async": lambda args: asynchronous.measure(rounds=args.rounds),
    "search": lambda args: search.measure(
        args.studies, parts=args.search, workers=args.workers, overrides=args.override
    ),
    "why": lambda args: why.measure(args.why),
    "halfcheetah": lambda args: halfcheetah.measure(
        args.halfcheetah, seeds=args.seeds, workers=args.workers, overrides=args.override
    ),
    "defaults": lambda args: defaults.measure(
        args.defaults, seeds=args.seeds, sides=args.sides, workers=args.workers, again=args.again
    ),
    "values": lambda args: values.measure(overrides=args.override),
    "particles": lambda args: particles.measure(seeds=args.seeds),
}


def seeds_of(text: str) -> list[int]:
    """Read `0-4`, `3` or `0,2,4`."""
    parts = [part.split("-") for part in text.split(",")]
    return [seed for part in parts for seed in range(int(part[0]), int(part[-1]) + 1)]


def shard_of(text: str) -> tuple[int, int]:
    """Read `2/4`: the second of four shares."""
    number, count = map(int, text.split("/"))
    if not 1 <= number <= count:
        raise ValueError(text)
    return number, count


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    root = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    commands = root.add_subparsers(dest="command", required=True)
    parsers = {name: commands.add_parser(name) for name in (*MEASURES, "all", "page")}
    for name in ("speed", "peers", "startup", "memory", "checkpoints", "overhead", "async", "trees", "all"):
        parsers[name].add_argument("--rounds", type=int, default=5)
    for name in ("learning", "all"):
        parsers[name].add_argument("--seeds", type=seeds_of, default=list(range(5)))
        parsers[name].add_argument("--add", action="store_true", help="keep earlier runs with other seeds")
    parsers["halfcheetah"].add_argument("--seeds", type=seeds_of, default=list(range(3)))
    parsers["particles"].add_argument("--seeds", type=seeds_of, default=list(range(5)))
    parsers["defaults"].add_argument("--seeds", type=seeds_of, default=list(range(5)))
    for name in ("defaults", "all"):
        parsers[name].add_argument("--sides", nargs="+", choices=defaults.SIDES, default=defaults.SIDES)
        parsers[name].add_argument("--again", action="store_true", help="forget earlier runs of these tasks")
    for name in ("search", "all"):
        parsers[name].add_argument("--studies", type=seeds_of, default=list(range(5)), help="their seeds")
    for name in ("learning", "search", "halfcheetah", "values", "all"):
        parsers[name].add_argument("--override", action="append", default=[], help="a further override for every run")
    for name in ("learning", "resilience", "search", "halfcheetah", "defaults", "all"):
        parsers[name].add_argument("--workers", type=int, default=2)
    for name in ("resilience", "all"):
        parsers[name].add_argument("--kills", type=int, default=resilience.KILLS)
    for name in ("memory", "all"):
        parsers[name].add_argument(
            "--rivals", nargs="*", choices=[*memory.REQUIREMENTS, "none"], help="also measured; default: all"
        )
    parsers["speed"].add_argument("speed", nargs="*", metavar="CASE", help=", ".join(CASES))
    parsers["peers"].add_argument("peers", nargs="*", metavar="PART", help=", ".join(peers.PARTS))
    for name in ("peers", "all"):
        parsers[name].add_argument(
            "--peers", dest="measured_peers", nargs="*", choices=peers.PEERS, help="also measured; default: all"
        )
    parsers["kept"].add_argument("kept", nargs="*", metavar="CASE", help=", ".join(peers.CASES))
    parsers["kept"].add_argument("--against", required=True, metavar="COMMIT", help="the commit before")
    parsers["kept"].add_argument("--rounds", type=int, default=10)
    parsers["learning"].add_argument("learning", nargs="*", metavar="CLAIM", help=", ".join(learning.CLAIMS))
    parsers["ledger"].add_argument("ledger", nargs="*", metavar="MODULE", help="such as alf.sac_algorithm")
    parsers["ledger"].add_argument("--again", action="store_true", help="train modules that passed, too")
    for name in ("ledger", "all"):
        parsers[name].add_argument(
            "--shard", type=shard_of, default=(1, 1), metavar="I/N", help="a share of the modules"
        )
    parsers["memory"].add_argument("memory", nargs="*", metavar="PART", help=", ".join(memory.PARTS))
    parsers["resilience"].add_argument(
        "resilience", nargs="*", metavar="CELL", help=", ".join([*resilience.PARTS, *resilience.CELLS])
    )
    parsers["sweeps"].add_argument("--launcher", action="append", choices=list(sweeps.LAUNCHERS), help="default: all")
    parsers["why"].add_argument("why", nargs="*", metavar="GROUP", help=", ".join(why.GROUPS))
    parsers["search"].add_argument("search", nargs="*", metavar="PART", help=", ".join(search.PARTS))
    parsers["all"].set_defaults(
        speed=[], peers=[], learning=[], ledger=[], memory=[], resilience=[], launcher=None, why=[]
    )
    parsers["halfcheetah"].add_argument("halfcheetah", nargs="*", metavar="CASE", help=", ".join(halfcheetah.CASES))
    parsers["defaults"].add_argument("defaults", nargs="*", metavar="TASK", help=", ".join(defaults.TASKS))
    parsers["all"].set_defaults(search=[], halfcheetah=[], peers=[], defaults=[])
    return root


def main(arguments: list[str]) -> int:
    """Measure, save, and write the page; return 1 if a bar was missed."""
    args = parser().parse_args(arguments)
    if args.command == "page":
        page.write()
        print("benchmarks/results/README.md")
        return 0
    chosen = [name for name in MEASURES if name != "kept"] if args.command == "all" else [args.command]
    passed = True
    for name in chosen:
        result = MEASURES[name](args)
        page.save(name, result)
        parts = [result] if "passed" in result else list(result.values())
        passed &= all(part.get("passed", True) for part in parts)
    page.write()
    print(f"benchmarks/results/README.md: {'every bar met' if passed else 'a bar was missed'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
