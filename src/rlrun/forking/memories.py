"""What a table takes over: the very rows, or the episodes where it is another kind of table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rlrun.errors import RunDirError
from rlrun.memory import Fifo, Table, Uniform
from rlrun.memory.episodes import Stored, add_all, cut_off
from rlrun.memory.pool import PoolIndex
from rlrun.memory.recorder import Recorder
from rlrun.typing import Stateful


class Memory:
    """A table as a whole; episodes that were open in the parent end where they were left.

    Attributes:
        how: what became of the rows, where they are not as they were.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.how = ""

    def names(self) -> Mapping[str, str]:
        return {"": "memory"}

    def follows(self, name: str) -> None:
        return None

    def misfit(self, name: str, value: Any) -> str | None:
        return None  # the table tells, by taking it

    def take(self, values: Mapping[str, Any]) -> None:
        """Take over a state; into a table of another length, number of lanes or kind go its episodes, as new ones.

        Raises:
            RlrunError: the columns differ.
        """
        state = values[""]
        if self._alike(state):
            self.table.load_state_dict(state)
            cut_off(self.table)
            return
        if self.table.frames is not None:
            raise RunDirError("its length, its lanes or its kind differ, and frames are stacked")
        before = cast(Table, _rebuilt(self.table, state))  # all of it that reading needs
        cut_off(before)
        episodes = Stored.of(before)
        add_all(self.table, episodes, append=False)
        self.how = f"{len(self.table):,} of {int(episodes.rows.sum()):,} transitions, as new episodes"

    def _alike(self, state: Mapping[str, Any]) -> bool:
        table = self.table
        parts: dict[str, Stateful] = {"sampler": table.sampler, "ejector": table.ejector}
        kind = all(state[name].keys() == part.state_dict().keys() for name, part in parts.items())
        same = _pooled(state) == isinstance(table.index, PoolIndex)
        return kind and same and _shape(state) == (table.index.size, table.index.num_envs)


def _rebuilt(table: Table, state: Mapping[str, Any]) -> Recorder:
    """Return the rows of a state in a table of its own shape, with the columns of another."""
    size, lanes = _shape(state)
    recorder = Recorder(
        [*table.storage.columns.values(), *table.tags.columns.values()],
        length=size - lanes,
        num_envs=lanes,
        sampler=Uniform(),
        ejector=Fifo(whole=_pooled(state)),
        frame_stack=1,
        min_length=1,
        directory=None,
    )
    recorder.put_back(dict(state))
    return recorder


def _pooled(state: Mapping[str, Any]) -> bool:
    """Tell whether lanes shared the rows, or each had its own."""
    return "vacant" in state["index"]


def _shape(state: Mapping[str, Any]) -> tuple[int, int]:
    return int(state["index"]["size"]), len(state["index"]["open"])
