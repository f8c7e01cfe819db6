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
        memory: save the replay memory (the part `memory`), too.
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
        self.skip = (*skip, *(() if memory else ("memory",)))
        self._first = 0  # update before which this process has changed nothing
        self._axis = 0  # environment step (or update) of the newest checkpoint
        self._due = following(0, every)
        self._deadline = math.inf
        self._saved: tuple[int, int] | None = None  # axis and update, by this process
        self._best: tuple[int, int] | None = None  # wanted as the best, and not saved yet
        self._run: RunDir | None = None
        self._parts: Mapping[str, Stateful] = {}

    def begin_training(self, parts: Mapping[str, Stateful], run_dir: Path | None, update: int = 0) -> None:
        self._first = update
        self._parts = {path: part for path, part in parts.items() if not self._skips(path)}
        self._deadline = time.monotonic() + (self.seconds or math.inf)
        if run_dir is not None:
            self._run = RunDir(run_dir)
            storage.sweep(self._run.checkpoints)

    def _skips(self, path: str) -> bool:
        return any(path == skipped or path.startswith(f"{skipped}.") for skipped in self.skip)

    def end_cycle(self, update: int, step: int | None = None) -> None:
        axis = update if step is None else step
        if axis >= self._due or (self.seconds and time.monotonic() >= self._deadline):
            self._save(axis, update)

    def mark_best(self, step: int, update: int) -> None:
        """Keep the state after this update as the best; it is saved when all callbacks are done with the update."""
        if not self.keep_best:
            return
        self._best = (step, update)
        if self._saved == self._best:
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
        self._axis = axis
        self._due = following(axis, self.every)
        self._deadline = time.monotonic() + (self.seconds or math.inf)
        if self._run is None:
            return
        directory = self._run.checkpoints / checkpoint_name(axis, update)
        states = {path: part.state_dict() for path, part in self._parts.items()}
        storage.save(directory, states, about={"env_steps": axis, "updates": update})
        write_text(self._run.checkpoints / "latest", directory.name + "\n")
        self._saved = (axis, update)
        if self._best == self._saved:
            self._point_to_best()
        self._retire(self._run, directory)

    def _point_to_best(self) -> None:
        if self._run is not None and self._best is not None:
            write_text(self._run.checkpoints / "best", checkpoint_name(*self._best) + "\n")
        self._best = None

    def _retire(self, run: RunDir, newest: Path) -> None:
        """Delete old checkpoints; those beyond the newest, from before a resume, are left for this run to replace."""
        if self.keep_last is None:
            return
        past = [path for path in run.checkpoint_dirs() if checkpoint_key(path) <= checkpoint_key(newest)]
        best = run.checkpoints / "best"
        kept = best.read_text(encoding="utf-8").strip() if best.is_file() else ""
        for path in past[: -self.keep_last]:
            if path.name != kept:
                with contextlib.suppress(OSError):  # what cannot be deleted does no harm
                    storage.remove(path)

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"every {self.every:,} steps" if self.every else "at the end"

    def state_dict(self) -> dict[str, Any]:
        return {"axis": self._axis}

    def load_state_dict(
        self, state: dict[str, Any], *, weights: bool = True, optimiser: bool = True, numbers: bool = True
    ) -> None:
        if numbers:
            self._axis = state["axis"]
            self._due = following(self._axis, self.every)
