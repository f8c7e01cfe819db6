"""Which checkpoints have names of their own, and which are deleted."""

from __future__ import annotations

from collections.abc import Sequence, Set

from rlrun import storage
from rlrun.files import write_text
from rlrun.learners.places import places_in
from rlrun.presence import require_own
from rlrun.rundir import RunDir, checkpoint_key, checkpoint_name


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
