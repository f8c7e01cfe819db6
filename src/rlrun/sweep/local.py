"""Jobs as processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from rlrun.sweep import children
from rlrun.sweep.book import Entry
from rlrun.sweep.coordinator import Process
from rlrun.sweep.task import Task, work

VISIBLE = "CUDA_VISIBLE_DEVICES"
NONE: Mapping[str, bytes] = MappingProxyType({})


class Local:
    """Start each job in a process of its own, which begins at once; accelerators are shared out in turn.

    Args:
        folder: of the sweep.
        config_dir: the user's own conf folder.
        typed: jobs whose words the user typed, and what they were composed to; what the others import is limited, as
            of any run.
        trust: packages beyond those of any run.
    """

    def __init__(
        self,
        folder: Path,
        *,
        config_dir: Path | None = None,
        typed: Mapping[str, bytes] = NONE,
        trust: Iterable[str] = (),
    ) -> None:
        self.folder = folder
        self.config_dir = config_dir
        self.typed = typed
        self.trust = tuple(trust)
        self.accelerators = accelerators()

    @staticmethod
    def prepare() -> None:
        """Begin to import what the jobs need."""
        children.prepare()

    def start(self, entry: Entry, slot: int) -> Process:
        task = Task(
            self.folder / "jobs" / entry.key,
            entry.words,
            config_dir=self.config_dir,
            composed=self.typed.get(entry.key),
            owner=entry.owner,
            trust=self.trust,
        )
        count = len(self.accelerators)
        variables = {VISIBLE: self.accelerators[slot % count]} if count else {}
        return children.start(work, task, log=self.folder / "logs" / f"{entry.key}.txt", variables=variables)


def accelerators() -> list[str]:
    """Return the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        return [each.strip() for each in named.split(",") if each.strip()]
    found = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted((name for name in found if name.isdigit()), key=int)
