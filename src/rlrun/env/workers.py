"""Environments in processes of their own, which record their episodes there."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import _async_worker

from rlrun.core.errors import RlrunError
from rlrun.core.spaces import put_rows, take_rows
from rlrun.core.typing import Tree
from rlrun.env.batched import BatchedEnv, WorkerFailure
from rlrun.env.recorded import ActionRecorder, Recorded, RecordedEpisode, ReplayOutcome
from rlrun.env.spaces import Outputs, empty, rewards_of, row_splitter, warn
from rlrun.env.vector import Step, close_softly
from rlrun.runs.exits import describe_error, leave, refused
from rlrun.runs.subprocesses import end_with_parent

Build = Callable[[], gymnasium.Env[Any, Any]]


class WorkerWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes down the environment of a worker before each reset, once told to; the main process calls it by name.

    Args:
        env: with all its wrappers.
        number: of the environment.
        apart: whether it lives in a worker.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], number: int, *, apart: bool) -> None:
        super().__init__(env)
        self.number = number
        self.apart = apart
        self.recorder = ActionRecorder(env)
        self.recording = False
        self.episode: tuple[RecordedEpisode, dict[str, Any] | None] | None = (
            None  # to be played again; and options of resets
        )
        self._replay: Generator[None, None, ReplayOutcome] | None = None
        self.step = self._first_step  # type: ignore[method-assign]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.recording:
            self.recorder.begin(seed)
        result = self.env.reset(seed=seed, options=options)
        if not self.outputs.begun:
            self.outputs.reset(result)
        return result

    def _first_step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.outputs.step(result)
        self.step = self.env.step  # type: ignore[method-assign]
        return result

    @cached_property
    def outputs(self) -> Outputs:
        return Outputs(self.env.observation_space, self.env_rewards())

    def env_remarks(self) -> dict[str, str]:
        """Return what the environment gave that is stored as something else."""
        return self.outputs.remarks

    def env_rewards(self) -> int:
        """Return how many numbers a reward has; 0 = it is a plain number."""
        return rewards_of(self.env, "environment")

    def env_written(self, long: list[bool]) -> dict[str, Any] | None:
        """Return what fixes the open episode, besides its actions."""
        return self.recorder.written(long[self.number])

    def env_replay(self) -> ReplayOutcome | None:
        """Play a portion of the episode again; return what came of it once it is over."""
        if self.episode is None:
            return ReplayOutcome()
        self._replay = self._replay or self.recorder.replay(*self.episode)
        try:
            next(self._replay)
        except StopIteration as end:
            self._replay = self.episode = None
            outcome: ReplayOutcome = end.value
            return outcome
        return None

    def close(self) -> None:
        try:
            close_softly(f"env {self.number}", self.env.close)
        finally:
            # The pipe to the main process broke: that process is gone, and there is nobody to complain to.
            if self.apart and isinstance(sys.exc_info()[1], OSError | EOFError):
                leave(1)


def _worker(build: Build, number: int, parent: int, in_main_thread: bool) -> gymnasium.Env[Any, Any]:
    """Build an environment in a worker, which leaves signals to the process that started it.

    parent: id of that process; in_main_thread: whether its main thread started the worker.
    """
    apart = os.getpid() != parent
    if apart:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpgid(0, 0)  # a signal to the whole group, from a terminal or a scheduler, is the parent's to obey
        if in_main_thread:
            end_with_parent()
    return WorkerWrapper(build(), number, apart=apart)


def _work(index: int, build: Any, pipe: Any, parent_pipe: Any, memory: Any, errors: Any, *rest: Any) -> None:
    """Be the process of an environment, whose failure is told in words: not every exception can be sent."""

    def put(failure: tuple[int, Any, BaseException, str]) -> None:
        _, _, error, trace = failure
        errors.put((index, WorkerFailure, f"env {index}: {describe_error(error)}", trace))

    in_words: Any = SimpleNamespace(put=put)
    try:
        with refused():
            _async_worker(index, build, pipe, parent_pipe, memory, in_words, *rest)
    except (Exception, SystemExit) as error:  # while the environment was made, or one that asked to exit
        put((index, None, error, traceback.format_exc()))
        pipe.send((None, False))


class WorkerEnv(Recorded, BatchedEnv):
    """Step gymnasium environments in worker processes.

    build: makes one environment; count: envs; place: what messages call the environment.
    """

    vector: AsyncVectorEnv

    def __init__(
        self, build: Build, count: int, *, reset_options: dict[str, Any] | None = None, place: str = "environment"
    ) -> None:
        started_by = os.getpid(), threading.current_thread() is threading.main_thread()
        workers = [partial(_worker, build, env_index, *started_by) for env_index in range(count)]
        self._place, self._closed, self.vector = place, False, AsyncVectorEnv.__new__(AsyncVectorEnv)
        # `copy=False`: the reader copies anyway, and once is enough.
        begin = partial(AsyncVectorEnv.__init__, copy=False, autoreset_mode=AutoresetMode.DISABLED, worker=_work)
        self._call("start", lambda: begin(self.vector, workers))
        super().__init__(self.vector, reset_options=reset_options, place=place)
        self.remarked, self._stepped = set(), False
        self._split = row_splitter(self.vector.single_action_space)
        self._last_written: list[dict[str, Any] | None] = [None] * count  # when the workers were closed
        self._rejoined = False  # and not stepped since

    def _rewards(self) -> int:
        return int(self._call("start", lambda: self.vector.call("env_rewards"))[0])

    def record(self) -> None:
        if self._action_log is None:
            self._call("record", lambda: self.vector.set_attr("recording", True))
        super().record()

    def step(self, action: Tree) -> Step:
        if self._action_log is not None:
            self._action_log.note(action)
        self._rejoined = False
        step = super().step(action)
        if not self._stepped:
            self._stepped = True
            for remarks in self._call("step", lambda: self.vector.call("env_remarks")):
                warn(self._place, remarks, self.remarked)
        return step

    def _reset(self, seed: Any, options: dict[str, Any] | None) -> Tree:
        everyone = np.ones(self.num_envs, np.bool_)
        chosen = (options or {}).get("reset_mask", everyone)
        before = self._next
        observation = super()._reset(seed, options)
        if self._rejoined:  # the workers' shared memory has not seen what others came back to
            put_rows(observation, ~chosen, take_rows(before, ~chosen))
        if self._action_log is not None:
            self._action_log.begin(np.flatnonzero(chosen).tolist())
        return observation

    def close(self) -> None:
        if not self._closed and self._action_log is not None:
            with suppress(RlrunError):  # a checkpoint may still be made; a worker that died leaves none
                self._last_written = self._written(self._action_log.long())
        super().close()

    @property
    def _now(self) -> Tree:
        return self._next

    def _written(self, long: list[bool]) -> list[dict[str, Any] | None]:
        if self._closed:
            return self._last_written
        return list(self._call("state_dict", lambda: self.vector.call("env_written", long)))

    def _replay(
        self, episodes: list[RecordedEpisode | None], abandon: Callable[[], None] | None
    ) -> list[ReplayOutcome]:
        self._next = empty(self.spaces.observation, self.num_envs)
        self._rejoined = True
        replays = [None if episode is None else (episode, self._options) for episode in episodes]
        self._call("rejoin", lambda: self.vector.set_attr("episode", replays))
        outcomes: list[ReplayOutcome | None] = [None] * self.num_envs
        while any(outcome is None for outcome in outcomes):
            if abandon is not None:
                abandon()
            news = self._call("rejoin", lambda: self.vector.call("env_replay"))
            outcomes = [old or new for old, new in zip(outcomes, news, strict=True)]
        return [outcome for outcome in outcomes if outcome is not None]
