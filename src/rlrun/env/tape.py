"""The actions that lanes were given since the resets of their open episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np

from rlrun.spaces import map_tree
from rlrun.typing import Array, Tree

# Steps. Acting them again takes as long as they took: seconds for control tasks, two minutes for Atari, whose
# longest episodes have 27,000. What runs longer hardly has episodes at all.
LIMIT = 100_000


class _Leaf:
    """One array of an action, step by step, as bytes: the cheapest copy there is."""

    def __init__(self) -> None:
        self.log: deque[bytes] = deque(maxlen=LIMIT)
        self.append = self.log.append
        self.steps = 0
        self.dtype: Any = None
        self.shape: tuple[int, ...] = ()

    def note(self, action: Array) -> None:
        if action.dtype is not self.dtype:
            action = self._settle(action)
        self.append(action.tobytes())
        self.steps += 1

    def _settle(self, action: Array) -> Array:
        """Find one dtype that holds this action and all before it."""
        if self.dtype is None:
            self.dtype, self.shape = action.dtype, action.shape
        common = np.result_type(self.dtype, action.dtype)
        if common != self.dtype:
            before = self.array(0)
            self.dtype = common
            self.load(before.astype(common), self.steps)
        return action.astype(common)

    def array(self, first: int) -> Array:
        """Return the actions since the `first`-th of those that are kept: [T, N, …]."""
        data = b"".join(islice(self.log, first, None))
        return np.frombuffer(data, self.dtype).reshape(-1, *self.shape)

    def load(self, actions: Array, steps: int) -> None:
        self.dtype, self.shape, self.steps = actions.dtype, actions.shape[1:], steps
        self.log.clear()
        self.log.extend(row.tobytes() for row in actions)


class Tape:
    """A log of whole batches of policy actions [N, …], and where in it each lane's episode began.

    What no lane needs any more is dropped, and so is what is older than `LIMIT` steps.
    """

    def __init__(self, num_envs: int) -> None:
        self.begun = [0] * num_envs  # step after which the episode began
        self.note: Callable[[Tree], None]  # takes the actions of a step
        self._rewind()

    def _rewind(self) -> None:
        self.note = self._first
        self._tree: Any = None
        self._leaves: list[_Leaf] = []

    @property
    def steps(self) -> int:
        return self._leaves[0].steps if self._leaves else 0

    def _first(self, action: Tree) -> None:
        self._tree = self._grow(action)
        self.note = self._tree.note if isinstance(self._tree, _Leaf) else self._note
        self.note(action)

    def _grow(self, action: Tree) -> Any:
        if isinstance(action, dict):
            return {name: self._grow(part) for name, part in action.items()}
        self._leaves.append(_Leaf())
        return self._leaves[-1]

    def _note(self, action: Tree) -> None:
        _note_parts(self._tree, action)

    def begin(self, lanes: Iterable[int]) -> None:
        """Note that new episodes begin in some lanes."""
        steps = self.steps
        for lane in lanes:
            self.begun[lane] = steps
        needed = steps - min(self.begun)
        for leaf in self._leaves:
            for _ in range(len(leaf.log) - needed):
                leaf.log.popleft()

    def long(self) -> list[bool]:
        """Tell of which lanes the open episode has more than `LIMIT` steps."""
        return [self.steps - begun > LIMIT for begun in self.begun]

    def __iter__(self) -> Iterator[Tree]:
        """Yield the actions of each step that is kept."""
        if self._leaves:
            actions = map_tree(lambda leaf: leaf.array(0), self._tree)
            for step in range(len(self._leaves[0].log)):
                yield map_tree(itemgetter(step), actions)

    def state_dict(self) -> dict[str, Any]:
        """Return the actions [T, N, …] since the oldest open episode began, and where in them each one did.

        -1 stands for an episode of more than `LIMIT` steps.
        """
        steps = self.steps
        long = self.long()
        first = min((at for at, lost in zip(self.begun, long, strict=True) if not lost), default=steps)
        begun = [-1 if lost else at - first for at, lost in zip(self.begun, long, strict=True)]
        actions = None
        if steps > first:
            skipped = len(self._leaves[0].log) - (steps - first)
            actions = map_tree(lambda leaf: leaf.array(skipped), self._tree)
        return {"begun": begun, "actions": actions}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a log; the first action that is noted follows its last."""
        self._rewind()
        actions = state["actions"]
        if actions is not None:
            self._first(map_tree(lambda array: array[0], actions))
            _load(self._tree, actions)
        self.begun = [at if at >= 0 else -LIMIT - 1 for at in state["begun"]]


def _note_parts(node: Any, action: Tree) -> None:
    for name, part in node.items():
        if isinstance(part, _Leaf):
            part.note(action[name])
        else:
            _note_parts(part, action[name])


def _load(node: Any, actions: Tree) -> None:
    if isinstance(node, _Leaf):
        node.load(actions, len(actions))
    else:
        for name, part in node.items():
            _load(part, actions[name])
