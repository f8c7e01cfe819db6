"""Take over parts of another run, and begin the new run with a checkpoint of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from torch import Tensor, nn

from rlrun import storage
from rlrun.callbacks import Checkpointer, MemoryImport
from rlrun.callbacks.transfer import sources_of
from rlrun.config import Composed
from rlrun.config.targets import explain
from rlrun.errors import ConfigError, RunDirError
from rlrun.files import write_text
from rlrun.forking import parents, sources
from rlrun.forking import settings as init
from rlrun.forking.beginning import position, require_budget, settle_keepers
from rlrun.forking.hints import names_differ
from rlrun.forking.learners import SlowCopy, part_of
from rlrun.forking.memories import Memory
from rlrun.forking.parts import Network, Pace, Part
from rlrun.forking.report import SHOWN as NAMES
from rlrun.forking.report import Entry, Fate, Report
from rlrun.forking.settings import Settings
from rlrun.forking.sources import Source
from rlrun.memory import Table
from rlrun.rundir import RunDir, checkpoint_name
from rlrun.trainer import Trainer
from rlrun.typing import Stateful

SHOWN = 4  # things that do not fit, in an error

_messages = logging.getLogger("rlrun.forking")


@dataclass
class Fork:
    """What a new run took over.

    Attributes:
        lineage: for the manifest: `run`, `checkpoint`, `env_steps`, `updates`, `digest`, `init`.
        report: what became of each thing.
    """

    lineage: dict[str, Any]
    report: Report
    place: tuple[int, int]  # environment step (or update) and update at which the new run begins

    def begin(self, run: RunDir, parts: Mapping[str, Stateful]) -> dict[str, Any]:
        """Write the new run's first checkpoint, before the folder is a run: from here on it needs no parent.

        Returns:
            The states that were written.

        Raises:
            RlrunError: the disk does not take it.
        """
        axis, update = self.place
        directory = run.checkpoints / checkpoint_name(axis, update)
        keeper = next((part for part in parts.values() if isinstance(part, Checkpointer)), None)
        rows = keeper is None or keeper.memory
        home = storage.home_of(run.checkpoints)
        tables = [path for path, part in parts.items() if isinstance(part, Table)]
        states = {
            path: part.checkpoint(home) if isinstance(part, Table) else part.state_dict()
            for path, part in parts.items()
            if rows or path not in tables
        }
        created = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"env_steps": axis, "updates": update, "evaluation": None, "created": created}
        storage.write(directory, storage.snapshot(states, about=about, apart=tables, copy=False))
        write_text(run.checkpoints / "latest", directory.name + "\n")
        run.note("\n".join(self.report.lines(most=None)))
        return states


def take(composed: Composed, parts: Mapping[str, Stateful], trainer: Trainer, *, dry: bool = False) -> Fork | None:
    """Take over what `init:` asks for; None where it names nothing to start from.

    All is decided before anything is changed, and nothing is written.

    Args:
        composed: of the new run; its words are made to name the very checkpoint that was taken.
        parts: of the new run, by config path.
        trainer: of the new run.
        dry: nothing will come of it: every name is told, also where the budget would refuse the run.

    Raises:
        RequestError: there is nothing to start from, it does not fit, or a pattern is about nothing.
    """
    settings = init.read(composed)
    if settings is None:
        return None
    taker = _Taker(settings, parts)
    source = taker.read()
    taker.decide(source)
    taker.load()
    place = position(parts, trainer)
    if not dry:
        require_budget(composed, place[0], trainer)
    for line in taker.report.lines(most=None if dry else NAMES):
        _messages.info("%s", line)
    require_budget(composed, place[0], trainer)
    settle_keepers(parts, place)
    parents.pin(composed, source.place)
    lineage = {
        "run": None if source.run is None else str(source.run.path),
        "checkpoint": str(source.place),
        **{name: source.about.get(name) for name in ("env_steps", "updates", "digest")},
        "init": init.as_resolved(settings),
    }
    return Fork(lineage, taker.report, place)


class _Taker:
    """Decides name by name what is taken over, and takes it."""

    def __init__(self, settings: Settings, parts: Mapping[str, Stateful]) -> None:
        self.settings = settings
        self.built = parts
        self.parts: dict[str, Part] = {path: part_of(part) for path, part in parts.items()}
        self.tables = {path for path, part in self.parts.items() if isinstance(part, Memory)}
        self.kinds = {
            _full(path, name): kind for path, part in self.parts.items() for name, kind in part.names().items()
        }
        self.tensors: dict[str, Tensor] = {}  # of networks
        for path, part in parts.items():
            if isinstance(part, nn.Module):
                self.tensors |= {_full(path, name): value for name, value in part.state_dict(keep_vars=True).items()}
        self.homes: dict[int, list[str]] = {}  # where each of them is found
        for name, tensor in self.tensors.items():
            self.homes.setdefault(id(tensor), []).append(name)
        self.found: dict[str, dict[str, Any]] = {}  # part -> name -> what it takes over
        self.loaded: set[str] = set()
        self.report = Report(settings.source)
        settings.require_met(self.kinds, self.parts)

    def read(self) -> Source:
        """Read the parent, but memories that nobody wants."""
        source = sources.read(parents.find(self.settings.source), self._wanted)
        self.report.origin = source.describe()
        return source

    def _wanted(self, part: str) -> bool:
        here = {part} | {new for old, new in self.settings.rename.items() if init.matches(old, part)}
        unwanted = {path for path in self.tables if not self.settings.loads(path, "memory")}
        return not here <= unwanted

    def decide(self, source: Source) -> None:
        """Settle what becomes of every name.

        Raises:
            ConfigError: something does not fit, or a pattern that says load finds nothing.
        """
        names = self.settings.renamed(source.nodes)
        nodes = {new: source.nodes[old] for old, new in names.items()}
        networks = [path for path, part in self.parts.items() if isinstance(part, Network)]
        for path in [*networks, *(path for path in self.parts if path not in networks)]:
            self.report.entries += self._of_part(path, nodes)
        order = list(self.parts)
        self.report.entries.sort(key=lambda entry: order.index(entry.part))
        self._require_fit(source)
        self._require_taken(source, nodes)
        self._tell(source)
        self._settle_import(nodes)

    def _of_part(self, path: str, nodes: Mapping[str, Any]) -> Iterator[Entry]:
        part, known = self.parts[path], any(f"{name}.".startswith(f"{path}.") for name in nodes)
        strict = known and isinstance(part, Network)
        for name, kind in part.names().items():
            full = _full(path, name)
            fate, why = self._fate(part, name, full, kind, nodes)
            if fate == "missing" and strict:
                fate, why = "misfit", "not there"
            if fate == "loaded":
                self.found.setdefault(path, {})[name] = nodes[full]
                self.loaded.add(full)
            yield Entry(path, full, fate, why)
        if strict:
            names = {_full(path, name) for name in part.names()}
            for full, value in nodes.items():
                beyond = full.startswith(f"{path}.") and full not in names and not isinstance(value, Mapping)
                if beyond and self.settings.loads(full, "weights"):
                    yield Entry(path, full, "misfit", "not here")

    def _fate(self, part: Part, name: str, full: str, kind: str, nodes: Mapping[str, Any]) -> tuple[Fate, str]:
        if not self.settings.loads(full, kind):
            return "skipped", ""
        leader = part.follows(name)
        if leader is not None and not self._loaded(leader):
            if kind == "optimisers":
                return "skipped", "its parameter begins anew"
            if self.settings.explicit(full) is None:
                return "skipped", "what it follows begins anew"
        if full not in nodes:
            return "missing", ""
        why = part.misfit(name, nodes[full])
        return ("loaded", "") if why is None else ("misfit", why)

    def _loaded(self, tensor: object) -> bool:
        return not self.loaded.isdisjoint(self.homes.get(id(tensor), ()))

    def _require_fit(self, source: Source) -> None:
        misfits = self.report.of("misfit")
        if misfits and not self.settings.lenient:
            shown = [f"{entry.name} ({entry.why})" for entry in misfits[:SHOWN]]
            more = f" and {len(misfits) - SHOWN} more" if len(misfits) > SHOWN else ""
            raise ConfigError(
                f"init.from: {source.place} does not fit: {', '.join(shown)}{more}; "
                "init.mismatch=skip begins these anew"
            )

    def _require_taken(self, source: Source, nodes: Mapping[str, Any]) -> None:
        for pattern, loads in self.settings.parts.items():
            if loads and not any(init.matches(pattern, name) for name in self.loaded):
                raise ConfigError(f"init.parts: '{pattern}: load' finds nothing to load in {source.place}")
        if not self.loaded:
            raise ConfigError(f"init.from: nothing of {source.place} is taken over by this run{self._why_not(nodes)}")

    def _why_not(self, nodes: Mapping[str, Any]) -> str:
        if not self.kinds.keys().isdisjoint(nodes):
            return ""  # it is settings that leave it out
        tensors = {name: value for name, value in nodes.items() if isinstance(value, Tensor)}
        return f": {names_differ(tensors, self.tensors)}"

    def _tell(self, source: Source) -> None:
        """Leave out of the report what no file of weights holds, and say where no network was taken over."""
        if source.place.is_file():
            lacking = {full for full, kind in self.kinds.items() if kind != "weights"}
            self.report.entries = [
                entry for entry in self.report.entries if entry.fate != "missing" or entry.name not in lacking
            ]
        if self.tensors and self.loaded.isdisjoint(self.tensors):
            paces = [path for path, part in self.parts.items() if isinstance(part, Pace)]
            begun = any(self.found.get(path, {}).get("start") is not None for path in paces)
            warm_up = ", and the warm-up is over; init.numbers=skip begins with it" if begun else ""
            self.report.remarks.append(f"no network was taken over: all begin anew{warm_up}")

    def _settle_import(self, nodes: Mapping[str, Any]) -> None:
        """Let a memory that the parent had from a file not be read from there again.

        Raises:
            ConfigError: the file is another one.
        """
        for path, part in self.built.items():
            if not isinstance(part, MemoryImport) or not part.sources or not self.loaded & self.tables:
                continue
            before = nodes.get(path)
            if before is None or not before["taken_in"] or sources_of(before) != part.sources:
                raise ConfigError(
                    f"memory.import={', '.join(part.sources)} and init.memory=load both say what the memory holds; "
                    "init.memory=skip leaves it to the file"
                )
            part.load_state_dict(part.state_dict() | {"taken_in": True})

    def load(self) -> None:
        """Take over what was decided: networks first, for slow copies look at them; memories last.

        Raises:
            RunDirError: a part does not take it.
        """
        rank = {Network: 0, Memory: 2}
        for path in sorted(self.parts, key=lambda path: rank.get(type(self.parts[path]), 1)):
            part = self.parts[path]
            if path not in self.found and not isinstance(part, SlowCopy):
                continue
            try:
                part.take(self.found.get(path, {}))
            except Exception as error:
                hint = "; init.memory=skip leaves it out" if isinstance(part, Memory) else ""
                raise RunDirError(f"init.from: {path} does not fit: {explain(error)}{hint}") from error
            if isinstance(part, Memory) and part.how:
                entries = self.report.entries
                entries[:] = [entry._replace(why=part.how) if entry.part == path else entry for entry in entries]


def _full(path: str, name: str) -> str:
    return f"{path}.{name}" if name else path
