"""Environments that step as a whole: gymnasium's vector environments, native ones, EnvPool, worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rlrun.core.errors import DataError, RlrunError
from rlrun.core.spaces import Spaces, put_rows, take_rows
from rlrun.core.typing import Array, Tree
from rlrun.env.spaces import (
    action_writer,
    batch_reader,
    explained,
    from_gymnasium,
    rewards,
    rewards_of,
    row_writer,
)
from rlrun.env.sync import env_seeds
from rlrun.env.vector import Env, Seed, Step, close_softly
from rlrun.runs.exits import describe_error
from rlrun.runs.subprocesses import describe_exit
from rlrun.training.callback import Stop

DYING = 2.0  # seconds between the end of a worker's connection and that of its process, which may write a core


class WorkerFailure(Exception):
    """What an environment in a process of its own raised, in words; they begin with `env 3: `."""


class EnvInfos(Mapping[int, dict[str, Any]]):
    """What a vector environment said beside, by env; taken apart only where somebody looks."""

    def __init__(self, columns: dict[str, Any], count: int) -> None:
        self._columns = columns
        self._count = count

    def __getitem__(self, env_index: int) -> dict[str, Any]:
        if not 0 <= env_index < self._count:
            raise KeyError(env_index)
        row = _row(self._columns, env_index)
        final: dict[str, Any] | None = row.get("final_info")
        return row if final is None else final  # where an env reset within the step, the rest is of the next episode

    def __iter__(self) -> Iterator[int]:
        return (env_index for env_index in range(self._count) if self[env_index])

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _row(columns: dict[str, Any], env_index: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, column in columns.items():
        present = columns.get(f"_{name}")
        if (name.startswith("_") and name[1:] in columns) or (present is not None and not present[env_index]):
            continue
        row[name] = _row(column, env_index) if isinstance(column, dict) else column[env_index]
    return row


class BatchedEnv(Env):
    """Make any of the three ways in which vector environments reset look the same.

    DISABLED: ended envs are reset by a mask. NEXT_STEP: the row after an end is the reset itself, so it
    is marked invalid. SAME_STEP: the true successor is taken from `final_obs` of the info.

    vector: the environment, or `remake` makes it from a seed where that is the only way to seed it.
    """

    def __init__(
        self,
        vector: VectorEnv[Any, Any, Any],
        *,
        reset_options: dict[str, Any] | None = None,
        place: str = "environment",
        remake: Callable[[list[int]], VectorEnv[Any, Any, Any]] | None = None,
    ) -> None:
        self.vector = vector
        self.num_envs = vector.num_envs
        self._place, self._options, self._remake = place, reset_options or None, remake
        theirs, actions = vector.single_observation_space, vector.single_action_space
        self.spaces = Spaces(
            observation=from_gymnasium(theirs, f"{place}: the observation space"),
            action=from_gymnasium(actions, f"{place}: the action space", action=True),
            rewards=self._rewards(),
        )
        self.outer = theirs, actions
        self._rewards_shape = rewards(self.num_envs, self.spaces.rewards).shape
        self._read = batch_reader(theirs)
        self._write = row_writer(theirs)
        self._to_env = action_writer(actions, self.num_envs)
        self._mode = AutoresetMode((vector.metadata or {}).get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self.resets_itself = self._mode is AutoresetMode.NEXT_STEP
        self._episode_end = np.zeros(self.num_envs, np.bool_)  # by the last step
        self._next: Tree = None  # what to act on next
        self._closed = False

    def _rewards(self) -> int:
        return rewards_of(self.vector, self._place)

    def reset(self, seed: Seed = None) -> Tree:
        seeds = env_seeds(seed, self.num_envs)
        if self._remake is not None and seed is not None:
            self.vector.close()
            self.vector = self._remake([env_seed or 0 for env_seed in seeds])
        options = dict(self._options) if self._options else None
        return self._reset(self._seed_argument(seed, seeds), options)

    def _seed_argument(self, seed: Seed, seeds: list[int | None]) -> Any:
        """One generator for all envs takes one integer; one an env takes a list."""
        if seed is None or self._remake is not None:
            return None
        return seeds if isinstance(self.vector.unwrapped, (SyncVectorEnv, AsyncVectorEnv)) else seeds[0]

    def _reset(self, seed: Any, options: dict[str, Any] | None) -> Tree:
        observation, _ = self._call("reset", lambda: self.vector.reset(seed=seed, options=options))
        self._episode_end[:] = False
        self._next = self._read(observation)
        return self._next

    def step(self, action: Tree) -> Step:
        if self._to_env is not None:
            action = self._to_env(action)
        raw, reward, terminated, truncated, info = self._call("step", lambda: self.vector.step(action))
        observation = self._next = self._read(raw)
        reward = np.array(reward, np.float32)
        if reward.shape != self._rewards_shape:
            raise DataError(
                f"{self._place}: step gave rewards of shape {list(reward.shape)} for {self.num_envs} envs; "
                f"wanted {list(self._rewards_shape)} by its reward_space"
            )
        terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        before, self._episode_end = self._episode_end, terminated | truncated
        valid = None
        if self._mode is AutoresetMode.NEXT_STEP and before.any():
            valid = ~before
        elif self._mode is AutoresetMode.SAME_STEP and self._episode_end.any():
            observation = self._successor(observation, info)
        return Step(observation, reward, terminated, truncated, valid, EnvInfos(info, self.num_envs) if info else {})

    def _successor(self, observation: Tree, info: dict[str, Any]) -> Tree:
        """Return the observations with the last ones of ended episodes put back."""
        final = info.get("final_obs")
        if final is None:
            raise RlrunError(f"{self._place} resets within a step but gives no 'final_obs' in its info")
        successor = take_rows(observation, np.arange(self.num_envs))
        if isinstance(final, np.ndarray) and final.dtype == object:
            for env_index in np.flatnonzero(self._episode_end).tolist():
                self._write(successor, env_index, final[env_index])
        else:
            put_rows(successor, self._episode_end, take_rows(self._read(final), self._episode_end))
        return successor

    def restart(self, episode_end: Array) -> Tree:
        if not episode_end.any():
            return self._next
        if self._mode is AutoresetMode.DISABLED:
            return self._reset(None, {**(self._options or {}), "reset_mask": np.array(episode_end, np.bool_)})
        if (episode_end & ~self._episode_end).any():
            raise RlrunError(f"{self._place} resets its envs by itself; an episode cannot be cut short from outside")
        return self._next

    def reset_envs(self, envs: Array, seeds: Sequence[int | None]) -> Tree:
        if envs.all():
            return self.reset(list(seeds))
        if self._mode is not AutoresetMode.DISABLED:
            raise RlrunError(f"{self._place} resets its envs by itself; chosen envs cannot be seeded")
        all_seeds: list[int | None] = [None] * self.num_envs
        for env_index, seed in zip(np.flatnonzero(envs).tolist(), seeds, strict=True):
            all_seeds[env_index] = seed
        return self._reset(all_seeds, {**(self._options or {}), "reset_mask": np.array(envs, np.bool_)})

    def render(self) -> Any:
        frames = self.vector.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if isinstance(self.vector, AsyncVectorEnv):
            with suppress(EOFError, OSError):  # a worker died before it was asked to leave
                self.vector.close(timeout=5)
            end_workers(self.vector)
        else:
            close_softly(self._place, self.vector.close)

    def _call(self, what: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Exception as error:
            if not isinstance(self.vector, AsyncVectorEnv):
                if isinstance(error, Stop | RlrunError):
                    raise
                raise RlrunError(f"{self._place}: {what} failed: {describe_error(error)}") from error
            if not hasattr(self.vector, "processes"):  # not all could be started
                raise
            self._closed = True
            if isinstance(error, WorkerFailure):
                raise RlrunError(f"{self._place}: {what} failed in {explained(what, str(error))}") from error
            gone = self._gone(self.vector) if isinstance(error, EOFError | OSError) else None
            raise RlrunError(
                f"{self._place}: {what} failed: {gone or f'a worker failed: {describe_error(error)}'}"
            ) from error
        finally:
            if self._closed and isinstance(self.vector, AsyncVectorEnv):
                end_workers(self.vector)

    def _gone(self, vector: AsyncVectorEnv) -> str | None:
        """Tell which worker has ended, or is about to, and how; None where all are at work."""
        started = [process for process in vector.processes if process.pid is not None]
        ready = wait([process.sentinel for process in started], timeout=DYING)
        episode_end = [process for process in started if process.sentinel in ready]
        for process in episode_end:
            process.join(DYING)  # it has closed its files, which is not quite its end
        episode_end.sort(key=lambda process: process.exitcode == 0)  # it may have left because another one was gone
        for process in episode_end:
            return f"the process of env {vector.processes.index(process)} is gone: {describe_exit(process.exitcode)}"
        return None


def end_workers(vector: AsyncVectorEnv) -> None:
    """End the processes of a vector environment that are still there, at once."""
    vector.closed = True
    started = [process for process in vector.processes if process.pid is not None]
    for process in started:
        process.kill()
    for pipe in vector.parent_pipes:
        if pipe is not None:
            pipe.close()
    for process in started:
        process.join()
