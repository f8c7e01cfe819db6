"""List a run's checkpoints and their damage; the Python equivalent of `rlrun checkpoints`.

Listing is safe for untrusted and for running runs: it builds nothing, imports nothing that a config names, and writes
nothing.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlrun import checkpointing as storage  # which loads torch when a tensor is read
from rlrun.checkpointing import manifest as stored
from rlrun.core.errors import RunDirError
from rlrun.core.files import finite, reason
from rlrun.runs.directory import RunDir, checkpoint_key, rank_folders


@dataclass(frozen=True)
class CheckpointReport:
    """A checkpoint on disk.

    Attributes:
        name: of its folder: `<env_steps>-<updates>`.
        path: its folder.
        env_steps: environment steps when it was made (updates, without an environment).
        updates: gradient updates when it was made.
        created: time in its manifest (ISO 8601), or None.
        evaluation: the newest evaluation at that point, or None.
        size: bytes in its own folder.
        size_with_shared: bytes including the segments of memories that it shares with other checkpoints.
        latest: whether the pointer `latest` names it.
        best: whether the pointer `best` names it.
        parts: config path -> digest of the content; None if digests were not requested, or the part is damaged.
        damage: its faults, one line each; without `verify` and `digest`, only those of its manifest.
    """

    name: str
    path: Path
    env_steps: int
    updates: int
    created: str | None = None
    evaluation: dict[str, Any] | None = None
    size: int = 0
    size_with_shared: int = 0
    latest: bool = False
    best: bool = False
    parts: dict[str, str | None] = field(default_factory=dict)
    damage: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return its object in the list that `rlrun checkpoints --json` prints."""
        return {**vars(self), "path": str(self.path), "evaluation": finite(self.evaluation), "damage": [*self.damage]}


def checkpoints(run: Path | str, *, verify: bool = False, digest: bool = False) -> list[CheckpointReport]:
    """Return reports of a run's checkpoints, oldest first; the Python equivalent of `rlrun checkpoints`.

    Args:
        run: a run directory; a process may be working on it.
        verify: compare every byte of every file with its hash; without it only manifests are read.
        digest: compute a digest of each part's content, which also reads every byte.

    Raises:
        RunDirError: it is not a run, or its folder cannot be read. Damaged checkpoints are in the list.
    """
    directory = RunDir.open(run)
    latest, best = directory.pointed("latest"), directory.pointed("best")
    try:
        folders = directory.checkpoint_dirs()
    except OSError as error:
        raise RunDirError(f"{directory.checkpoints} cannot be read: {reason(error)}") from error
    reports = [_report(where, verify=verify, digest=digest) for where in folders]
    return [
        replace(report, latest=report.name == latest, best=report.name == best)
        for report in reports
        if report.path.is_dir()  # else training deleted it meanwhile
    ]


def newest_whole(run: Path | str, reports: Iterable[CheckpointReport]) -> str | None:
    """Return the name of the newest checkpoint without damage; None if there is none."""
    whole = {report.name for report in reports if not report.damage}
    return next((path.name for path in RunDir(run).newest_first() if path.name in whole), None)


def disk_used(run: Path | str) -> int:
    """Return the total bytes of a run's checkpoints, for all ranks; shared files count once.

    Raises:
        RunDirError: it is not a run.
    """
    homes = rank_folders(RunDir.open(run).checkpoints)
    folders = {*homes, *(Path(path) for home in homes for path in _entries(home, folders=True))}
    return sum(_size(path) for folder in folders for path in _entries(folder))


def _report(where: Path, *, verify: bool, digest: bool) -> CheckpointReport:
    env_steps, updates = checkpoint_key(where)
    own = sum(_size(path) for path in _entries(where))
    report = CheckpointReport(where.name, where, env_steps, updates, size=own, size_with_shared=own)
    try:
        note = stored.read_manifest(where)
    except RunDirError as error:
        return replace(report, damage=(str(error),))
    damage, parts = _read(where, note.parts, verify=verify, digest=digest)
    whole = own + sum(entry["size"] for entry in note.segments.values())
    report = replace(report, created=note.created, evaluation=note.evaluation, size_with_shared=whole)
    return replace(report, parts=parts, damage=damage)


def _read(
    where: Path, names: list[str], *, verify: bool, digest: bool
) -> tuple[tuple[str, ...], dict[str, str | None]]:
    """Return the damage and the digests of a checkpoint, as far as they are requested."""
    digests: dict[str, str | None] = dict.fromkeys(names)
    if not verify and not digest:
        return (), digests
    damage = []
    for place in rank_folders(where.parent) if verify else ():
        damage += storage.verify(place / where.name)
    try:
        if digest and not damage:
            digests |= {name: storage.digest(state) for name, state in storage.load(where).items()}
    except RunDirError as error:
        damage = [str(error)]
    return tuple(damage), digests


def _entries(folder: Path, *, folders: bool = False) -> list[str]:
    """Return a folder's files, or its folders; nothing if it was deleted meanwhile."""
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False) == folders]
    except OSError:
        return []


def _size(path: str) -> int:
    """Return a file's bytes; 0 if it was deleted meanwhile."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
