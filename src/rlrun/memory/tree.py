"""Numbers by slot, their sums, and slots drawn in proportion to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlrun.typing import Array

BITS = 4
FAN = 1 << BITS
# row @ BEFORE: what lies before each number of a row; a product takes half the time of numpy's cumsum
BEFORE = np.triu(np.ones((FAN, FAN)), 1)


def _lasts() -> Array:
    """Return how many bits are set in each number of 16 bits, less one."""
    lasts = np.full(1, -1, np.int64)
    for _ in range(16):
        lasts = np.concatenate([lasts, lasts + 1])
    return lasts


LAST = _lasts()


class SumTree:
    """A number of at least zero in each slot; finds the slots in which parts of their sum end.

    Blocks of 16 slots have a sum, and so have groups of 16 blocks; above them stand the cumulative sums of all groups.
    A tree of two children a node would have twenty levels for a million slots, each several calls of numpy. Sums are
    made anew from what is beneath them, never added to, so they do not drift, whatever the history; this waits until
    they are asked for, so that several changes cost one.
    """

    def __init__(self, size: int) -> None:
        groups = max(-(-size // (FAN * FAN)), 1)
        self.leaves = np.zeros(groups * FAN * FAN)
        self._slots = self.leaves.reshape(-1, FAN)  # by block
        self._sums = np.zeros(groups * FAN)
        self._blocks = self._sums.reshape(-1, FAN)  # by group
        self._groups = np.zeros(groups)
        self._edges = np.zeros(groups + 1)  # what lies before each group, and all
        # numbers from zero on are in the order of their bits, and whole numbers are compared faster
        self._inner = self._edges[1:-1].view(np.int64)
        self._summands, self._running = torch.from_numpy(self._groups), torch.from_numpy(self._edges[1:])
        self._changed: list[Array] = []  # blocks whose sums are old

    def set(self, slots: Array | slice, values: Array | float) -> None:
        """Put numbers (one for each slot, or one for all) at some slots; of several for one slot the last counts."""
        self.leaves[slots] = values
        if isinstance(slots, slice):
            self._changed.append(np.arange(slots.start >> BITS, ((slots.stop - 1) >> BITS) + 1))
        else:
            self._changed.append(slots >> BITS)

    def get(self, slots: Array) -> Array:
        """Return the numbers at some slots."""
        values: Array = self.leaves.take(slots, mode="clip")
        return values

    @property
    def total(self) -> float:
        """The sum of all numbers."""
        if self._changed:
            self._add_up()
        return float(self._edges[-1])

    def find(self, prefix: Array) -> Array:
        """Return the slots [B] in which parts of the total end; prefix: [B] in [0, total).

        Ascending ones are found faster. One that is a rounding error away from the end of a block may lead to a slot
        of zero there.
        """
        if self._changed:
            self._add_up()
        nodes = self._inner.searchsorted(prefix.view(np.int64), "right")
        rest = prefix - self._edges.take(nodes)
        before = self._blocks.take(nodes, axis=0, mode="clip") @ BEFORE  # [B, 16]
        child = _child(before, rest)
        rest -= before.reshape(-1).take(child + np.arange(0, before.size, FAN))
        nodes <<= BITS
        nodes += child
        child = _child(self._slots.take(nodes, axis=0, mode="clip") @ BEFORE, rest)
        nodes <<= BITS
        nodes += child
        return nodes

    def _add_up(self) -> None:
        blocks = self._changed[0] if len(self._changed) == 1 else np.concatenate(self._changed)
        self._changed.clear()
        # einsum's sum of a row is the same, bit for bit, whichever rows stand beside it: nothing depends on history
        if 2 * len(blocks) < len(self._sums):
            self._sums[blocks] = np.einsum("ij->i", self._slots.take(blocks, axis=0, mode="clip"))
            groups = blocks >> BITS
            self._groups[groups] = np.einsum("ij->i", self._blocks.take(groups, axis=0, mode="clip"))
        else:
            np.einsum("ij->i", self._slots, out=self._sums)
            np.einsum("ij->i", self._blocks, out=self._groups)
        torch.cumsum(self._summands, 0, out=self._running)  # a third of the time of numpy's

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers, up to the last that is not zero."""
        used = np.flatnonzero(self.leaves)
        return {"leaves": torch.from_numpy(self.leaves[: used[-1] + 1 if len(used) else 0].copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back the numbers of a tree of the same size."""
        leaves = state["leaves"].numpy()
        self.leaves[:] = 0.0
        self.leaves[: len(leaves)] = leaves
        self._changed = [np.arange(len(self._sums))]


def _child(before: Array, rest: Array) -> Array:
    """Return the number [B] of the child in which `rest` [B] of a sum ends; before: [B, 16], what lies before each."""
    passed = np.packbits(before <= rest[:, None]).view(np.uint16)
    child: Array = LAST.take(passed)
    return child
