"""What an index of episodes gives to a checkpoint, and what it believes of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch

from rlrun.errors import RlrunError
from rlrun.typing import Array

NARROW, WIDE = 16, 32  # bits of a stamp that hold the step: of 32 bits, and of 64
EMPTY = -(1 << 30)  # so far below every stamp that no difference with it is a length
FREE, OPEN, CLOSED = 0, 1, 2
LONGEST = 1 << 62  # of numbers that count


class SavedIndex(ABC):
    """The half of `rlrun.memory.index.EpisodeIndex` that checkpoints see."""

    # what a state holds beside slots, stamps and flags
    saved: ClassVar[tuple[str, ...]] = ("written", "open", "lane", "first", "status", "free")
    by_lane: ClassVar[tuple[str, ...]] = ("written", "open", "_previous")
    num_envs: int
    size: int
    version: int
    too_short: int
    bits: int
    stamp: Array
    complete: Array
    written: Array
    lane: Array
    first: Array
    _left: int
    _settled: Array
    _rewritten: bool
    _counted: dict[int, tuple[int, Array]]

    def used(self) -> Array:
        """Return the slots that hold something."""
        return np.flatnonzero(self.stamp != EMPTY)

    def changed(self) -> Array:
        """Return the slots that were given out since `settle` and still hold something, ascending."""
        if self._rewritten:
            return self.used()
        slots = np.sort(self._taken())
        occupied: Array = slots[self.stamp[slots] != EMPTY]
        return occupied

    @abstractmethod
    def _taken(self) -> Array:
        """Return slots that were given out since `settle`; those that hold nothing any more may be among them."""

    def settle(self) -> None:
        """From here on count what changes anew."""
        self._settled = self.written.copy()
        self._rewritten = False

    def state_dict(self) -> dict[str, Any]:
        """Return the index; stamps of used slots only."""
        used = self.used()
        rows = {"used": torch.from_numpy(used), "stamp": torch.from_numpy(self.stamp[used])}
        return self.books() | rows

    def books(self) -> dict[str, Any]:
        """Return the index without the slots in use and their stamps."""
        state = {name: torch.from_numpy(getattr(self, name).copy()) for name in self.saved}
        state["complete"] = torch.from_numpy(self.complete[: self.size][self.stamp != EMPTY])
        return state | {"size": self.size, "too_short": self.too_short, "bits": self.bits}

    def check_state(self, state: dict[str, Any]) -> None:
        """Refuse a state of a table of another size, and one in which a number points to nowhere.

        Raises:
            RlrunError: names what is wrong; nothing was changed.
        """
        lanes, size = len(state["written"]), state["size"]
        if (lanes, size) != (self.num_envs, self.size):
            raise RlrunError(
                f"memory: the saved table has {lanes} lanes and room for {size - lanes} transitions; "
                f"this one has {self.num_envs} and room for {self.size - self.num_envs}"
            )
        arrays = {name: state[name].numpy() for name in self.saved}
        for name, values in arrays.items():
            now = getattr(self, name)
            count = lanes if name in self.by_lane else len(arrays["lane"])
            if values.dtype != now.dtype or values.ndim != now.ndim or (values.shape[-1] != count and name != "free"):
                raise RlrunError(f"memory: the saved index is damaged: '{name}' is {values.dtype} {values.shape}")
        for name, most in self._bounds(arrays, state).items():
            _require(name, arrays.get(name, state.get(name)), most)
        self._check_stamps(state, arrays)

    def _bounds(self, arrays: dict[str, Array], state: dict[str, Any]) -> dict[str, int]:
        """Return below what each number has to be."""
        numbers = len(arrays["lane"])
        bounds = {"written": LONGEST, "open": numbers, "lane": self.num_envs, "status": CLOSED + 1}
        return bounds | {"free": numbers, "_previous": self.size + 1}

    def _check_stamps(self, state: dict[str, Any], arrays: dict[str, Array]) -> None:
        used, stamp, complete = (state[name].numpy() for name in ("used", "stamp", "complete"))
        kinds = (used.dtype, stamp.dtype, complete.dtype)
        if state["bits"] not in (NARROW, WIDE) or type(state["too_short"]) is not int or used.ndim != 1:
            raise RlrunError("memory: the saved index is damaged: its bits are none")
        if kinds != (np.int64, np.int32 if state["bits"] == NARROW else np.int64, np.bool_):
            raise RlrunError(f"memory: the saved index is damaged: its stamps are {stamp.dtype}")
        if not used.shape == stamp.shape == complete.shape or (np.diff(used) <= 0).any():
            raise RlrunError("memory: the saved index is damaged: its slots, stamps and flags do not fit")
        _require("used", used, self.size)
        _require("stamp", stamp, len(arrays["lane"]) << state["bits"])
        if len(used) and (arrays["status"][stamp >> state["bits"]] == FREE).any():
            raise RlrunError("memory: the saved index is damaged: a slot belongs to no episode")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back a state of a table of the same size.

        Raises:
            RlrunError: the sizes differ, or the state is damaged; nothing was changed.
        """
        self.check_state(state)
        for name in self.saved:
            setattr(self, name, state[name].numpy().copy())
        used = state["used"].numpy()
        self.bits, self._left = state["bits"], 0
        self.stamp = np.full(self.size, EMPTY, np.int32 if self.bits == NARROW else np.int64)
        self.complete[:] = False
        self.stamp[used], self.complete[used] = state["stamp"].numpy(), state["complete"].numpy()
        self.too_short = state["too_short"]
        self.version += 1
        self._rewritten = True
        self._counted.clear()


def _require(name: str, values: Any, most: int) -> None:
    """Refuse numbers below zero, and from `most` on."""
    values = np.asarray(values)
    if values.dtype.kind not in "iu" or (values.size and (values.min() < 0 or values.max() >= most)):
        raise RlrunError(f"memory: the saved index is damaged: '{name}' has numbers that point to nowhere")
