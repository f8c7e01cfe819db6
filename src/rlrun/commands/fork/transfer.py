"""Load parts of another run, report them name by name, and write the first checkpoint of the new run."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple

from torch import Tensor

from rlrun import checkpointing as storage
from rlrun.callbacks import Checkpointer, MemoryImport
from rlrun.callbacks.transfer import sources_of
from rlrun.collect import ByIdCollector, Collector
from rlrun.commands.fork.parents import Settings, find, matches, pin, settings_of
from rlrun.commands.fork.parts import ForkedPart, Memory, Network, Pace, TargetNetwork, part_of
from rlrun.commands.fork.sources import WeightSource, names_differ, read, some
from rlrun.config import Composed
from rlrun.config.build import explain
from rlrun.core.errors import ConfigError, RunDirError
from rlrun.core.typing import Stateful
from rlrun.memory import Table
from rlrun.runs.directory import RunDir, checkpoint_name
from rlrun.runs.files import aligned, write_text
from rlrun.training.trainer import Trainer

Fate = Literal["loaded", "skipped", "missing", "misfit"]
FATES: tuple[Fate, ...] = ("loaded", "skipped", "missing", "misfit")
MISFITS = 4  # entries that do not fit, in an error
NAMES = 6  # names a line of a report

_messages = logging.getLogger("rlrun.commands.fork")


class ForkEntry(NamedTuple):
    """One named entry, and whether it was loaded."""

    part: str
    name: str  # full
    fate: Fate
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.why})" if self.why else self.name


@dataclass
class ForkReport:
    """All entries that a run can load, with their fates."""

    origin: str
    entries: list[ForkEntry] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # consequences that may surprise

    def of(self, fate: Fate) -> list[ForkEntry]:
        return [entry for entry in self.entries if entry.fate == fate]

    def lines(self, most: int | None = NAMES) -> Iterator[str]:
        """Yield a table of counts by part, then the names of what was not loaded; at most so many of a kind."""
        yield f"starts from {self.origin}"
        rows = [("part", *FATES)]
        for part in dict.fromkeys(entry.part for entry in self.entries):
            fates = [entry.fate for entry in self.entries if entry.part == part]
            rows.append((part, *(str(fates.count(fate) or "") for fate in FATES)))
        rows.append(("total", *(str(len(self.of(fate))) for fate in FATES)))
        yield from aligned(rows, left=("part",))
        yield from (f"{entry.name}: {entry.why}" for entry in self.of("loaded") if entry.why)
        for fate in FATES[1:] if most is not None else FATES:
            if entries := self.of(fate):
                yield f"{fate}: {some(entries, most, ', and')}"
        yield from self.remarks


@dataclass
class Fork:
    """The result of loading parts of a parent."""

    lineage: Any  # for the manifest: run, checkpoint, env_steps, updates, digest, init; a list of these for several
    report: ForkReport  # fate of each entry
    axis: int  # environment step (the update, without a collector) at which the new run begins
    update: int  # update at which it begins

    def begin(self, run: RunDir, parts: Mapping[str, Stateful]) -> dict[str, Any]:
        """Write the new run's first checkpoint. From here on the run does not need its parent.

        Returns:
            The states that were written.

        Raises:
            RlrunError: it cannot be written.
        """
        directory = run.checkpoints / checkpoint_name(self.axis, self.update)
        rows = all(part.memory for part in parts.values() if isinstance(part, Checkpointer))
        home = storage.home_of(run.checkpoints)
        tables = [path for path, part in parts.items() if isinstance(part, Table)]
        states = {
            path: part.checkpoint(home) if isinstance(part, Table) else part.state_dict()
            for path, part in parts.items()
            if rows or path not in tables
        }
        created = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"env_steps": self.axis, "updates": self.update, "evaluation": None, "created": created}
        storage.write(directory, storage.snapshot(states, about=about, apart=tables, copy=False))
        write_text(run.checkpoints / "latest", directory.name + "\n")
        run.note("\n".join(self.report.lines(most=None)))
        return states


def transfer(composed: Composed, parts: Mapping[str, Stateful], trainer: Trainer, *, dry: bool = False) -> Fork | None:
    """Load the entries that `init:` selects; None without a parent.

    All entries are checked before any is loaded, and nothing is written.

    Args:
        composed: of the new run; its overrides are set to the exact checkpoint.
        parts: of the new run, by config path.
        trainer: of the new run.
        dry: only report: list every name, even if the budget is already used up.

    Raises:
        RequestError: there is no parent, it does not fit, a pattern matches nothing, or its counters have reached the
            budget.
    """
    settings = settings_of(composed)
    if settings is None:
        return None
    selection = _Selection(settings, parts)
    try:
        parents = {text: find(text) for text in settings.sources.values()}
    except RunDirError as error:
        raise RunDirError(f"init.from: {error}") from error
    sources = {text: read(parent, partial(selection.wants, text)) for text, parent in parents.items()}
    report = selection.decide(sources)
    selection.load()
    update = int(trainer.state["update"])
    steps = (part.steps for part in parts.values() if isinstance(part, Collector | ByIdCollector))
    axis = next(steps, update)
    for line in report.lines(most=None if dry else NAMES):
        _messages.info("%s", line)
    counted = trainer.state["group_updates"].get("default", update)
    for name, count in {"env_steps": axis, "updates": counted}.items():
        limit = composed.config.stop[name]
        if limit is not None and count >= limit > 0:  # the run would end at once
            raise ConfigError(
                f"stop.{name}={limit}: the parent has made {count} of them, and they count; "
                f"give stop.{name} as the total, or count from 0 by init.numbers=skip"
            )
    for part in parts.values():
        if isinstance(part, Checkpointer):
            part.load_state_dict(part.state_dict() | {"axis": axis, "update": update})
    pin(composed, {text: source.place for text, source in sources.items()})
    lineage = [
        {
            "run": None if (run := parents[text].run) is None else str(run.path),
            "checkpoint": str(source.place),
            **{name: source.about.get(name) for name in ("env_steps", "updates", "digest")},
            "init": settings.as_config(text),
        }
        for text, source in sources.items()
    ]
    return Fork(lineage if len(lineage) > 1 else lineage[0], report, axis, update)


class _Selection:
    """Decides for each name whether it is loaded, and loads it."""

    def __init__(self, settings: Settings, parts: Mapping[str, Stateful]) -> None:
        self.settings = settings
        self.built = parts
        self.parts: dict[str, ForkedPart] = {path: part_of(part) for path, part in parts.items()}
        self.tables = {path for path, part in self.parts.items() if isinstance(part, Memory)}
        self.kinds = {_full(path, name): kind for path, part in self.parts.items() for name, kind in part.kinds.items()}
        self.tensors: dict[str, Tensor] = {  # of networks
            _full(path, name): value
            for path, part in self.parts.items()
            if isinstance(part, Network)
            for name, value in part.part.state_dict(keep_vars=True).items()
        }
        self.values: dict[str, dict[str, Any]] = {}  # part -> name -> value to load
        self.loaded: set[str] = set()
        self.loaded_ids: set[int] = set()  # ids of the tensors that are loaded
        settings.require_met(self.kinds, self.parts)

    def wants(self, text: str, part: str) -> bool:
        """Return True if a part of a source is needed; memories are read only if they are loaded."""
        here = {part} | {new for old, new in self.settings.renaming(text) if matches(old, part)}
        tables = {path for path in self.tables if self.settings.gives(text, path)}
        return any(path not in self.tables or (path in tables and self.settings.loads(path, "memory")) for path in here)

    def decide(self, sources: Mapping[str, WeightSource]) -> ForkReport:
        """Decide the fate of every name.

        Raises:
            ConfigError: an entry does not fit, or a pattern with `load` matches no entry.
        """
        nodes: dict[str, Any] = {}
        for text, source in sources.items():
            names = self.settings.renamed(source.nodes, text)
            nodes |= {new: source.nodes[old] for old, new in names.items() if self.settings.gives(text, new)}
        files = all(source.place.is_file() for source in sources.values())
        entries: dict[str, list[ForkEntry]] = {path: [] for path in self.parts}
        for path in sorted(self.parts, key=lambda path: not isinstance(self.parts[path], Network)):
            entries[path] += self._decide_part(path, nodes, files)  # networks first: other parts depend on them
        origin = " and ".join(source.origin for source in sources.values())
        self.report = ForkReport(origin, [entry for group in entries.values() for entry in group])
        self._require_fit(" and ".join(str(source.place) for source in sources.values()), nodes)
        if self.tensors and self.loaded.isdisjoint(self.tensors):
            paces = [path for path, part in self.parts.items() if isinstance(part, Pace)]
            warmed_up = any(self.values.get(path, {}).get("start") is not None for path in paces)
            warm_up = ", and the warm-up is over; init.numbers=skip begins with it" if warmed_up else ""
            self.report.remarks.append(f"no network was loaded: all are initialized{warm_up}")
        self._settle_import(nodes)
        return self.report

    def _decide_part(self, path: str, nodes: Mapping[str, Any], files: bool) -> Iterator[ForkEntry]:
        part, names = self.parts[path], set()
        strict = isinstance(part, Network) and any(f"{name}.".startswith(f"{path}.") for name in nodes)
        for name, kind in part.kinds.items():
            full = _full(path, name)
            names.add(full)
            fate, why = self._fate(part, name, full, kind, nodes)
            if fate == "missing" and strict:
                fate, why = "misfit", "not there"
            if fate == "loaded":
                self.values.setdefault(path, {})[name] = nodes[full]
                self.loaded.add(full)
                self.loaded_ids |= {id(self.tensors[full])} if full in self.tensors else set()
            if fate != "missing" or kind == "weights" or not files:  # files hold only weights
                yield ForkEntry(path, full, fate, why)
        for full, value in nodes.items() if strict else ():
            beyond = full.startswith(f"{path}.") and full not in names and not isinstance(value, Mapping)
            if beyond and self.settings.loads(full, "weights"):
                yield ForkEntry(path, full, "misfit", "not here")

    def _fate(self, part: ForkedPart, name: str, full: str, kind: str, nodes: Mapping[str, Any]) -> tuple[Fate, str]:
        if not self.settings.loads(full, kind):
            return "skipped", ""
        owner = part.owner(name)
        if owner is not None and id(owner) not in self.loaded_ids:
            if kind == "optimizers":
                return "skipped", "its parameter is initialized"
            if self.settings.explicit(full) is None:
                return "skipped", "its network is initialized"
        if full not in nodes:
            return "missing", ""
        why = part.misfit(name, nodes[full])
        return ("loaded", "") if why is None else ("misfit", why)

    def _require_fit(self, place: str, nodes: Mapping[str, Any]) -> None:
        misfits = self.report.of("misfit")
        if misfits and not self.settings.lenient:
            names = some(misfits, MISFITS)
            way_out = "give this run the sizes of that one; or init.mismatch=skip initializes these"
            raise ConfigError(f"init.from: {place} does not fit: {names}; {way_out}")
        for pattern, loads in self.settings.parts.items():
            if loads and not any(matches(pattern, name) for name in self.loaded):
                where = self.settings.sources.get(pattern, place)
                raise ConfigError(f"{self.settings.key(pattern)}: '{pattern}: load' finds nothing to load in {where}")
        if not self.loaded:
            why = ""
            if self.kinds.keys().isdisjoint(nodes):  # else the settings exclude them
                tensors = {name: value for name, value in nodes.items() if isinstance(value, Tensor)}
                why = f": {names_differ(tensors, self.tensors)}"
            raise ConfigError(f"init.from: this run loads nothing of {place}{why}")

    def _settle_import(self, nodes: Mapping[str, Any]) -> None:
        """Skip the import of a memory that the parent has imported already.

        Raises:
            ConfigError: the new run names another file.
        """
        for path, part in self.built.items():
            if not isinstance(part, MemoryImport) or not part.sources or not self.loaded & self.tables:
                continue
            before = nodes.get(path)
            if before is None or not before["taken_in"] or sources_of(before) != part.sources:
                raise ConfigError(
                    f"memory.import={', '.join(part.sources)} and init.memory=load both fill the memory; "
                    "init.memory=skip uses the file"
                )
            part.load_state_dict(part.state_dict() | {"taken_in": True})

    def load(self) -> None:
        """Load the selected entries: networks first, because target networks read them; memories last.

        Raises:
            RunDirError: a part refuses its values.
        """
        rank: dict[type[ForkedPart], int] = {Network: 0, Memory: 2}
        for path, part in sorted(self.parts.items(), key=lambda item: rank.get(type(item[1]), 1)):
            if path not in self.values and not isinstance(part, TargetNetwork):
                continue
            try:
                part.load(self.values.get(path, {}))
            except Exception as error:
                hint = "; init.memory=skip leaves it out" if isinstance(part, Memory) else ""
                raise RunDirError(f"init.from: {path} does not fit: {explain(error)}{hint}") from error
            if isinstance(part, Memory) and part.how:
                entries = self.report.entries
                entries[:] = [entry._replace(why=part.how) if entry.part == path else entry for entry in entries]


def _full(path: str, name: str) -> str:
    return f"{path}.{name}" if name else path
