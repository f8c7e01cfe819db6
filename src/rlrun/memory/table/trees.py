"""Segment trees over slots: sums, minima and other results over ranges, and prefix-sum search."""

from typing import Any

import numpy as np
import torch

from rlrun.core.errors import require_at_least
from rlrun.core.typing import Array

PENDING = 1024  # changes after which nodes are updated even if nobody reads them
BITS = 4
FAN = 1 << BITS
# row @ BEFORE: the sum before each number of a row; a product takes half the time of numpy's cumsum
BEFORE = np.triu(np.ones((FAN, FAN)), 1)
# number of bits set in each number of 16 bits, less one
LAST = np.unpackbits(np.arange(1 << FAN, dtype=np.uint16).view(np.uint8)).reshape(-1, FAN).sum(1, dtype=np.int64) - 1


class SegmentTree:
    """A number in each slot, and an operation over any range of slots.

    It has the results of blocks of 16 slots, and of groups of 16 blocks. A binary tree of a million slots would have
    twenty levels with several NumPy calls each. A node is computed from the level below, and only when it is read.

    Args:
        size: number of slots.
        operation: of two numbers, associative, such as `numpy.add`, `numpy.minimum` or `numpy.maximum`.
        neutral: neutral number of the operation; the initial value of all slots.
    """

    def __init__(self, size: int, operation: np.ufunc = np.add, neutral: float = 0.0) -> None:
        require_at_least("size", size, 0)
        groups = max(-(-size // (FAN * FAN)), 1)
        self.size, self.operation, self.neutral = size, operation, neutral
        self.leaves = np.full(groups * FAN * FAN, neutral)
        self._slots = self.leaves.reshape(-1, FAN)  # by block
        self._nodes = np.full(groups * FAN, neutral)
        self._blocks = self._nodes.reshape(-1, FAN)  # by group
        self._groups = np.full(groups, neutral)
        self._changed: list[Array] = []  # blocks whose nodes are outdated

    def set(self, slots: Array | slice, values: Array | float) -> None:
        """Set the numbers (one for each slot, or one for all) at some slots; if a slot is repeated, the last counts."""
        self.leaves[slots] = values
        if isinstance(slots, slice):
            self._changed.append(np.arange(slots.start >> BITS, ((slots.stop - 1) >> BITS) + 1))
        else:
            self._changed.append(slots >> BITS)
        if len(self._changed) > PENDING:
            self._update()

    def get(self, slots: Array) -> Array:
        """Return the numbers at some slots."""
        values: Array = self.leaves.take(slots, mode="clip")
        return values

    def reduce(self, start: int = 0, end: int | None = None) -> float:
        """Return the operation's result over the slots from `start` to before `end`; None = to the last."""
        if self._changed:
            self._update()
        start, end, _ = slice(start, end).indices(self.size)
        result = self.neutral
        for level in (self.leaves, self._nodes):
            first, last = -(-start // FAN), end // FAN
            if first >= last:
                return float(self.operation.reduce(level[start:end], initial=result))
            for part in (level[start : first * FAN], level[last * FAN : end]):
                result = self.operation.reduce(part, initial=result)
            start, end = first, last
        return float(self.operation.reduce(self._groups[start:end], initial=result))

    def _update(self) -> None:
        blocks = self._changed[0] if len(self._changed) == 1 else np.concatenate(self._changed)
        self._changed.clear()
        if 2 * len(blocks) < len(self._nodes):
            self._nodes[blocks] = self._of_rows(self._slots.take(blocks, axis=0, mode="clip"))
            groups = blocks >> BITS
            self._groups[groups] = self._of_rows(self._blocks.take(groups, axis=0, mode="clip"))
        else:
            self._nodes[:] = self._of_rows(self._slots)
            self._groups[:] = self._of_rows(self._blocks)

    def _of_rows(self, rows: Array) -> Array:
        """Return the operation's result of each row."""
        results: Array = self.operation.reduce(rows, axis=1)
        return results

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers, up to the last that is not neutral."""
        used = np.flatnonzero(self.leaves != self.neutral)
        return {"leaves": torch.from_numpy(self.leaves[: used[-1] + 1 if len(used) else 0].copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the numbers of a tree of the same size."""
        leaves = state["leaves"].numpy()
        self.leaves[:] = self.neutral
        self.leaves[: len(leaves)] = leaves
        self._changed = [np.arange(len(self._nodes))]


class MinTree(SegmentTree):
    """The least number of any range of slots; slots without a number have infinity."""

    def __init__(self, size: int) -> None:
        super().__init__(size, np.minimum, np.inf)

    def min(self, start: int = 0, end: int | None = None) -> float:
        """Return the least number from `start` to before `end`."""
        return self.reduce(start, end)


class SumTree(SegmentTree):
    """The sum of any range of slots, and prefix-sum search; numbers are at least zero.

    It also has the cumulative sums of the groups. Sums never drift, as each is computed from the level below.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._edges = np.zeros(len(self._groups) + 1)  # sums before each group, and of all
        # numbers from zero on are in the order of their bits, and whole numbers are compared faster
        self._inner = self._edges[1:-1].view(np.int64)
        self._summands, self._running = torch.from_numpy(self._groups), torch.from_numpy(self._edges[1:])

    @property
    def total(self) -> float:
        """The sum of all numbers."""
        if self._changed:
            self._update()
        return float(self._edges[-1])

    def sum(self, start: int = 0, end: int | None = None) -> float:
        """Return the sum from `start` to before `end`."""
        return self.reduce(start, end)

    def find(self, prefix: Array) -> Array:
        """Return the slots [B] in which prefix sums lie; prefix: [B] in [0, total).

        Ascending prefixes are found faster. Rounding errors at the end of a block may find a slot of zero.
        """
        if self._changed:
            self._update()
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

    def _update(self) -> None:
        super()._update()
        torch.cumsum(self._summands, 0, out=self._running)  # a third of the time of numpy's

    def _of_rows(self, rows: Array) -> Array:
        # einsum's sum of a row does not depend on the other rows, bit for bit, so nothing depends on history
        sums: Array = np.einsum("ij->i", rows)
        return sums


def _child(before: Array, rest: Array) -> Array:
    """Return the number [B] of the child in which `rest` [B] of a sum ends; before: [B, 16], the sum before each."""
    passed = np.packbits(before <= rest[:, None]).view(np.uint16)
    child: Array = LAST.take(passed)
    return child
