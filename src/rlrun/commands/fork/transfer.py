"""Load parts of other runs into a new one: `init: {PART: RUN}`. Errors appear before a run directory is created."""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from torch import nn

from rlrun import checkpointing as storage
from rlrun.callbacks import Checkpointer, MemoryImport, TargetCallback
from rlrun.commands.fork.fits import Fits, entries_of, is_optimizer
from rlrun.commands.fork.parents import wanted
from rlrun.commands.fork.sources import choose, read
from rlrun.config import Composed
from rlrun.config.build import explain
from rlrun.core.errors import RunDirError
from rlrun.core.files import write_text
from rlrun.core.typing import Stateful
from rlrun.memory import Table
from rlrun.memory.table.episodes import cut_off
from rlrun.runs.directory import RunDir, checkpoint_name

_messages = logging.getLogger("rlrun.commands.fork")


@dataclass
class Fork:
    """The record of the parts that a new run took from others."""

    lineage: Any  # for the manifest: one parent, or a list of several
    lines: list[str]  # for the log: loaded parts with their sources, and parts that keep their initial values

    def begin(self, run: RunDir, parts: Mapping[str, Stateful]) -> dict[str, Any]:
        """Write the new run's first checkpoint. From here on the run does not need its parents.

        Returns:
            The states that were written.

        Raises:
            RlrunError: it cannot be written.
        """
        directory = run.checkpoints / checkpoint_name(0, 0)
        rows = all(part.memory for part in parts.values() if isinstance(part, Checkpointer))
        home = storage.home_of(run.checkpoints)
        tables = [path for path, part in parts.items() if isinstance(part, Table)]
        states = {
            path: part.checkpoint(home) if isinstance(part, Table) else part.state_dict()
            for path, part in parts.items()
            if rows or path not in tables
        }
        created = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"env_steps": 0, "updates": 0, "evaluation": None, "created": created}
        storage.write(directory, storage.snapshot(states, about=about, apart=tables, copy=False))
        write_text(run.checkpoints / "latest", directory.name + "\n")
        run.note("\n".join(self.lines))
        return states


def transfer(composed: Composed, parts: Mapping[str, Stateful]) -> Fork | None:
    """Load the parts that `init` names into a built run; return None if it names none.

    Args:
        composed: of the new run.
        parts: of the new run, by config path.

    Raises:
        RequestError: a run, a checkpoint or a part does not exist, or does not fit.
    """
    init, strict = wanted(composed), composed.config.init.strict
    if not any(init.values()):
        return None
    own = {path: entries for path, part in parts.items() if (entries := entries_of(part))}
    taken = choose(init, own)
    sources = read(taken)
    fits = Fits(parts, own, taken, sources)
    for path in sorted(taken, key=lambda path: not isinstance(parts[path], nn.Module)):
        fits.take(path, strict)
    values, left = fits.values, fits.left
    tables = [path for path in values if isinstance(parts[path], Table)]
    networks = [path for path in values if isinstance(parts[path], nn.Module)]
    for path in networks:
        _load(path, parts[path], values[path], own[path])
    for part in parts.values():
        if isinstance(part, TargetCallback):
            part.catch_up()
        if isinstance(part, MemoryImport) and part.sources and any(parts[path] is part.table for path in tables):
            part.load_state_dict(part.state_dict() | {"taken_in": True})
            left["memory.import"] = "the memory is that of another run"
    for path in values:
        if path not in networks:
            _load(path, parts[path], values[path], own[path])
    lines, lineage = [], []
    for run, (directory, place, about, _) in sources.items():
        came = {"env_steps": about.env_steps, "updates": about.updates}
        steps = f"{about.env_steps or 0:,} env steps, {about.updates or 0:,} updates"
        lines.append(f"starts from {place} ({steps}): {', '.join(fits.described(run)) or 'nothing'}")
        with open(place / storage.MANIFEST, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        keys = {entry.key: entry.prefix for entries in taken.values() for entry in entries.values() if entry.run == run}
        lineage.append({"run": str(directory.path), "checkpoint": str(place), **came, "digest": digest, "init": keys})
    for state, whys in (("initial values", left), ("target networks that equal their networks", fits.following)):
        if whys:
            lines.append(f"{state}: {', '.join(f'{name} ({why})' for name, why in whys.items())}")
    for line in lines:
        _messages.info("%s", line)
    return Fork(lineage if len(lineage) > 1 else lineage[0], lines)


def _load(path: str, part: Stateful, values: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Load values into a part; an optimizer keeps its own learning rate and other settings.

    Raises:
        RunDirError: the values do not fit the part.
    """
    new = dict(values)
    for name in new:
        if is_optimizer(own[name]):
            new[name] = {**new[name], "param_groups": own[name]["param_groups"]}
    try:
        if isinstance(part, Table):
            new[""] = part.forked(new[""])
        part.load_state_dict(new[""] if "" in new else {**part.state_dict(), **new})
        if isinstance(part, Table):
            cut_off(part)  # truncate the other run's open episodes
    except Exception as error:
        raise RunDirError(f"init: {path} does not fit: {explain(error)}; init.{path}=null leaves it out") from error
