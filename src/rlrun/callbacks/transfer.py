"""Import and export of memories."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rlrun.callbacks.schedule import following
from rlrun.core.errors import ConfigError, MissingExtra, RequestError, require_at_least, require_one_of
from rlrun.core.spaces import Spaces
from rlrun.memory.formats import archive, emote, minari, table_file
from rlrun.memory.formats.sources import MINARI, import_rows
from rlrun.memory.table.episodes import cut_off
from rlrun.memory.table.table import Table
from rlrun.training.callback import Callback, Hook, Stop

_messages = logging.getLogger("rlrun")
_output = logging.getLogger("rlrun.output")  # what commands print


def _require_table(table: object, key: str) -> None:
    if not isinstance(table, Table):
        raise ConfigError(f"{key}: wanted a table; the memory is a {type(table).__name__}")


class MemoryImport(Callback):
    """Fill a table before the first step.

    A resumed run does so only if its checkpoint lacks the memory.

    Args:
        table: its rows are replaced.
        path: a file that rlrun or Emote (V1) stored, or minari:DATASET; several: one after another; None = nothing.
        limit: most transitions of each source, from its newest whole episodes; None = all.

    Raises:
        ConfigError: the memory is not a table, or the limit is below 1.
        RequestError: the source is missing or damaged, or does not fit; before the first step.
    """

    def __init__(self, table: Table, path: str | Sequence[str] | None = None, limit: int | None = None) -> None:
        if path is not None and not isinstance(table, Table):
            raise ConfigError(f"path: wanted a table for its rows, and the memory is a {type(table).__name__}")
        if limit is not None:
            require_at_least("limit", limit, 1)
        self.table = table
        self.limit = limit
        self.sources = [_fixed(source) for source in ([path] if isinstance(path, str) else path or ())]
        self._imported = False

    @property
    def one_rank(self) -> str:
        """The reason why several ranks cannot have it; "" if nothing is imported."""
        key = self.config_keys.get("path", "path")
        return f"each rank would load all rows of its files ({key})" if self.sources else ""

    def restore_state(self) -> None:
        if self._imported and len(self.table):
            return
        context = self.table.unobserved() if self._imported else nullcontext()  # statistics were saved, rows were not
        with context:
            for number, source in enumerate(self.sources):
                self._take(source, append=number > 0)
                self._imported = True

    def _take(self, source: str, *, append: bool) -> None:
        try:
            restored = import_rows(self.table, source, append=append, limit=self.limit)
        except RequestError as error:
            if not isinstance(error, MissingExtra):
                error.args = (f"{self.config_keys.get('path', 'path')}: {error}",)
            raise
        cut_off(self.table)  # open episodes belong to another run
        description = "as they were, sampler and ejector included" if restored else "as new episodes"
        also = " with what was there" if append else ""
        _output.info("memory: %s transitions%s from %s, %s", f"{len(self.table):,}", also, source, description)

    def state_dict(self) -> dict[str, Any]:
        return {"taken_in": self._imported, "sources": self.sources}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._imported, self.sources = state["taken_in"], sources_of(state)


def sources_of(state: Mapping[str, Any]) -> list[str]:
    """Return the sources of a saved import; older checkpoints have one source, or none."""
    if "sources" in state:
        return list(state["sources"])
    return [state["source"]] if state["source"] is not None else []


def _fixed(source: str) -> str:
    """Return a source as an absolute path or a dataset."""
    return source if source.startswith(MINARI) else str(Path(source).expanduser().absolute())


def _require_writable(path: Path) -> None:
    """Refuse a path that cannot be written, before the run begins.

    Raises:
        ConfigError: it is a folder, or its folder is not writable.
    """
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if path.is_dir():
        raise ConfigError(f"memory.export.path: {path} is a folder; name a file")
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(f"memory.export.path: {path} cannot be written: {above} is not a writable folder")


class MemoryExport(Callback):
    """Store a table periodically, and at the end of training.

    Args:
        table: is stored.
        every: environment steps (updates, where there is no collector); 0 = only at the end; None = never, unless
            there is a path.
        min_seconds: between two exports.
        path: the file; or minari:DATASET, written once, at the end; None = `exports/memory.zip` of the run.
        public: readable by everybody on this machine.
        spaces: of the environment; Minari needs them.
        layout: of the file: rlrun, or emote, Emote's V1.

    Raises:
        ConfigError: a Minari dataset is requested more than once, or without spaces; the memory is not a table; or
            there is no such layout.
        RequestError: the Minari dataset exists, or Minari is not installed; before the first step.
    """

    def __init__(
        self,
        table: Table,
        *,
        every: int | None = None,
        min_seconds: float = 600.0,
        path: str | None = None,
        public: bool = False,
        spaces: Spaces | None = None,
        layout: str = "rlrun",
    ) -> None:
        require_one_of("memory.export.layout", layout, ("rlrun", "emote"))
        self.dataset = path.removeprefix(MINARI) if path is not None and path.startswith(MINARI) else None
        if self.dataset is not None and (every or spaces is None):
            raise ConfigError(
                "memory.export: a Minari dataset is written once, at the end of training: remove `every`"
                if every
                else "memory.export: a Minari dataset needs the environment's spaces"
            )
        if self.dataset is not None and spaces is not None and spaces.rewards:
            raise ConfigError(
                f"memory.export: a Minari dataset has one reward a step, and this environment has {spaces.rewards}"
            )
        self.table = table
        self.every = every
        self.min_seconds = min_seconds
        self.path = Path(path) if path is not None and self.dataset is None else None
        if self.path is not None:
            _require_writable(self.path)
        self.public = public
        self.layout = layout
        self.spaces = spaces
        self.wanted = every is not None or path is not None
        if layout != "rlrun" and not self.wanted:
            raise ConfigError(
                f"memory.export.layout={layout}: nothing is exported; memory.export.path=FILE names a file"
            )
        self.one_rank = "the first rank has only its share of the rows (memory.export)" if self.wanted else ""
        if self.wanted:
            _require_table(table, "memory.export")
        self.cycle = 1 if every else 0
        self._axis = 0  # environment step (or update) of the newest export
        self._due = following(0, every)
        self._earliest = 0.0

    def hook(self, event: str) -> Hook | None:
        """Return no hook if nothing is to be exported."""
        return super().hook(event) if self.wanted else None

    def restore_state(self) -> None:
        if self.dataset is not None and not self._axis:
            minari.target_of(self.dataset)

    def begin_training(self, run_dir: Path | None) -> None:
        self._earliest = time.monotonic() + self.min_seconds
        if self.path is None and self.dataset is None and run_dir is not None:
            self.path = run_dir / "exports" / "memory.zip"
            archive.sweep(self.path)

    def end_cycle(self, update: int, step: int | None = None) -> None:
        axis = update if step is None else step
        if axis >= self._due and time.monotonic() >= self._earliest:
            self._export(axis)

    def end_training(self, error: BaseException | None, update: int = 0, step: int | None = None) -> None:
        axis = update if step is None else step
        in_order = error is None or isinstance(error, Stop)
        if in_order and axis > self._axis:
            self._export(axis)
        elif in_order and axis == 0:
            target = f"the Minari dataset {self.dataset}" if self.dataset is not None else self.path
            _messages.warning("memory.export: %s is not written: the run ended before its first step", target)

    def _export(self, axis: int) -> None:
        if self.dataset is not None and self._axis:  # a run that was resumed after its end
            _messages.warning("the Minari dataset %s is left as this run wrote it before", self.dataset)
        elif self.dataset is not None:
            assert self.spaces is not None
            minari.write(self.table, self.dataset, self.spaces)
        elif self.path is not None and self.layout == "emote":
            emote.write(self.table, self.path, public=self.public)
        elif self.path is not None:
            table_file.store(self.table, self.path, public=self.public, spaces=self.spaces)
        self._axis = axis
        self._due = following(axis, self.every)
        self._earliest = time.monotonic() + self.min_seconds

    def note(self, path_of: Callable[[object], str]) -> str:
        pace = f"every {self.every:,} steps, " if self.every else ""
        return f"stores {path_of(self.table)} {pace}at the end"

    def state_dict(self) -> dict[str, Any]:
        return {"axis": self._axis}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._axis = state["axis"]
        self._due = following(self._axis, self.every)
