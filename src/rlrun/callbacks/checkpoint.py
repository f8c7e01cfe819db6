"""Keep a run's state on disk."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rlrun import storage
from rlrun.callback import Callback, Stop
from rlrun.callbacks.pace import following
from rlrun.errors import ConfigError
from rlrun.files import write_text
from rlrun.memory import Table
from rlrun.rundir import RunDir, checkpoint_key, checkpoint_name
from rlrun.typing import Stateful


class Checkpointer(Callback):
    """Save every part that has a state: now and then, at the end, and when an evaluation was the best so far.

    It stands after every callback whose `end_cycle` or `end_training` changes a state, so that
    what is saved is the state between two updates.

    Args:
        every: environment steps (updates, where there is no collector); 0 or None = not by steps.
        keep_last: so many of the newest stay; None = all.
        keep_best: keep the checkpoint of the best evaluation, too.
        seconds: between checkpoints, at most.
        memory: save the rows of replay memories, too; without them a resumed run collects anew before it learns.
        skip: config paths of parts that are left out, with everything beneath them.

    Raises:
        ConfigError: `keep_last` is below one.
    """

    cycle = 1

    def __init__(
        self,
        every: int | None,
        *,
        keep_last: int | None = 3,
        keep_best: bool = True,
        seconds: float | None = None,
        memory: bool = True,
        skip: Iterable[str] = (),
    ) -> None:
        if keep_last is not None and keep_last < 1:
            raise ConfigError(f"checkpoint.keep_last must be at least 1, or null for all, and is {keep_last}")
        self.every = every
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.seconds = seconds
        self.memory = memory
        self.skip = tuple(skip)
        self._first = 0  # update before which this process has changed nothing
        self._newest = (0, 0)  # environment step (or update) and update of the newest checkpoint
        self._due = following(0, every)
        self._deadline = math.inf
        self._saved: tuple[int, int] | None = None  # what lies on disk as this process knows it
        self._best: tuple[int, int] | None = None  # of the best evaluation
        self._wanted: tuple[int, int] | None = None  # as the best, and not saved yet
        self._run: RunDir | None = None
        self._parts: Mapping[str, Stateful] = {}

    def begin_training(self, parts: Mapping[str, Stateful], run_dir: Path | None, update: int = 0) -> None:
        self._first = update
        self._parts = {path: part for path, part in parts.items() if self._keeps(path, part)}
        self._deadline = time.monotonic() + (self.seconds or math.inf)
        if run_dir is not None:
            self._run = RunDir(run_dir)
            storage.sweep(self._run.checkpoints)
            if self._saved is not None:
                self._point_back(self._run, self._saved)

    def _keeps(self, path: str, part: Stateful) -> bool:
        if isinstance(part, Table) and not self.memory:
            return False
        return not any(path == skipped or path.startswith(f"{skipped}.") for skipped in self.skip)

    def end_cycle(self, update: int, step: int | None = None) -> None:
        axis = update if step is None else step
        if axis >= self._due or (self.seconds and time.monotonic() >= self._deadline):
            self._save(axis, update)

    def mark_best(self, step: int, update: int) -> None:
        """Keep the state after this update as the best; it is saved when all callbacks are done with the update."""
        if not self.keep_best:
            return
        self._wanted = (step, update)
        if self._saved == self._wanted:
            self._best = self._wanted
            self._point_to_best()
        else:
            self._due = min(self._due, step)

    def end_training(self, error: BaseException | None, update: int = 0, step: int | None = None) -> None:
        axis = update if step is None else step
        in_order = error is None or isinstance(error, Stop)  # a state after an error inside an update is no good,
        moved = update > self._first  # nor is one from amidst a warm-up
        if in_order and moved and self._saved != (axis, update):
            self._save(axis, update)

    def _save(self, axis: int, update: int) -> None:
        self._newest = (axis, update)
        self._due = following(axis, self.every)
        self._deadline = time.monotonic() + (self.seconds or math.inf)
        if self._wanted == self._newest:
            self._best = self._wanted
        if self._run is None:
            return
        directory = self._run.checkpoints / checkpoint_name(axis, update)
        states = {path: part.state_dict() for path, part in self._parts.items()}
        tables = [path for path, part in self._parts.items() if isinstance(part, Table)]
        storage.save(directory, states, about={"env_steps": axis, "updates": update}, apart=tables)
        _point(self._run, "latest", directory.name)
        self._saved = self._newest
        if self._wanted == self._saved:
            self._point_to_best()
        self._retire(self._run, directory)

    def _point_to_best(self) -> None:
        if self._run is not None and self._best is not None:
            _point(self._run, "best", checkpoint_name(*self._best))
        self._wanted = None

    def _point_back(self, run: RunDir, newest: tuple[int, int]) -> None:
        """Let the pointers name what a resumed run goes on from, and nothing beyond it."""
        _point(run, "latest", checkpoint_name(*newest))
        beyond = [path.name for path in run.checkpoint_dirs() if checkpoint_key(path) > newest]
        if _pointed(run, "best") in beyond:
            best = "" if self._best is None else checkpoint_name(*self._best)
            if best and (run.checkpoints / best).is_dir():
                _point(run, "best", best)
            else:
                (run.checkpoints / "best").unlink()

    def _retire(self, run: RunDir, newest: Path) -> None:
        """Delete old checkpoints; those beyond the newest, from before a resume, are left for this run to replace."""
        if self.keep_last is None:
            return
        past = [path for path in run.checkpoint_dirs() if checkpoint_key(path) <= checkpoint_key(newest)]
        kept = _pointed(run, "best")
        for path in past[: -self.keep_last]:
            if path.name != kept:
                with contextlib.suppress(OSError):  # what cannot be deleted does no harm
                    storage.remove(path)

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"every {self.every:,} steps" if self.every else "at the end"

    def state_dict(self) -> dict[str, Any]:
        axis, update = self._newest
        return {"axis": axis, "update": update, "best": self._best}

    def load_state_dict(
        self, state: dict[str, Any], *, weights: bool = True, optimiser: bool = True, numbers: bool = True
    ) -> None:
        if numbers:
            self._saved = self._newest = (state["axis"], state["update"])
            self._best = None if state["best"] is None else tuple(state["best"])
            self._due = following(state["axis"], self.every)


def _point(run: RunDir, pointer: str, name: str) -> None:
    if _pointed(run, pointer) != name:
        write_text(run.checkpoints / pointer, name + "\n")


def _pointed(run: RunDir, pointer: str) -> str:
    path = run.checkpoints / pointer
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""
