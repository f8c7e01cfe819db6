"""Save checkpoints of a run."""

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
from rlrun.core import distributed
from rlrun.core.clock import Spent
from rlrun.core.errors import ConfigError, RlrunError, RunDirError, beginnings, did_you_mean, require_counts
from rlrun.core.files import finite, sync, write_text
from rlrun.core.typing import Stateful
from rlrun.memory import Table
from rlrun.runs.directory import RunDir, checkpoint_key, checkpoint_name, rank_folder, rank_folders
from rlrun.runs.heartbeat import require_own
from rlrun.training.callback import Callback, Stop

AGREE = 100  # updates after which several ranks ask each other whether a checkpoint is due by time
_messages = logging.getLogger("rlrun")


class Checkpointer(Callback):
    """Save every part that has a state: periodically, at the end, and after the best evaluation so far.

    It comes after every callback whose `end_cycle` or `end_training` changes a state, so it saves the state between two
    updates. Training waits only for a copy of the changes. A thread writes them; its failure ends the run at the next
    update.

    Each of several ranks saves its own state, the first one in the usual place, the others in folders next to it.
    They write synchronously, the first one last: its checkpoint exists only if all do.

    Args:
        every: environment steps (updates, where there is no collector); 0 or None = not by steps.
        keep_last: how many of the newest are kept; None = all.
        keep_best: keep the checkpoint of the best evaluation, too; a number n keeps the n newest that were once best.
        seconds: longest time between checkpoints.
        memory: save the rows of replay memories, too; without them a resumed run collects again before it learns.
        parts: config paths of the parts that are saved, or their beginnings; None = all, which a resume needs.
        offline: updates before the first environment step; every so many of them, and the last, count as well.

    Attributes:
        evaluation: the newest evaluation, set by the evaluator; manifests of checkpoints have it.
        awaited: checkpoints whose evaluation is under way, set by the evaluator; they are kept.

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
        parts: Iterable[str] | None = None,
        offline: int = 0,
    ) -> None:
        if keep_last is not None and keep_last < 1:
            raise ConfigError(f"checkpoint.keep_last must be at least 1, or null for all, and is {keep_last}")
        self.every = every
        self.keep_last = keep_last
        self.keep_best = int(keep_best or 0)
        self.seconds = seconds
        self.memory = memory
        self.parts = None if parts is None else tuple(parts)
        self.offline = offline
        self.evaluation: Mapping[str, Any] | None = None
        self.awaited: Sequence[tuple[int, int]] = ()
        self._first = (0, 0)  # environment step (or update) and update at which this process took over
        self._newest = (0, 0)  # … of the newest checkpoint
        self._due = following(0, every)
        self._deadline = math.inf
        self._saved: tuple[int, int] | None = None  # the newest checkpoint that this process saved
        self._best: list[tuple[int, int]] = []  # of successive best evaluations, newest first
        self._wanted: tuple[int, int] | None = None  # the best, if it is not saved yet
        self._final = False  # True if `_wanted` was evaluated only because the run ended
        self._before: tuple[Any, ...] | None = None  # these three, before the newest was saved as the best
        self._run: RunDir | None = None
        self._place = Path()  # of this rank's checkpoints
        self._parts: Mapping[str, Stateful] = {}
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._spent = Spent()

    def begin_training(
        self,
        parts: Mapping[str, Stateful],
        run_dir: Path | None,
        update: int = 0,
        step: int | None = None,
        spent: Spent | None = None,
    ) -> None:
        self._spent = self._spent if spent is None else spent
        self._first = (max(self._newest[0], step or 0), update)
        self._parts = {path: part for path, part in parts.items() if self._keeps(path, part)}
        self._deadline = time.monotonic() + (self.seconds or math.inf)
        if run_dir is not None:
            self._run = RunDir(run_dir)
            self._place = rank_folder(self._run.checkpoints, distributed.rank())
            storage.sweep(self._place)
            if self._saved is not None and distributed.rank() == 0:
                point_back(self._run, self._saved, self._best)

    def _keeps(self, path: str, part: Stateful) -> bool:
        if isinstance(part, Table) and not self.memory:
            return False
        return self.parts is None or any(f"{path}.".startswith(f"{chosen}.") for chosen in self.parts)

    def require_parts(self, paths: Iterable[str]) -> None:
        """Refuse chosen parts that are not among these paths.

        Raises:
            ConfigError: with the nearest path.
        """
        known = beginnings(paths)
        for chosen in self.parts or ():
            if chosen not in known:
                hint = did_you_mean(chosen, known)
                raise ConfigError(f"checkpoint.parts: this run has no part '{chosen}' that has a state{hint}")

    def end_cycle(self, update: int, step: int | None = None) -> None:
        if self._writing is not None and self._writing.done():
            self.wait()
        axis = update if step is None else step
        late = bool(self.seconds) and time.monotonic() >= self._deadline
        if self.seconds and distributed.world_size() > 1:  # they agree now and then, as it takes time
            late = update % AGREE == 0 and bool(distributed.largest(late))
        if axis >= self._due or late or due_offline(update, self.every, self.offline):
            with self._spent.during("write"):
                self._save(axis, update)

    def mark_best(self, step: int, update: int, *, final: bool = False) -> None:
        """Keep the state after this update as the best; it is saved at the end of the update.

        Args:
            step: environment step (update, where there is no collector).
            update: the newest update.
            final: True if it was evaluated only because the run ends. A longer run would not have this evaluation:
                a resume returns to the best one before.
        """
        if not self.keep_best:
            return
        self._wanted, self._final = (step, update), final
        if self._saved == self._wanted:
            self.wait()  # `_saved` is reset if that failed
        if self._saved == self._wanted:
            self._count_best()
            if self._run is not None and distributed.rank() == 0:
                point(self._run, "best", checkpoint_name(step, update))
        else:
            self.save_soon(step)

    def save_soon(self, step: int) -> None:
        """Save at the end of the update that has made this environment step."""
        self._due = min(self._due, step)

    def save_again(self) -> None:
        """Let the end of training save the newest update even if it is saved: its state has changed since."""
        self.wait()
        self._saved = None

    def mark_saved(self, step: int, update: int) -> None:
        """Make the checkpoint of an earlier update the best."""
        if self._saved == (step, update):
            self.wait()
        name = checkpoint_name(step, update)
        there = self._run is not None and (self._run.checkpoints / name).is_dir()
        if not there and update == self._newest[1]:  # the run has ended in this update
            self.mark_best(step, update)
        elif there and self._run is not None and self.keep_best:
            self._best = [(step, update), *self._best][: self.keep_best]
            point(self._run, "best", name)

    def _count_best(self) -> bool:
        """Count the newest checkpoint as the best, if it is `_wanted`; return True if so."""
        if self._wanted is None or self._wanted != self._newest:
            return False
        if not self._final:
            self._best = [self._wanted, *(best for best in self._best if best != self._wanted)][: self.keep_best]
        self._wanted = None
        return True

    def end_training(self, error: BaseException | None, update: int = 0, step: int | None = None) -> None:
        axis = update if step is None else step
        self.wait()
        # a state after an error inside an update is inconsistent
        in_order = error is None or isinstance(error, Stop) or getattr(error, "whole", False)
        moved = axis > self._first[0] or update > self._first[1]
        if not in_order or not moved:
            return
        for _ in range(2):  # again, with every row, if an earlier segment is damaged
            if self._saved != (axis, update):
                self._save(axis, update, last=True)
        if self._run is not None and self._saved != (axis, update):
            raise RlrunError(f"{self._run.checkpoints}: the last checkpoint cannot be saved: segments are damaged")

    def wait(self) -> None:
        """Wait for the newest checkpoint; if earlier segments are damaged, the next one stores all rows.

        Raises:
            RlrunError: the checkpoint cannot be written; the previous one is unchanged.
        """
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                writing.result()
        except RunDirError as error:
            _messages.warning("%s; everything is saved again", error)
            self._due = 0
            self._forget()
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        """Restore the state before the newest checkpoint, which was not saved."""
        self._saved, before = None, self._before
        if before is not None:
            self._best = before[0]
            if self._wanted is None:
                self._wanted, self._final = before[1:]

    def _save(self, axis: int, update: int, *, last: bool = False) -> None:
        """Copy the changes and write them in a thread; the last ones are written synchronously."""
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
        together = distributed.world_size() > 1
        snapshot = storage.snapshot(states, about=about, apart=tables, copy=not last and not together)
        self._saved = self._newest
        if together:
            self._write_together(self._run, snapshot, best)
            return
        self._writer = self._writer or ThreadPoolExecutor(1, "checkpoint")
        self._writing = self._writer.submit(
            self._write, self._run, snapshot, self._newest, best, (*self._best, *self.awaited)
        )
        if not snapshot.copied:
            self.wait()

    def _write_together(self, run: RunDir, snapshot: storage.Snapshot, best: bool) -> None:
        """Write the states of all ranks; the first one waits for the others.

        Raises:
            RankError: their networks have become different.
        """
        distributed.require_same(
            {path: part for path, part in self._parts.items() if isinstance(part, torch.nn.Module)}
        )
        if distributed.rank() > 0:
            require_own(run)
            storage.write(self._place / checkpoint_name(*self._newest), snapshot)
        distributed.all_true(True)
        if distributed.rank() == 0:
            self._write(run, snapshot, self._newest, best, (*self._best, *self.awaited))

    def _write(
        self,
        run: RunDir,
        snapshot: storage.Snapshot,
        newest: tuple[int, int],
        is_best: bool,
        best: Sequence[tuple[int, int]],
    ) -> None:
        """Write a checkpoint, then the pointers to it, then delete old ones."""
        name = checkpoint_name(*newest)
        require_own(run)
        sync(run.metrics)  # the state of the logger counts these records
        storage.write(run.checkpoints / name, snapshot)
        point(run, "latest", name)
        if is_best:
            point(run, "best", name)
        with contextlib.suppress(OSError):  # a file that cannot be deleted is harmless
            retire(run, newest, {checkpoint_name(*key) for key in best}, keep_last=self.keep_last)

    def note(self, path_of: Callable[[object], str]) -> str:
        return f"every {self.every:,} steps" if self.every else "at the end"

    def state_dict(self) -> dict[str, Any]:
        axis, update = self._newest
        return {"axis": axis, "update": update, "best": list(self._best)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for axis, update in ((state["axis"], state["update"]), *state["best"]):
            require_counts({"axis": axis, "update": update})
        self._saved = self._newest = (state["axis"], state["update"])
        self._best = [tuple(best) for best in state["best"]]
        self._due = following(state["axis"], self.every)


def point(run: RunDir, pointer: str, name: str) -> None:
    """Make `latest` or `best` name a checkpoint."""
    require_own(run)
    if _pointed(run, pointer) != name:
        write_text(run.checkpoints / pointer, name + "\n")


def point_back(run: RunDir, newest: tuple[int, int], best: Sequence[tuple[int, int]]) -> None:
    """Make the pointers name the checkpoint of a resume and the best one until then."""
    point(run, "latest", checkpoint_name(*newest))
    names = [checkpoint_name(*key) for key in best]
    existing = [name for name in names if (run.checkpoints / name).is_dir()]
    if existing:
        point(run, "best", existing[0])
    elif _pointed(run, "best"):
        (run.checkpoints / "best").unlink()


def retire(run: RunDir, newest: tuple[int, int], best: Set[str], *, keep_last: int | None) -> None:
    """Delete old checkpoints of all ranks; later ones, from before a resume, stay until they are replaced."""
    if keep_last is None:
        return
    past = [path for path in run.checkpoint_dirs() if checkpoint_key(path) <= newest]
    named = best | {_pointed(run, "best")}
    protected = named | {path.name for path in past[-keep_last:]}
    for place in rank_folders(run.checkpoints):  # another rank may have some that the first one did not write
        existing = [path for path in run.checkpoint_dirs(place) if checkpoint_key(path) <= newest]
        retired = [path for path in existing if path.name not in protected]
        for path in retired:
            storage.remove(path)
        if retired:
            storage.collect(place)


def _pointed(run: RunDir, pointer: str) -> str:
    return run.pointed(pointer) or ""  # absent or damaged: it is written again
