"""The memory of on-policy algorithms: the steps of all envs since it was last emptied."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlrun.core.errors import ConfigError, RlrunError
from rlrun.core.spaces import Spaces, flat, map_tree, nest, put_rows, take_rows
from rlrun.core.typing import Array, Batch, Tree
from rlrun.memory.table.columns import make_columns
from rlrun.memory.table.index import env_numbers

STATE, END_STATE = "state", "end_state"


class Rollout:
    """The steps of all envs since it was last emptied; a collector writes to it like to a table.

    Each env has a column of rows, with ends of episodes within. The next observation is that of the next row; at the
    end of an episode its last one; at the end of the rollout the collector's current one. No observation is stored
    twice. A column `state`, which may have several parts, is stored at every n-th step, and where an episode or the
    rollout ends.

    Args:
        spaces: of the environment: the columns observation, action, reward, terminated, truncated.
        columns: further columns of the agent, by name: `{log_prob: {}, state: {shape: [2]}}`. A tree of shapes
            makes a tree of columns: `{state: {shape: {read: [4], memory: [9, 4]}}}`.
        num_envs: environments.

    Raises:
        ConfigError: a column is not one value a step.
    """

    def __init__(
        self, *, spaces: Spaces | None = None, columns: Mapping[str, Any] | None = None, num_envs: int = 1
    ) -> None:
        self.columns, virtual = make_columns(spaces, columns)
        for name in [*virtual, *(column.name for column in self.columns if column.tag)]:
            raise ConfigError(f"memory.columns.{name}: a rollout holds one value a step, nothing virtual and no tags")
        self.rewards = spaces.rewards if spaces is not None else 0  # numbers in a reward; 0 = a scalar
        self.num_envs = num_envs
        self.adaptors: Sequence[Any] = ()  # of the loader that empties it
        self.horizon = 0
        self.every = 1  # steps from one stored state to the next
        self.filled = 0  # steps of every env
        self._roots = tuple(dict.fromkeys(column.keys[0] for column in self.columns))
        self._arrays: dict[str, Any] = {}  # trees [T, N, …]; of observations [T + 1, N, …], of states [T / every, N, …]
        self._steps: dict[str, Any] = {}  # those that are not states
        self._newest: dict[str, Any] = {}  # the state of the newest row of each env: a tree [N, …]
        self._valid = np.ones((0, num_envs), np.bool_)  # [T, N]
        self._last: list[tuple[Any, Array, Tree, Any]] = []  # of ended episodes: rows, envs, last observation, state

    def widen(self, columns: Mapping[str, Any]) -> None:
        """Add columns that the agent fills."""
        self.columns = [*self.columns, *make_columns(None, columns)[0]]
        self._roots = tuple(dict.fromkeys(column.keys[0] for column in self.columns))
        if self.horizon:
            self.reserve(self.horizon, self.every)

    def reserve(self, horizon: int, every: int = 1) -> None:
        """Allocate `horizon` steps of every env, and drop all steps.

        every: steps from one stored state to the next.
        """
        self.horizon, self.every = horizon, every
        arrays = {}
        for column in self.columns:
            rows = self._rows(column.keys[0], horizon) + (column.keys[0] == "observation")
            arrays[column.name] = np.zeros((rows, self.num_envs, *column.shape), column.dtype)
        self._arrays = nest(arrays)
        self._steps = {name: tree for name, tree in self._arrays.items() if name != STATE}
        states = {name: tree for name, tree in self._arrays.items() if name == STATE}
        self._newest = map_tree(lambda array: np.zeros_like(array[0]), states)
        self.clear()

    def _rows(self, name: str, steps: int) -> int:
        """Return the number of rows of a column for `steps` steps."""
        return -(-steps // self.every) if name == STATE else steps

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns, and `next_observation`."""
        return (*self._roots, "next_observation") if "observation" in self._roots else self._roots

    def add(self, env_index: int | Array | None, row: Mapping[str, Tree]) -> None:
        """Store one step.

        env_index: None for all envs, or the numbers [n] of those that made a step; the others' rows are void.
        row: every column, [n, …].

        Raises:
            RlrunError: a column is missing, or the rollout is full.
        """
        at: Any = self.filled
        envs: Any = slice(None)
        if env_index is not None:
            envs = env_numbers(env_index, self.num_envs)
            if not len(envs):
                return
            at = (self.filled, envs)
        if self.filled == self.horizon:
            raise RlrunError(f"memory: the rollout of {self.horizon} steps is full; a RolloutLoader empties it")
        if env_index is not None:  # the others' rows are void
            map_tree(lambda array: array[self.filled].fill(0), self._steps)
            self._valid[self.filled] = False
            self._valid[at] = True
        try:
            put_rows(self._steps, at, row)
            put_rows(self._newest, envs, row)
        except KeyError as missing:
            wanted, names = ", ".join(self._roots), ", ".join(row)
            raise RlrunError(f"memory: a row lacks {missing}; wanted {wanted}; given {names}") from None
        if self._newest and self.filled % self.every == 0:
            window = take_rows(self._arrays[STATE], self.filled // self.every)  # views
            map_tree(lambda array: array.fill(0), window)
            put_rows(window, envs, row[STATE])
        self.filled += 1

    def close(self, env_index: int | Array | None, last: Tree) -> None:
        """Note the last observations [n, …] of envs whose episodes ended with the newest row.

        env_index: numbers [n], a choice [N] of bools, or None for all envs.
        """
        envs = env_numbers(env_index, self.num_envs)
        self._last.append((self.filled - 1, envs, map_tree(np.array, last), take_rows(self._newest, envs)))

    def cut_off(self, envs: Array, last: Tree) -> Array:
        """Truncate open episodes of envs [n] at their newest rows; return envs without rows.

        last: their observations then, [n, …].
        """
        valid = self._valid[: self.filled, envs]
        rows = self.filled - 1 - valid[::-1].argmax(0) if self.filled else np.zeros(len(envs), np.int64)
        going = valid.any(0)
        for name in ("terminated", "truncated"):
            going &= ~self._arrays[name][rows, envs]
        if going.any():
            self._arrays["truncated"][rows[going], envs[going]] = True
            newest = take_rows(self._newest, envs[going])
            self._last.append((rows[going], envs[going], map_tree(lambda array: np.array(array)[going], last), newest))
        return envs[~valid.any(0)]

    def steps(self, observation: Tree) -> tuple[Batch, Array]:
        """Return the steps as trees of arrays [T, N, …] that share memory, and which rows are valid [T, N].

        With a `state`, [T / every, N, …], there is `end_state`: its `place` [T, N] says which row of its `state` [K, …]
        is that of a step. It has those with which an episode or the rollout ends.

        observation: after the newest rows, [N, …].
        """
        count = self.filled
        batch = self._kept()
        if "observation" in self._arrays:
            stored = self._arrays["observation"]
            put_rows(stored, count, observation)
            following = map_tree(lambda array: array[1 : count + 1], stored)
            if self._last:  # the observation a row later begins another episode
                following = map_tree(np.array, following)
                for row, envs, last, _ in self._last:
                    put_rows(following, (row, envs), last)
            batch["next_observation"] = following
        if self._newest:
            batch[END_STATE] = self._ends()
        return batch, self._valid[:count]

    def _kept(self) -> Batch:
        """Return the columns so far."""
        return {name: take_rows(tree, slice(self._rows(name, self.filled))) for name, tree in self._arrays.items()}

    def _ends(self) -> dict[str, Any]:
        """Return the states at the ends of episodes and of the rollout, and their places."""
        place, count = np.full((self.filled, self.num_envs), -1), 0
        ends = [(row, envs, newest[STATE]) for row, envs, _, newest in self._last]
        ends.append((self.filled - 1, np.arange(self.num_envs), self._newest[STATE]))
        for row, envs, _ in ends:
            place[row, envs] = np.arange(count, count + len(envs))
            count += len(envs)
        return {"place": place, STATE: map_tree(lambda *parts: np.concatenate(parts), *(end[2] for end in ends))}

    def clear(self) -> None:
        """Drop all steps."""
        self.filled = 0
        self._valid = np.ones((self.horizon, self.num_envs), np.bool_)
        self._last.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the steps so far."""
        last = [{"row": row, "envs": envs, "observation": tree, **newest} for row, envs, tree, newest in self._last]
        newest = {"newest": self._newest} if self._newest else {}
        valid = self._valid[: self.filled]
        return {"filled": self.filled, "rows": self._kept(), "valid": valid, "last": last, **newest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the steps so far.

        Raises:
            RlrunError: the rollout has other columns, envs or a shorter horizon; nothing was changed.
        """
        count = state["filled"]
        saved, here = (
            {name: array.shape for name, array in flat(tree).items()} for tree in (state["rows"], self._arrays)
        )
        wanted = {name: (self._rows(name.partition(".")[0], count), *shape[1:]) for name, shape in here.items()}
        if saved != wanted or count > self.horizon:
            raise RlrunError(
                f"memory: the saved rollout has {count} steps of {_shapes(saved)}; "
                f"this one has room for {self.horizon} of {_shapes(here)}"
            )
        self.clear()
        for name, tree in self._arrays.items():
            put_rows(tree, slice(self._rows(name, count)), state["rows"][name])
        put_rows(self._newest, slice(None), state.get("newest", {}))
        self._valid[:count] = state["valid"]
        self._last = [
            (last["row"], last["envs"], last["observation"], {name: last[name] for name in self._newest})
            for last in state["last"]
        ]
        self.filled = count

    @property
    def nbytes(self) -> int:
        """Bytes that the columns take."""
        return sum(array.nbytes for array in flat(self._arrays).values())


def _shapes(arrays: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape[1:])}" for name, shape in sorted(arrays.items()))
