"""Keep a run's state on disk."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from rlrun import checkpointing as storage
from rlrun.callbacks.schedule import due_offline, following
from rlrun.core.errors import ConfigError, RlrunError, RunDirError
from rlrun.core.typing import Stateful
from rlrun.memory import Table
from rlrun.runs import learners
from rlrun.runs.directory import RunDir, checkpoint_key, checkpoint_name
from rlrun.runs.files import finite, sync, write_text
from rlrun.runs.heartbeat import require_own
from rlrun.runs.learners import place_of, places_in
from rlrun.training.callback import Callback, Stop

_messages = logging.getLogger("rlrun")


class Checkpointer(Callback):
    """Save every part that has a state: now and then, at the end, and when an evaluation was the best so far.

    It stands after every callback whose `end_cycle` or `end_training` changes a state, so that
    what is saved is the state between two updates. Training waits only while what changed is copied;
    a thread writes it meanwhile, and its failure ends the run at the next update.

    Of several learners each saves all that it has, the first one where a run of one learner does, the others in a
    folder of their own beside that. They do so here and now, the first one last: where its checkpoint is, all are.

    Args:
        every: environment steps (updates, where there is no collector); 0 or None = not by steps.
        keep_last: so many of the newest stay; None = all.
        keep_best: keep the checkpoint of the best evaluation, too; or of so many that were the best in their time.
        seconds: between checkpoints, at most.
        memory: save the rows of replay memories, too; without them a resumed run collects anew before it learns.
        skip: config paths of parts that are left out, with everything beneath them.
        offline: updates before the first environment step; every so many of them, and the last, count as well.

    Attributes:
        evaluation: the newest evaluation, which checkpoints name; whoever evaluates sets it.

    Raises:
        ConfigError: `keep_last` is below one.
    """

    cycle = 1

    def __init__(
        self,
        every: int | None,
        *,
        keep_last: int | None = 3,
        keep_best: bool | int | None = True,
        seconds: float | None = None,
        memory: bool = True,
        skip: Iterable[str] = (),
        offline: int = 0,
    ) -> None:
        if keep_last is not None and keep_last < 1:
            raise ConfigError(f"checkpoint.keep_last must be at least 1, or null for all, and is {keep_last}")
        self.every = every
        self.keep_last = keep_last
        self.keep_best = int(keep_best or 0)
        self.seconds = seconds
        self.memory = memory
        self.skip = tuple(skip)
        self.offline = offline
        self.evaluation: Mapping[str, Any] | None = None
        self._first = (0, 0)  # environment step (or update) and update at which this process took over
        self._newest = (0, 0)  # … of the newest checkpoint
        self._due = following(0, every)
        self._deadline = math.inf
        self._saved: tuple[int, int] | None = None  # what lies on disk as this process knows it
        self._best: list[tuple[int, int]] = []  # of evaluations that were the best in their time, newest first
        self._wanted: tuple[int, int] | None = None  # as the best, and not saved yet
        self._final = False  # the one that is wanted was evaluated only because the run ended
        self._before: tuple[Any, ...] | None = None  # these three, before the newest was saved as the best
        self._run: RunDir | None = None
        self._place = Path()  # of this learner's checkpoints
        self._parts: Mapping[str, Stateful] = {}
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    def begin_training(
        self, parts: Mapping[str, Stateful], run_dir: Path | None, update: int = 0, step: int | None = None
    ) -> None:
        self._first = (max(self._newest[0], step or 0), update)
        self._parts = {path: part for path, part in parts.items() if self._keeps(path, part)}
        self._deadline = time.monotonic() + (self.seconds or math.inf)
        if run_dir is not None:
            self._run = RunDir(run_dir)
            self._place = place_of(self._run.checkpoints, learners.rank())
            storage.sweep(self._place)
            if self._saved is not None and learners.rank() == 0:
                point_back(self._run, self._saved, self._best)

    def _keeps(self, path: str, part: Stateful) -> bool:
        if isinstance(part, Table) and not self.memory:
            return False
        return not any(path == skipped or path.startswith(f"{skipped}.") for skipped in self.skip)

    def end_cycle(self, update: int, step: int | None = None) -> None:
        if self._writing is not None and self._writing.done():
            self.wait()
        axis = update if step is None else step
        late = self.seconds and learners.to_number(time.monotonic() >= self._deadline)
        if axis >= self._due or late or due_offline(update, self.every, self.offline):
            self._save(axis, update)

    def mark_best(self, step: int, update: int, *, final: bool = False) -> None:
        """Keep the state after this update as the best; it is saved when all callbacks are done with the update.

        Args:
            step: environment step (update, where there is no collector).
            update: the newest update.
            final: it was evaluated only because the run ends. A longer run would not have been there: its state does
                not know of it, and when this run is resumed, the best is again the one before.
        """
        if not self.keep_best:
            return
        self._wanted, self._final = (step, update), final
        if self._saved == self._wanted:
            self.wait()  # which finds out whether it was saved
        if self._saved == self._wanted:
            self._count_best()
            if self._run is not None and learners.rank() == 0:
                point(self._run, "best", checkpoint_name(step, update))
        else:
            self._due = min(self._due, step)

    def _count_best(self) -> bool:
        """Note the checkpoint that is being saved as the best, if it is the one that is wanted."""
        if self._wanted is None or self._wanted != self._newest:
            return False
        if not self._final:
            self._best = [self._wanted, *(best for best in self._best if best != self._wanted)][: self.keep_best]
        self._wanted = None
        return True

    def end_training(self, error: BaseException | None, update: int = 0, step: int | None = None) -> None:
        axis = update if step is None else step
        self.wait()
        # a state after an error inside an update is no good
        in_order = error is None or isinstance(error, Stop) or getattr(error, "whole", False)
        moved = axis > self._first[0] or update > self._first[1]
        if not in_order or not moved:
            return
        for _ in range(2):  # once more, with every row, where a segment of before turns out to be damaged
            if self._saved != (axis, update):
                self._save(axis, update, last=True)
        if self._run is not None and self._saved != (axis, update):
            raise RlrunError(f"{self._run.checkpoints}: the last checkpoint cannot be saved: segments are damaged")

    def wait(self) -> None:
        """Return once the newest checkpoint is on disk; where earlier segments are damaged, the next one has all rows.

        Raises:
            RlrunError: the disk did not take it; the one before is as it was.
        """
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                writing.result()
        except RunDirError as error:
            _messages.warning("%s; everything is saved anew", error)
            self._due = 0
            self._forget()
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        """Take back that the newest checkpoint was saved, and what hangs on it."""
        self._saved, before = None, self._before
        if before is not None:
            self._best = before[0]
            if self._wanted is None:
                self._wanted, self._final = before[1:]

    def _save(self, axis: int, update: int, *, last: bool = False) -> None:
        """Copy what changed and let it be written; the last time it is written here and now."""
        self.wait()
        self._newest = (axis, update)
        self._due = following(axis, self.every)
        self._deadline = time.monotonic() + (self.seconds or math.inf)
        before = self._best, self._wanted, self._final
        best = self._count_best()
        self._before = before if best else None
        if self._run is None:
            return
        home = storage.home_of(self._place)
        tables = [path for path, part in self._parts.items() if isinstance(part, Table)]
        states = {
            path: part.checkpoint(home) if isinstance(part, Table) else part.state_dict()
            for path, part in self._parts.items()
        }
        created = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"env_steps": axis, "updates": update, "evaluation": finite(self.evaluation), "created": created}
        together = learners.count() > 1
        taken = storage.snapshot(states, about=about, apart=tables, copy=not last and not together)
        self._saved = self._newest
        if together:
            self._write_together(self._run, taken, best)
            return
        self._writer = self._writer or ThreadPoolExecutor(1, "checkpoint")
        self._writing = self._writer.submit(self._write, self._run, taken, self._newest, best, tuple(self._best))
        if not taken.copied:
            self.wait()

    def _write_together(self, run: RunDir, taken: storage.Snapshot, best: bool) -> None:
        """Write what all learners have; the first one waits for the others.

        Raises:
            LearnerError: their networks have become different.
        """
        learners.require_same({path: part for path, part in self._parts.items() if isinstance(part, torch.nn.Module)})
        if learners.rank() > 0:
            require_own(run)
            storage.write(self._place / checkpoint_name(*self._newest), taken)
        learners.every(True)
        if learners.rank() == 0:
            self._write(run, taken, self._newest, best, tuple(self._best))

    def _write(
        self,
        run: RunDir,
        taken: storage.Snapshot,
        newest: tuple[int, int],
        is_best: bool,
        best: Sequence[tuple[int, int]],
    ) -> None:
        """Write a checkpoint, then let the pointers name it, then delete what nobody needs any more."""
        name = checkpoint_name(*newest)
        require_own(run)
        sync(run.metrics)  # the records that the logger's state counts are there if it is
        storage.write(run.checkpoints / name, taken)
        point(run, "latest", name)
        if is_best:
            point(run, "best", name)
        with contextlib.suppress(OSError):  # what cannot be deleted does no harm
            retire(run, newest, {checkpoint_name(*key) for key in best}, keep_last=self.keep_last)

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"every {self.every:,} steps" if self.every else "at the end"

    def state_dict(self) -> dict[str, Any]:
        axis, update = self._newest
        return {"axis": axis, "update": update, "best": list(self._best)}

    def load_numbers(self, state: dict[str, Any]) -> None:
        self._saved = self._newest = (state["axis"], state["update"])
        self._best = [tuple(best) for best in state["best"]]
        self._due = following(state["axis"], self.every)


def point(run: RunDir, pointer: str, name: str) -> None:
    """Let `latest` or `best` name a checkpoint."""
    require_own(run)
    if _pointed(run, pointer) != name:
        write_text(run.checkpoints / pointer, name + "\n")


def point_back(run: RunDir, newest: tuple[int, int], best: Sequence[tuple[int, int]]) -> None:
    """Let the pointers name what a resumed run goes on from and what was its best, and nothing beyond it."""
    point(run, "latest", checkpoint_name(*newest))
    names = [checkpoint_name(*key) for key in best]
    there = [name for name in names if (run.checkpoints / name).is_dir()]
    if there:
        point(run, "best", there[0])
    elif _pointed(run, "best"):
        (run.checkpoints / "best").unlink()


def retire(run: RunDir, newest: tuple[int, int], best: Set[str], *, keep_last: int | None) -> None:
    """Delete old checkpoints of all learners; those beyond the newest, from before a resume, are to be replaced."""
    if keep_last is None:
        return
    past = [path for path in run.checkpoint_dirs() if checkpoint_key(path) <= newest]
    named = best | {_pointed(run, "best")}
    protected = named | {path.name for path in past[-keep_last:]}
    for place in places_in(run.checkpoints):  # another learner may have some that the first one never came to write
        there = [path for path in run.checkpoint_dirs(place) if checkpoint_key(path) <= newest]
        retired = [path for path in there if path.name not in protected]
        for path in retired:
            storage.remove(path)
        if retired:
            storage.collect(place)


def _pointed(run: RunDir, pointer: str) -> str:
    return run.pointed(pointer) or ""  # absent or damaged: it is written anew
